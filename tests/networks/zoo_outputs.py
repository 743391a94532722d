"""Networks with nested inputs, several outputs, auxiliary values, keyword arguments, losses."""

from collections import namedtuple

from mindspore import nn, ops

from tests.networks.zoo import NetCase, initialise, integers, normal, normal_inputs, of_cell, register
from tests.networks.zoo_dense import Mlp
from tests.networks.zoo_weights import weight

Pair = namedtuple("Pair", "left right")


@register
def nested_inputs():
    """A dict of tuples and of non-tensors in, a dict out."""
    matrix, other = weight((5, 4), "matrix"), weight((5, 4), "other")

    def fn(batch, mode):
        one, (two, scale) = batch["pair"]
        hidden = ops.tanh(ops.matmul(one, matrix)) + ops.matmul(two, other) * scale
        return {mode: hidden, "rest": [hidden.sum(), batch["count"]]}

    def inputs(batch):
        return ({"pair": (normal((3, 5), batch), (normal((3, 5), (batch, 1)), 0.5)), "count": 3,
                 "ids": integers((3,), 4, batch), "unused": Pair(normal((2,), batch), None)}, "main")

    return NetCase(fn, inputs, (other, matrix), grad_position=-1, compiles=False)


@register
def keyword_tensors():
    """Gradients of keyword arguments as well."""
    matrix = weight((5, 5), "matrix")

    def fn(x, y, *, shift, factor=1.0, mask=None):
        return ops.matmul(x, matrix) * factor + shift["by"] * y + (0.0 if mask is None else mask)

    return NetCase(fn, normal_inputs((3, 5), (3, 5)), (matrix,), grad_position=-1,
                   kwargs={"shift": {"by": normal((5,), 8)}, "factor": 2.0}, compiles=False)


@register
def auxiliary():
    """has_aux: statistics, integers and strings come along without a gradient."""
    inner = Mlp((5, 6, 4), ops.tanh)
    initialise(inner)

    def fn(x):
        scores = inner(x)
        return scores.mean(), {"scores": scores, "best": ops.argmax(scores, dim=-1)}, "text"

    return NetCase(fn, normal_inputs((3, 5)), tuple(inner.trainable_params()), has_aux=True, compiles=False)


class Heads(nn.Cell):
    """A trunk with three heads: a matrix, integers, a loss of weights only."""

    def __init__(self):
        super().__init__()
        self.trunk = Mlp((5, 6, 6), ops.tanh)
        self.one = nn.Dense(6, 3)
        self.two = nn.Dense(6, 4)

    def construct(self, x):
        hidden = self.trunk(x)
        scores = self.two(hidden)
        return self.one(hidden), (scores, ops.argmax(scores, dim=-1)), ops.square(self.one.weight).sum()


@register
def several_heads():
    return of_cell(Heads(), (3, 5), shares=True)


@register
def one_head_without_gradient():
    """The second head gets None: its weights' gradients are zeros."""
    case = of_cell(Heads(), (3, 5), shares=True)

    def sens(out, batch):
        from tests.networks.compare import random_sens
        given = random_sens(out, batch)
        return given[0], (None, None), given[2]

    return NetCase(case.fn, case.make_inputs, case.weights, make_sens=sens, shares=True)


@register
def outputs_inside_outputs():
    """The same value twice, once more inside another output, and the input itself."""
    matrix = weight((5, 5), "matrix")

    def fn(x):
        hidden = ops.matmul(x, matrix)
        return hidden, hidden, ops.sin(hidden), x, ops.matmul(ops.sin(hidden), matrix)

    return NetCase(fn, normal_inputs((3, 5)), (matrix,), shares=True)


class Losses(nn.Cell):
    """Several losses of one batch: cross entropy, squares, a penalty, a contrast between halves."""

    def __init__(self):
        super().__init__()
        self.trunk = Mlp((5, 6, 6), ops.relu)
        self.head = nn.Dense(6, 4)
        self.back = nn.Dense(6, 5)

    def construct(self, x, labels):
        hidden = self.trunk(x)
        left, right = ops.chunk(hidden, 2, axis=0)
        contrast = ops.log_softmax(ops.matmul(left, right.swapaxes(0, 1)), -1).mean()
        return (ops.cross_entropy(self.head(hidden), labels), ops.square(self.back(hidden) - x).mean(),
                ops.abs(self.head.weight).mean() + contrast)


@register
def several_losses():
    cell = Losses()
    initialise(cell)
    return NetCase(cell, lambda batch: (normal((4, 5), batch), integers((4,), 4, batch)),
                   tuple(cell.trainable_params()), shares=True)


@register
def teacher():
    """A student held against the same network behind stop_gradient."""
    inner = Mlp((5, 6, 4), ops.tanh)
    initialise(inner)

    def fn(x, y):
        return ops.square(inner(x) - ops.stop_gradient(inner(y))).mean(), inner(y)

    return NetCase(fn, normal_inputs((3, 5), (3, 5)), tuple(inner.trainable_params()), grad_position=(0, 1))


class Variational(nn.Cell):
    """Means and variances, a sample with given noise, reconstruction and divergence."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Dense(6, 8)
        self.decoder = nn.Dense(4, 6)

    def construct(self, x, noise):
        mean, spread = ops.chunk(ops.tanh(self.encoder(x)), 2, axis=-1)
        sample = mean + noise * ops.exp(0.5 * spread)
        divergence = 0.5 * (ops.square(mean) + ops.exp(spread) - 1 - spread).sum(-1).mean()
        return ops.square(self.decoder(sample) - x).sum(-1).mean() + divergence


@register
def variational():
    return of_cell(Variational(), (3, 6), (3, 4), shares=True)


@register
def two_positions_of_three():
    """Inputs that are asked for out of order, one of them unused."""
    matrix = weight((5, 5), "matrix")

    def fn(x, y, z):
        return ops.tanh(ops.matmul(x * z, matrix))

    return NetCase(fn, normal_inputs((3, 5), (2,), (3, 5)), (matrix,), grad_position=(2, 1), compiles=False)


@register
def only_weights_asked_for():
    """No input: everything is dw, by the unsplit call alone."""
    cell = Mlp((5, 6, 4), ops.tanh)
    initialise(cell)
    return NetCase(cell, normal_inputs((3, 5)), tuple(cell.trainable_params()), grad_position=None)


@register
def masked_pooling():
    """A mask of booleans chooses what is averaged and what is replaced by a learned value."""
    fill, matrix = weight((5,), "fill"), weight((5, 4), "matrix")

    def fn(x, mask):
        filled = ops.where(mask, x, fill)
        kept = mask.astype(x.dtype)
        pooled = (x * kept).sum(1) / (kept.sum(1) + 1e-3)
        return ops.matmul(filled, matrix), pooled

    def inputs(batch):
        return normal((2, 3, 5), batch), integers((2, 3, 5), 2, batch).astype("bool")

    return NetCase(fn, inputs, (fill, matrix), grad_position=-1, shares=True)
