"""Networks whose weights take uncommon ways: tied, frozen, normalised, cut, joined, made by other weights."""

from mindspore import Parameter, ParameterTuple, nn, ops

from tests.networks.zoo import NetCase, initialise, integers, normal, normal_inputs, of_cell, register


def weight(shape, name, **kwargs):
    """A reproducible Parameter."""
    value = normal(shape, (len(name), ord(name[0]))) / max(1, shape[0] if shape else 1) ** 0.5
    return Parameter(value, name=name, **kwargs)


class TiedAutoencoder(nn.Cell):
    """The decoder's weights are the encoder's, transposed."""

    def __init__(self):
        super().__init__()
        self.outer = weight((6, 4), "outer")
        self.inner = weight((4, 2), "inner")

    def construct(self, x):
        code = ops.tanh(ops.matmul(ops.tanh(ops.matmul(x, self.outer)), self.inner))
        back = ops.tanh(ops.matmul(code, self.inner.swapaxes(0, 1)))
        return ops.matmul(back, self.outer.swapaxes(0, 1))


@register
def tied_autoencoder():
    return of_cell(TiedAutoencoder(), (3, 6))


class TiedEmbedding(nn.Cell):
    """Hidden values in, scores out; the embedding of fixed prompt tokens is the output projection too."""

    def __init__(self):
        super().__init__()
        self.table = weight((7, 6), "table")
        self.inner = nn.Dense(6, 6)

    def construct(self, x, prompt):
        x = ops.tanh(self.inner(x + ops.gather(self.table, prompt, 0)))
        return ops.matmul(x, self.table.swapaxes(0, 1))


@register
def tied_embedding():
    cell = TiedEmbedding()
    initialise(cell)
    return NetCase(cell, lambda batch: (normal((2, 3, 6), batch), integers((2, 3), 7, batch)),
                   tuple(cell.trainable_params()))


class Lora(nn.Cell):
    """A frozen matrix and a trained one of low rank; the frozen one is in the list of weights as well."""

    def __init__(self):
        super().__init__()
        self.base = weight((6, 6), "base", requires_grad=False)
        self.down = weight((6, 2), "down")
        self.up = weight((2, 6), "up")

    def construct(self, x):
        x = ops.tanh(ops.matmul(x, self.base) + ops.matmul(ops.matmul(x, self.down), self.up))
        return ops.matmul(x, self.base + ops.matmul(self.down, self.up) * 0.5)


@register
def lora():
    cell = Lora()
    return NetCase(cell, normal_inputs((3, 6)), (cell.down, cell.base, cell.up), shares=True)


class WeightNorm(nn.Cell):
    """``g * v / |v|`` per row, and a matrix standardised as a whole."""

    def __init__(self):
        super().__init__()
        self.direction = weight((5, 6), "direction")
        self.length = weight((5, 1), "length")
        self.whole = weight((4, 5), "whole")

    def construct(self, x):
        rows = self.length * self.direction / ops.sqrt(ops.square(self.direction).sum(1, keepdims=True))
        hidden = ops.tanh(ops.matmul(x, rows.swapaxes(0, 1)))
        centred = self.whole - self.whole.mean()
        whole = centred * ops.rsqrt(ops.square(centred).mean() + 1e-5)
        return ops.matmul(hidden, whole.swapaxes(0, 1))


@register
def weight_norm():
    return of_cell(WeightNorm(), (3, 6))


class FusedWeights(nn.Cell):
    """One weight cut into the matrices of query, key and value, two weights joined into one matrix."""

    def __init__(self):
        super().__init__()
        self.qkv = weight((6, 15), "qkv")
        self.left = weight((5, 3), "left")
        self.right = weight((5, 2), "right")

    def construct(self, x):
        query, key, value = ops.split(self.qkv, 5, axis=1)
        scores = ops.softmax(ops.matmul(ops.matmul(x, query), ops.matmul(x, key).swapaxes(1, 2)), -1)
        mixed = ops.matmul(scores, ops.matmul(x, value))
        return ops.matmul(mixed, ops.concat((self.left, self.right), axis=1))


@register
def fused_weights():
    return of_cell(FusedWeights(), (2, 3, 6), shares=True)


