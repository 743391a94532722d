"""What a step of a random program does: every operation takes the values of its arguments and its attributes."""

from typing import Any, Callable, Dict

from mindspore import nn, ops
from mindspore.common._grad_function import _Function

OPERATIONS: Dict[str, Callable[..., Any]] = {}


def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register under the function's name."""
    OPERATIONS[function.__name__] = function
    return function


for _name in ("tanh", "sigmoid", "silu", "gelu", "sin", "cos", "softplus", "relu", "abs", "neg", "erf", "square",
              "maximum", "minimum", "add", "sub", "mul", "matmul", "bmm", "stop_gradient"):
    OPERATIONS[_name] = getattr(ops, _name)


@operation
def safe_div(x, y):
    """A quotient whose denominator is at least one."""
    return x / (y * y + 1.0)


@operation
def exp_below_one(x):
    """``exp`` of what is never positive."""
    return ops.exp(-ops.abs(x))


@operation
def softmax(x):
    """Over the last axis."""
    return ops.softmax(x, -1)


@operation
def log_softmax(x):
    """Over the last axis."""
    return ops.log_softmax(x, -1)


@operation
def where_mask(x, y, *, mask):
    """``x`` where the constant mask holds, else ``y``."""
    return ops.where(mask, x, y)


@operation
def linear(x, w):
    """A weight stored as (out, in)."""
    return ops.matmul(x, ops.transpose(w, (1, 0)))


@operation
def bias_add(x, b):
    """``BiasAdd`` of a matrix."""
    return ops.bias_add(x, b)


@operation
def scores(x, y, *, scale):
    """Products of all pairs of rows."""
    return ops.bmm(x, ops.transpose(y, (0, 2, 1))) * scale


@operation
def layer_norm(x, gamma, beta):
    """Over the last axis, one kernel for all three gradients."""
    return _LAYER_NORM(x, gamma, beta)[0]


_LAYER_NORM = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1)


@operation
def rms_norm(x, gamma):
    """Over the last axis, by hand."""
    return x * ops.rsqrt((x * x).mean(-1, True) + 1e-3) * gamma


@operation
def prelu(x, slopes):
    """One slope per entry of axis 1."""
    return ops.prelu(x, slopes)


@operation
def split(x, *, sizes):
    """Pieces of unequal size along the last axis."""
    return ops.split(x, list(sizes), axis=-1)


@operation
def unbind(x):
    """One piece per entry of axis 1."""
    return ops.unbind(x, 1)


@operation
def chunk(x, *, pieces):
    """Pieces along the last axis."""
    return ops.chunk(x, pieces, axis=-1)


@operation
def topk(x, *, count):
    """The largest values of the last axis, and where they are."""
    return ops.topk(x, count)


@operation
def concat(*values):
    """Along the last axis."""
    return ops.concat(values, axis=-1)


@operation
def stack(*values):
    """Along a new axis 1."""
    return ops.stack(values, axis=1)


@operation
def mean_last(x, *, keep_axis):
    """Mean over the last axis."""
    return x.mean(-1, keep_axis)


@operation
def sum_scaled(x, *, axis, scale):
    """Sum over one axis."""
    return ops.sum(x, axis) * scale


@operation
def max_last(x):
    """Largest entry of the last axis."""
    return ops.max(x, -1)[0]


@operation
def mean_all(x):
    """A scalar."""
    return x.mean()


@operation
def swap_last(x):
    """Swap the last two axes."""
    return ops.transpose(x, (0, 2, 1))


@operation
def merge_rows(x):
    """Three axes to two."""
    return x.reshape((-1, x.shape[-1]))


@operation
def narrow(x, *, start, stop):
    """A slice of the last axis."""
    return ops.narrow(x, -1, start, stop - start)


@operation
def flip(x):
    """Reverse the last axis."""
    return ops.flip(x, (-1,))


@operation
def cumsum_scaled(x, *, scale):
    """Running sum over the last axis."""
    return ops.cumsum(x, -1) * scale


@operation
def argmax(x):
    """Integers, without a gradient."""
    return ops.argmax(x, dim=-1)


@operation
def to_int(x):
    """Integers, without a gradient."""
    return (x * 10).astype("int32")


@operation
def embed(table, *, ids):
    """Rows of a weight."""
    return ops.gather(table, ids, 0)


@operation
def embed_where(table, picks):
    """Rows of a weight chosen by computed integers."""
    return ops.gather(table, picks % table.shape[0], 0)


@operation
def unit_rows(w):
    """Weight normalisation."""
    return w / ops.sqrt((w * w).sum(-1, keepdims=True) + 1e-3)


@operation
def product(w, u):
    """A low-rank weight."""
    return ops.matmul(w, u)


@operation
def transpose(w):
    """A transposed weight."""
    return ops.transpose(w, (1, 0))


class _ScaledTanh(nn.Cell):
    """``tanh(x) * gamma`` with a backward of its own."""

    def construct(self, x, gamma):
        return ops.tanh(x) * gamma

    def bprop(self, x, gamma, out, dout):
        """Half of the true gradient of ``x``: a value no automatic backward gives."""
        inner = ops.tanh(x)
        whole = dout * inner
        return dout * gamma * (1 - inner * inner) * 0.5, whole.reshape((-1, whole.shape[-1])).sum(0)


_SCALED_TANH = _ScaledTanh()


@operation
def custom_bprop(x, gamma):
    """A Cell with a ``bprop``."""
    return _SCALED_TANH(x, gamma)


class _ScaledSine(_Function):
    """``sin(x) * gamma`` with a backward of its own."""

    @staticmethod
    def forward(ctx, x, gamma):
        ctx.save_for_backward(x, gamma)
        return ops.sin(x) * gamma

    @staticmethod
    def backward(ctx, dout):
        """Twice the true gradient of ``gamma``."""
        x, gamma = ctx.saved_tensors
        whole = 2.0 * dout * ops.sin(x)
        return dout * gamma * ops.cos(x), whole.reshape((-1, whole.shape[-1])).sum(0)


@operation
def custom_function(x, gamma):
    """A ``_Function``."""
    return _ScaledSine.apply(x, gamma)


@operation
def hooked(x):
    """A hook that halves the gradient."""
    value = x * 1.0
    if value._grad_node is not None:  # MindSpore refuses a hook where no gradient can come by
        value.register_hook(lambda grad: grad * 0.5)
    return value
