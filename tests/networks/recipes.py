"""The ways in which a random program grows. Each recipe takes a ``Builder``, and does nothing where it does not fit."""

from typing import Callable, List, Tuple

import numpy as np
from mindspore import Tensor

from tests.networks.generator import Builder

RECIPES: List[Tuple[Callable[[Builder], None], float]] = []


def recipe(weight: float) -> Callable[[Callable[[Builder], None]], Callable[[Builder], None]]:
    """Register, to be chosen in proportion to ``weight``."""
    def register(function: Callable[[Builder], None]) -> Callable[[Builder], None]:
        RECIPES.append((function, weight))
        return function
    return register


@recipe(8)
def matmul(builder):
    """An activation times a matrix of weights, stored either way."""
    value = builder.pick()
    prefix, width = builder.shapes[value][:-1], builder.shapes[value][-1]
    if builder.chance(0.7):
        matrix = builder.matrix(width)
        out = builder.step("matmul", value, matrix, shape=(*prefix, builder.shapes[matrix][1]), magnitude=3.0)
    else:
        matrix = builder.matrix(builder.width(), width)
        out = builder.step("linear", value, matrix, shape=(*prefix, builder.shapes[matrix][0]), magnitude=3.0)
    if builder.chance(0.4):
        _bias(builder, out)


def _bias(builder, value):
    shape = builder.shapes[value]
    bias = builder.vector(shape[-1])
    op = "bias_add" if len(shape) == 2 and builder.chance(0.4) else "add"
    return builder.step(op, value, bias, magnitude=builder.magnitude[value] + 1)


@recipe(6)
def unary(builder):
    """An elementwise function, or a softmax."""
    bounded = ("tanh", "sigmoid", "sin", "cos", "erf", "exp_below_one", "softmax")
    others = ("silu", "gelu", "softplus", "relu", "abs", "neg", "log_softmax")
    value = builder.pick()
    if builder.chance(0.15):
        builder.step("square", value, magnitude=builder.magnitude[value] ** 2)
    elif builder.chance(0.5):
        builder.step(str(builder.rng.choice(bounded)), value, magnitude=1.0)
    else:
        builder.step(str(builder.rng.choice(others)), value, magnitude=builder.magnitude[value] + 1)


@recipe(5)
def binary(builder):
    """Two activations of one shape."""
    one = builder.pick()
    other = builder.partner(one)
    sizes = builder.magnitude[one], builder.magnitude[other]
    op = str(builder.rng.choice(("add", "sub", "mul", "maximum", "minimum", "safe_div", "where_mask")))
    magnitude = {"add": sum(sizes), "sub": sum(sizes), "mul": sizes[0] * sizes[1]}.get(op, max(sizes))
    mask = {"mask": Tensor(builder.rng.random(builder.shapes[one]) < 0.5)} if op == "where_mask" else {}
    if op in ("maximum", "minimum") and one == other:
        op = "add"  # the gradient where both are equal is a matter of taste
        magnitude = sum(sizes)
    builder.step(op, one, other, magnitude=magnitude, **mask)


@recipe(3)
def broadcast(builder):
    """A factor or a bias of fewer axes: of the last axis, of the rows, or a scalar."""
    value = builder.pick()
    shape = builder.shapes[value]
    kind = int(builder.rng.integers(3))
    if kind == 0:
        weight = builder.vector(shape[-1])
    elif kind == 1:
        weight = builder.new_value((shape[-2], 1), 1.5)
        builder.weights.append(weight)
    else:
        weight = builder.new_value((), 1.5)
        builder.weights.append(weight)
    builder.step(str(builder.rng.choice(("add", "mul", "sub"))), value, weight,
                 magnitude=builder.magnitude[value] * 1.5)


@recipe(3)
def norm(builder):
    """LayerNorm with weights that may be shared, or RMSNorm by hand."""
    value = builder.pick()
    width = builder.shapes[value][-1]
    if width < 3:
        return
    gamma = builder.vector(width)
    if builder.chance(0.6):
        builder.step("layer_norm", value, gamma, builder.vector(width), magnitude=3.0)
    else:
        builder.step("rms_norm", value, gamma, magnitude=3.0)