class UnevenPieces(nn.Cell):
    """Pieces of one weight of unequal size, one of them unused, one used twice."""

    def __init__(self):
        super().__init__()
        self.all = weight((6, 12), "all")

    def construct(self, x):
        first, _, third = ops.split(self.all, [2, 4, 6], axis=1)
        hidden = ops.tanh(ops.matmul(x, third))
        return ops.concat((ops.matmul(hidden, first), ops.matmul(x, ops.matmul(third, third))), axis=1)


@register
def uneven_pieces():
    return of_cell(UnevenPieces(), (3, 6), shares=True)


class HyperNetwork(nn.Cell):
    """The weights of one layer are computed of the input by another."""

    def __init__(self):
        super().__init__()
        self.maker = nn.Dense(6, 6 * 4)
        self.base = weight((6, 4), "base")

    def construct(self, x):
        made = self.maker(x.mean(0, keep_dims=True)).reshape((6, 4))
        return ops.matmul(x, self.base + 0.1 * ops.tanh(made))


@register
def hyper_network():
    return of_cell(HyperNetwork(), (3, 6), shares=True)


class SharedNorm(nn.Cell):
    """One LayerNorm in two places, and its beta a bias elsewhere."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((6,))
        self.one = nn.Dense(6, 6)
        self.two = nn.Dense(6, 6)

    def construct(self, x):
        x = self.norm(ops.tanh(self.one(x)))
        x = self.norm(ops.tanh(self.two(x)))
        return x * 2 + self.norm.beta


@register
def shared_norm():
    return of_cell(SharedNorm(), (3, 6))


@register
def powers():
    """A matrix used three times in a row, between and beside."""
    one = weight((5, 5), "one")

    def fn(x):
        hidden = ops.tanh(ops.matmul(ops.matmul(ops.matmul(x, one), one), one))
        return hidden * one.sum() + ops.matmul(one, one).mean()

    return NetCase(fn, normal_inputs((3, 5)), (one,))


@register
def three_boundaries():
    """Three weights; the boundaries of the third are those of the other two."""
    first, second, third = (weight((5, 5), name) for name in ("a", "b", "c"))

    def fn(x):
        return ops.matmul(ops.tanh(ops.matmul(x, first + third)), second * third)

    return NetCase(fn, normal_inputs((3, 5)), ParameterTuple((third, first, second)))


@register
def unused_weights():
    """Weights that no output depends on, before, between and after the others, one behind stop_gradient."""
    used = [weight((5, 5), name) for name in ("used", "again")]
    idle = [weight((3, 2), name) for name in ("idle", "i", "stopped")]

    def fn(x):
        return ops.tanh(ops.matmul(x, used[0])) * ops.stop_gradient(idle[2]).sum() + used[1].mean()

    return NetCase(fn, normal_inputs((3, 5)), (idle[0], used[0], idle[1], used[1], idle[2]))


@register
def only_unused_weights():
    idle = [weight((3, 2), name) for name in ("idle", "i")]
    return NetCase(lambda x: ops.tanh(x), normal_inputs((3, 5)), tuple(idle))


@register
def spectral():
    """A scale found by power iteration behind stop_gradient."""
    matrix = weight((5, 4), "matrix")

    def fn(x):
        vector = ops.ones((4, 1))
        for _ in range(3):
            vector = ops.matmul(matrix.swapaxes(0, 1), ops.matmul(matrix, vector))
            vector = ops.stop_gradient(vector / ops.sqrt(ops.square(vector).sum()))
        scale = ops.sqrt(ops.square(ops.matmul(matrix, vector)).sum())
        return ops.matmul(x, matrix / scale)

    return NetCase(fn, normal_inputs((3, 5)), (matrix,))


@register
def scalar_weights():
    """Weights without axes: a temperature and a mixing factor."""
    heat, mix = Parameter(normal((), 3), name="heat"), Parameter(normal((), 4), name="mix")
    matrix = weight((5, 5), "matrix")

    def fn(x):
        share = ops.sigmoid(mix)
        return share * ops.softmax(x * ops.exp(heat), -1) + (1 - share) * ops.matmul(x, matrix)

    return NetCase(fn, normal_inputs((3, 5)), (heat, matrix, mix), shares=True)
