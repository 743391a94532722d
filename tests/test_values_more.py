"""Right values at the edges: other dtypes, tensors without elements or axes, depth, broadcasts, accumulation, nodes
of the user's own in every place."""

import numpy as np
import pytest

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common._grad_function import _Function

import mindspore_zb
from mindspore_zb import forward_and_gradfn

from tests.networks.compare import assert_same, random_sens, unsplit_grads


def tensor(shape, seed=0, dtype=ms.float32):
    """Normal values."""
    rng = np.random.default_rng(seed)
    value = rng.standard_normal(shape)
    if dtype in (ms.complex64, ms.complex128):
        value = value + 1j * rng.standard_normal(shape)
        return Tensor(value).astype(dtype)
    return Tensor(value.astype(np.float64)).astype(dtype)


def weight(shape, name="w", dtype=ms.float32):
    """A Parameter of normal values that depend on its name."""
    return Parameter(tensor(shape, sum(map(ord, name)), dtype), name=name)


def check_split(fn, inputs, weights, tolerance=None, **options):
    """Split, and unsplit, equal MindSpore's own backward; returns dx and dw."""
    out, grad_fn = forward_and_gradfn(fn, *inputs, weights=weights, **options)
    sens = random_sens(out, 3)
    right = unsplit_grads(fn, inputs, weights, sens, **options)
    assert_same(out, right.out, "out", tolerance)
    dx = grad_fn.compute_input_grad(sens)
    dw = grad_fn.compute_weight_grad()
    assert_same((dx, dw), (right.dx, right.dw), "split", tolerance)
    whole = forward_and_gradfn(fn, *inputs, weights=weights, **options)[1](sens)
    assert_same(whole, (right.dx, right.dw), "unsplit", tolerance)
    return dx, dw


@pytest.mark.parametrize("operation", [
    lambda x, w: x + w,
    lambda x, w: x * w * 2.0,
    lambda x, w: x / w,
    lambda x, w: ops.concat((ops.transpose(x, (1, 0)), w * x)),
    lambda x, w: ops.matmul(x.astype(ms.float32), ops.tanh(w.astype(ms.float32))).astype(ms.bfloat16),
], ids=["add", "mul", "div", "concat", "matmul in fp32"])
def test_bfloat16(operation):
    """Only few operations have CPU kernels for bfloat16."""
    w = weight((4, 4), dtype=ms.bfloat16)
    dx, dw = check_split(lambda x: operation(x, w), (tensor((4, 4), 1, ms.bfloat16),), [w])
    assert dx.dtype == dw[0].dtype == ms.bfloat16


@pytest.mark.parametrize("dtype", [ms.float16, ms.float64])
def test_other_floats(dtype):
    one, two = weight((6, 8), "one", dtype), weight((8, 4), "two", dtype)

    def fn(x):
        return ops.softmax(ops.matmul(ops.tanh(ops.matmul(x, one)), two), -1)

    dx, dw = check_split(fn, (tensor((3, 6), 1, dtype),), [two, one])
    assert {dx.dtype, *(grad.dtype for grad in dw)} == {dtype}


def test_two_dtypes_in_one_net():
    """fp64 weights behind casts of an fp32 activation that is used in fp32 and fp16 as well."""
    double, half, single = weight((4, 4), "d", ms.float64), weight((4, 4), "h", ms.float16), weight((4, 4), "s")

    def fn(x):
        hidden = ops.tanh(ops.matmul(x, single))
        return (ops.matmul(hidden.astype(ms.float64), double), ops.matmul(hidden.astype(ms.float16), half),
                hidden * x)

    check_split(fn, (tensor((3, 4)),), [half, single, double], tolerance=5e-3)


@pytest.mark.parametrize("operation", [
    lambda x, w: ops.matmul(x, w),
    lambda x, w: ops.tanh(x + w),
    lambda x, w: ops.real(ops.matmul(x, w)),
    lambda x, w: ops.matmul(ops.conj(x), w) + w,
], ids=["matmul", "tanh", "real", "conj"])
def test_complex(operation):
    """MindSpore differentiates some operations of complex numbers."""
    w = weight((4, 4), dtype=ms.complex64)
    dx, dw = check_split(lambda x: operation(x, w), (tensor((4, 4), 1, ms.complex64),), [w])
    assert dx.dtype == dw[0].dtype == ms.complex64


@pytest.mark.parametrize("fn", [
    lambda x, w: ops.matmul(x, w),
    lambda x, w: ops.matmul(x, w).sum(),
    lambda x, w: ops.matmul(ops.concat((x, ops.ones((2, 3)))), w),
    lambda x, w: (ops.tanh(ops.matmul(x, w)), w.sum()),
], ids=["empty output", "sum of nothing", "joined with others", "beside a scalar"])
def test_no_rows(fn):
    """A micro-batch without rows, as a router may give an expert."""
    w = weight((3, 4))
    dx, _ = check_split(lambda x: fn(x, w), (Tensor(np.zeros((0, 3), np.float32)),), [w])
    assert dx.shape == (0, 3)