@recipe(3)
def residual(builder):
    """``x + tanh(x @ w)``"""
    value = builder.pick()
    width = builder.shapes[value][-1]
    inner = builder.step("matmul", value, builder.matrix(width, width), magnitude=3.0)
    inner = builder.step("tanh", inner, magnitude=1.0)
    builder.step("add", value, inner, magnitude=builder.magnitude[value] + 1)


@recipe(2)
def attention(builder):
    """Scores of two activations, softmax, times a third."""
    query = builder.pick(axes=3)
    if query is None:
        return
    key, value = builder.partner(query), builder.partner(query)
    rows, length, width = builder.shapes[query]
    scores = builder.step("scores", query, key, shape=(rows, length, length), magnitude=3.0,
                          scale=round(float(width) ** -0.5, 3))
    scores = builder.step("softmax", scores, magnitude=1.0)
    builder.step("bmm", scores, value, shape=(rows, length, width), magnitude=builder.magnitude[value])


@recipe(4)
def pieces(builder):
    """Split in unequal pieces, chunk, unbind or topk; later steps use some of the pieces."""
    value = builder.pick()
    shape = builder.shapes[value]
    prefix, width = shape[:-1], shape[-1]
    kind = str(builder.rng.choice(("split", "chunk", "unbind", "topk"), p=(0.45, 0.15, 0.15, 0.25)))
    if kind == "unbind" and len(shape) == 3:
        outs = builder.steps_out("unbind", [value], [(shape[0], width)] * shape[1], None, True, {})
    elif kind == "topk" and width > 2:
        first, second = builder.steps_out("topk", [value], [(*prefix, 2)] * 2, None, False, {"count": 2})
        builder.integers.append(second)
        builder.activations.append(first)
        return
    elif kind == "chunk" and width % 2 == 0:
        outs = builder.steps_out("chunk", [value], [(*prefix, width // 2)] * 2, None, True, {"pieces": 2})
    elif width > 2:
        cuts = [1, width - 1] if builder.chance(0.5) or width < 4 else [1, 2, width - 3]
        outs = builder.steps_out("split", [value], [(*prefix, cut) for cut in cuts], None, True,
                                 {"sizes": tuple(cuts)})
    else:
        return
    if builder.chance(0.5):  # let the pieces meet again, in another order
        outs = [builder.step("sin", outs[0], magnitude=1.0), *outs[1:]]
        joined = sum(builder.shapes[out][-1] for out in outs)
        builder.step("concat", *reversed(outs), shape=(*builder.shapes[outs[0]][:-1], joined))


@recipe(2)
def join(builder):
    """Concat or stack."""
    one = builder.pick()
    other = builder.partner(one)
    shape = builder.shapes[one]
    if len(shape) == 2 and builder.chance(0.5):
        builder.step("stack", one, other, shape=(shape[0], 2, shape[1]), magnitude=LARGE)
    elif shape[-1] <= 12:
        builder.step("concat", one, other, shape=(*shape[:-1], 2 * shape[-1]), magnitude=LARGE)


LARGE = 4.0


@recipe(5)
def weight_branch(builder):
    """Something computed of weights alone, to be used like a weight."""
    matrix = builder.matrix(builder.width())
    rows, columns = builder.shapes[matrix]
    kind = str(builder.rng.choice(("tanh", "unit_rows", "transpose", "product", "split", "concat", "mul",
                                   "stop_gradient"), p=(0.15, 0.15, 0.15, 0.15, 0.15, 0.1, 0.1, 0.05)))
    if kind == "product":
        other = builder.matrix(columns)
        outs = [builder.step(kind, matrix, other, shape=(rows, builder.shapes[other][1]), keep=False)]
    elif kind == "split":
        if columns < 2:
            return
        outs = builder.steps_out(kind, [matrix], [(rows, 1), (rows, columns - 1)], None, False,
                                 {"sizes": (1, columns - 1)})
    elif kind == "concat":
        other = builder.matrix(rows)
        outs = [builder.step(kind, matrix, other, shape=(rows, columns + builder.shapes[other][1]), keep=False)]
    elif kind == "mul":
        outs = [builder.step(kind, matrix, builder.vector(columns), keep=False)]
    else:
        shape = (columns, rows) if kind == "transpose" else (rows, columns)
        outs = [builder.step(kind, matrix, shape=shape, keep=False)]
    builder.matrices += outs
    _use(builder, outs[-1])


def _use(builder, matrix):
    """Multiply an activation that fits, if there is one."""
    rows, columns = builder.shapes[matrix]
    fitting = [number for number in builder.activations if builder.shapes[number][-1] == rows]
    if fitting:
        value = builder.bounded(fitting[-1])
        builder.step("matmul", value, matrix, shape=(*builder.shapes[value][:-1], columns), magnitude=3.0)


@recipe(3)
def embedding(builder):
    """Rows of a weight by constant or by computed integers: an activation that depends on weights only."""
    table = builder.matrix(builder.width())
    width = builder.shapes[table][1]
    if builder.integers and builder.chance(0.8):
        picks = int(builder.rng.choice(builder.integers))
        if len(builder.shapes[picks]) < 3:
            builder.step("embed_where", table, picks, shape=(*builder.shapes[picks], width), magnitude=2.0)
        return
    prefix = builder.shapes[builder.pick()][:-1]
    ids = builder.rng.integers(0, builder.shapes[table][0], prefix)
    builder.step("embed", table, shape=(*prefix, width), magnitude=2.0, ids=Tensor(ids.astype(np.int32)))


@recipe(1)
def weight_summary(builder):
    """A scalar of weights alone, for a regularising output."""
    builder.step("mean_all", builder.step("square", builder.matrix(builder.width()), keep=False), shape=())


@recipe(3)
def integers(builder):
    """Integers computed from an activation."""
    value = builder.pick()
    shape = builder.shapes[value]
    if builder.chance(0.5):
        builder.integers.append(builder.step("argmax", value, shape=shape[:-1], keep=False))
    else:
        builder.integers.append(builder.step("to_int", value, keep=False))


@recipe(1)
def detach(builder):
    """stop_gradient"""
    builder.step("stop_gradient", builder.pick())


@recipe(2)
def reduction(builder):
    """Means, sums and maxima, also to a scalar."""
    value = builder.pick()
    shape = builder.shapes[value]
    kind = str(builder.rng.choice(("mean_last", "sum_scaled", "max_last", "mean_all")))
    if kind == "mean_last":
        keep = builder.chance(0.5)
        builder.step(kind, value, shape=(*shape[:-1], 1) if keep else shape[:-1], keep=len(shape) == 3, keep_axis=keep)
    elif kind == "sum_scaled":
        axis = int(builder.rng.integers(len(shape)))
        builder.step(kind, value, shape=shape[:axis] + shape[axis + 1:], axis=axis, scale=0.5)
    elif kind == "max_last":
        builder.step(kind, value, shape=shape[:-1])
    else:
        builder.step(kind, value, shape=())


@recipe(2)
def rearrange(builder):
    """Views and copies that move values only."""
    value = builder.pick()
    shape = builder.shapes[value]
    kind = str(builder.rng.choice(("swap_last", "merge_rows", "narrow", "flip", "cumsum_scaled")))
    if kind == "swap_last" and len(shape) == 3:
        builder.step(kind, value, shape=(shape[0], shape[2], shape[1]))
    elif kind == "merge_rows" and len(shape) == 3:
        builder.step(kind, value, shape=(shape[0] * shape[1], shape[2]))
    elif kind == "narrow" and shape[-1] > 2:
        builder.step(kind, value, shape=(*shape[:-1], shape[-1] - 1), start=1, stop=shape[-1])
    elif kind == "cumsum_scaled":
        builder.step(kind, value, scale=0.5)
    else:
        builder.step("flip", value)


@recipe(1.5)
def prelu(builder):
    """PReLU with slopes that may be shared."""
    value = builder.pick()
    builder.step("prelu", value, builder.vector(builder.shapes[value][1]), magnitude=builder.magnitude[value] * 1.5)


@recipe(1.5)
def custom(builder):
    """A backward of one's own: a Cell's ``bprop`` or a ``_Function``."""
    value = builder.pick()
    op = "custom_bprop" if builder.chance(0.5) else "custom_function"
    builder.step(op, value, builder.vector(builder.shapes[value][-1]), magnitude=1.5)


@recipe(0.7)
def hook(builder):
    """A tensor hook that changes the gradient."""
    builder.step("hooked", builder.pick())