def test_weight_without_elements():
    w, empty = weight((3, 4)), Parameter(Tensor(np.zeros((3, 0), np.float32)), name="empty")
    _, dw = check_split(lambda x: ops.matmul(x, ops.concat((w, empty), axis=1)), (tensor((2, 3)),), [empty, w])
    assert dw[0].shape == (3, 0)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_scalars(shape):
    """Inputs, weights and outputs of one element, with and without axes."""
    w, u = weight(shape), weight((), "u")
    dx, dw = check_split(lambda x: ops.sin(x * w) + u, (tensor(shape),), [u, w])
    assert dx.shape == shape and dw[1].shape == shape and dw[0].shape == ()


@pytest.mark.slow
def test_deep_chain_of_layers():
    """300 layers, 100 weights, each used three times far apart: 600 nodes in a row."""
    weights = [weight((3, 3), f"w{number}") for number in range(100)]

    def fn(x):
        for _ in range(3):
            for matrix in weights:
                x = ops.tanh(ops.matmul(x, matrix))
        return x

    check_split(fn, (tensor((2, 3)),), weights)


def test_wide_fan_out():
    """One activation with 60 users, each with a weight of its own: 60 gradients to add."""
    weights = [weight((4,), f"w{number}") for number in range(60)]

    def fn(x):
        hidden = ops.tanh(x)
        total = hidden
        for factor in weights:
            total = total + hidden * factor
        return total

    _, dw = check_split(fn, (tensor((3, 4)),), weights)
    assert len(dw) == 60


@pytest.mark.parametrize("shape", [(), (1,), (64,), (1, 64), (48, 1), (1, 48, 1), (2, 1, 1, 64), (2, 3, 48, 64)],
                         ids=str)
def test_broadcasts(shape):
    """A weight against 18,432 elements; its gradient is summed over all that it was broadcast to."""
    w, u = weight(shape), weight(shape, "u")
    dx, dw = check_split(lambda x: ops.tanh(x * w) + u, (tensor((2, 3, 48, 64)),), [w, u], tolerance=1e-4)
    assert dw[0].shape == dw[1].shape == shape


def test_input_smaller_than_weight():
    """Here dx is the one that is summed."""
    w = weight((5, 6, 7))
    dx, _ = check_split(lambda x, y: ops.sin(x * w) - y, (tensor((7,)), tensor((6, 1), 1)), [w], grad_position=-1)
    assert dx[0].shape == (7,) and dx[1].shape == (6, 1)


def test_gradients_of_micro_batches_sum_to_that_of_the_whole():
    """Accumulated in place over four micro-batches, half of them in flight at a time."""
    one, two = weight((6, 8), "one"), weight((8, 4), "two")

    def fn(x):
        return ops.matmul(ops.tanh(ops.matmul(x, one)), two)

    whole = tensor((8, 6))
    sens = tensor((8, 4), 1)
    grad_fn = forward_and_gradfn(fn, whole, weights=[one, two])[1]
    right = grad_fn(sens)[1]
    buffers = [Parameter(ops.zeros(grad.shape), name=f"buffer{place}") for place, grad in enumerate(right)]
    flight = []
    for start in range(0, 8, 2):
        grad_fn = forward_and_gradfn(fn, whole[start:start + 2], weights=[one, two])[1]
        grad_fn.compute_input_grad(sens[start:start + 2])
        flight.append(grad_fn)
        if len(flight) == 2:
            for grad_fn in flight[::-1]:
                for buffer, grad in zip(buffers, grad_fn.compute_weight_grad()):
                    ops.assign_add(buffer, grad)
            flight = []
    assert_same(tuple(buffer.value() for buffer in buffers), right)


def summed_like(whole, w):
    """The gradient of a weight that was broadcast over the rows."""
    return whole if whole.shape == w.shape else whole.sum(0, keepdims=len(w.shape) == len(whole.shape))


@pytest.mark.parametrize("make_integers", [
    lambda x: ops.argmax(x, dim=-1),
    lambda x: ops.topk(x, 2)[1] % 3,
    lambda x: ops.abs((x * 10).astype(ms.int32)) % 3,
], ids=["argmax", "topk", "cast"])
def test_input_reached_through_integers_only(make_integers):
    """dx passes there without a gradient. An unsplit run, after which MindSpore forgets that way, changes nothing."""
    w, bias, table = weight((2, 2)), weight((2,), "b"), tensor((3, 2), 9)

    def fn(x):
        rows = ops.gather(table, make_integers(x), 0)
        return ops.matmul(ops.tanh(rows), w) + bias, rows

    x = tensor((4, 3))
    dx, dw = check_split(fn, (x,), [w, bias])
    assert not dx.asnumpy().any() and dw[0].asnumpy().any()
    out, grad_fn = forward_and_gradfn(fn, x, weights=[w, bias])
    sens = random_sens(out, 3)
    for _ in range(2):
        assert_same(grad_fn(sens, keep_graph=True), (dx, dw), "unsplit")
    assert_same(grad_fn.compute_input_grad(sens), dx, "dx after unsplit runs")
    for keep_graph in (True, False):
        assert_same(grad_fn.compute_weight_grad(keep_graph), dw, "dw after unsplit runs")


class HalfGradient(nn.Cell):
    """``tanh(x) * w`` whose ``bprop`` halves the gradient of ``x``."""

    def construct(self, x, w):
        return ops.tanh(x) * w

    def bprop(self, x, w, out, dout):
        inner = ops.tanh(x)
        whole = dout * inner
        return dout * w * (1 - inner * inner) * 0.5, summed_like(whole, w)


HALF_GRADIENT = HalfGradient()


class DoubleGradient(_Function):
    """``x * w`` whose backward doubles the gradient of ``w``."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, dout):
        x, w = ctx.saved_tensors
        whole = 2 * dout * x
        return dout * w, summed_like(whole, w)


OWN_NODES = {"bprop": HALF_GRADIENT, "_Function": lambda *args: DoubleGradient.apply(*args),
             "bound apply": DoubleGradient.apply}
"""The last one is bound before the forward, so that nothing can stand in for it."""


@pytest.mark.parametrize("dtype", [ms.float32, ms.float16])
@pytest.mark.parametrize("shape", [(3, 4), (4,), (1, 4)], ids=str)
@pytest.mark.parametrize("own", OWN_NODES.values(), ids=list(OWN_NODES))
def test_own_backward_shares_a_weight_with_a_node_below(own, shape, dtype):
    """The gradient that is caught for the weight keeps the weight's shape and dtype."""
    w = weight(shape, dtype=dtype)
    check_split(lambda x: own(x * w, w), (tensor((3, 4), 1, dtype),), [w])


class WholeGradient(nn.Cell):
    """``x * w`` whose ``bprop`` leaves it to MindSpore to sum over what ``w`` was broadcast to."""

    def construct(self, x, w):
        return x * w

    def bprop(self, x, w, out, dout):
        return dout * w, dout * x


def test_own_backward_leaves_the_sum_to_mindspore():
    w, own = weight((4,)), WholeGradient()
    _, dw = check_split(lambda x: ops.tanh(own(x * w, w)), (tensor((3, 4)),), [w])
    assert dw[0].shape == (4,)


@pytest.mark.parametrize("own", OWN_NODES.values(), ids=list(OWN_NODES))
def test_own_backward_everywhere(own):
    """At the root, above another one, on the weight side, twice with the same weight; the bare result dies early."""
    w, u = weight((3, 4)), weight((3, 4), "u")

    def fn(x):
        made = own(w, u)
        low = own(own(x, made), w)
        return own(ops.tanh(low), own(made, w)), low

    check_split(fn, (tensor((3, 4)),), [u, w])


@pytest.mark.parametrize("free_early", [True, False])
@pytest.mark.parametrize("own", OWN_NODES.values(), ids=list(OWN_NODES))
def test_own_backward_below_a_matmul(own, free_early):
    """Where dx frees such a node in a pass of its own."""
    w, u, scale = weight((4, 4)), weight((4, 4), "u"), weight((4,), "scale")

    def fn(x):
        for matrix in (w, u):
            x = ops.matmul(own(ops.silu(x), scale), matrix)
        return x

    with mindspore_zb.options(free_early=free_early):
        check_split(fn, (tensor((3, 4)),), [u, w, scale])


class Halves(_Function):
    """Two results of different shape and dtype, one of them integers."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w, (x[:1] * 2).astype(ms.float16), ops.argmax(x, dim=-1)

    @staticmethod
    def backward(ctx, first, second, _):
        x, w = ctx.saved_tensors
        return first * w + ops.concat((second.astype(ms.float32) * 2, ops.zeros((2, 4)))), first * x


def test_function_with_several_results():
    w = weight((3, 4))

    def fn(x):
        first, second, places = Halves.apply(ops.tanh(x), w)
        return first * w, second, places

    check_split(fn, (tensor((3, 4)),), [w], tolerance=5e-3)


def test_function_outside_a_recorded_forward_is_untouched():
    """What stands in for ``_Function.apply`` while ``fn`` runs is gone afterwards, also after an error."""
    before = vars(_Function)["apply"]
    w = weight((3, 4))
    forward_and_gradfn(lambda x: DoubleGradient.apply(x, w), tensor((3, 4)), weights=[w])
    with pytest.raises(ZeroDivisionError):
        forward_and_gradfn(lambda x: 1 // 0, tensor((3, 4)), weights=[w])
    assert vars(_Function)["apply"] is before
