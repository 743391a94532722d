"""The guard sees what no hook for saved tensors does: compiled code, custom backwards, recompute."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.common._grad_function import _Function

from mindspore_zb import forward_and_gradfn, options
from mindspore_zb.errors import ChangedTensorError
from mindspore_zb.memory import guard

from tests.helpers import assert_grads_close, assert_same_bits, reference, tensor, weight


class Product(_Function):
    """A matmul whose context keeps one factor by itself."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return ops.matmul(x, factor)

    @staticmethod
    def backward(ctx, grad):
        return ops.matmul(grad, ctx.factor.T), ops.matmul(ctx.saved_tensors[0].T, grad)


class Layer(nn.Cell):
    """One weight, and a statistic that each training forward changes."""

    def __init__(self):
        super().__init__()
        self.w = weight(3, 3, name="w")
        self.norm = nn.BatchNorm1d(3)

    def construct(self, x):
        return ops.tanh(self.norm(ops.matmul(x, self.w)))


class Compiled(Layer):
    """The same, compiled."""

    @ms.jit
    def construct(self, x):
        return ops.tanh(self.norm(ops.matmul(x, self.w)))


class Custom(nn.Cell):
    """A backward that reads the weight."""

    def __init__(self):
        super().__init__()
        self.w = weight(3, 3, name="w")

    def construct(self, x):
        return ops.matmul(x, self.w)

    def bprop(self, x, _out, dout):
        return (ops.matmul(dout, self.w.T),)


class Net(nn.Cell):
    """A block, and something behind it."""

    def __init__(self, block, call=None):
        super().__init__()
        self.block = block
        self.call = call

    def construct(self, x):
        return (self.block(x) if self.call is None else self.call(self.block, x)) * 1.0


def recomputed(block, x):
    return ms.recompute(block, x)


def recomputed_without_reentrance(block, x):
    return ms.recompute(block, x, use_reentrant=False)


def with_recompute_set():
    block = Layer()
    block.recompute()
    return Net(block)


def by_function():
    return Net(Layer(), lambda block, x: Product.apply(x, block.w))


KINDS = {
    "@jit block": (lambda: Net(Compiled()), r"Compiled, MatMul\w* \(compiled\)"),
    "@jit node": (lambda: Net(Compiled()), r"Net\.block \(Compiled\), @jit"),
    "graph engine": (Compiled, r"Compiled, MatMul\w* \(compiled\)"),
    "custom bprop": (lambda: Net(Custom()), r"Net\.block \(Custom\), custom bprop"),
    "_Function": (by_function, r"Net, _Function Product|Net, Product"),
    "recompute": (lambda: Net(Layer(), recomputed), r"Net\.block \(Layer\), recompute"),
    "recompute, not reentrant": (lambda: Net(Layer(), recomputed_without_reentrance),
                                 r"Net\.block \(Layer\), recompute"),
    "Cell.recompute": (with_recompute_set, r"Net\.block \(Layer\), recompute"),
}
CHANGES = {
    "assign": lambda value: ops.assign(value, ops.full_like(value, 2.0)),
    "assign_value": lambda value: value.assign_value(ops.full_like(value, 3.0)),
}


def forward(name, x):
    net = KINDS[name][0]().set_train()
    found = next(parameter for parameter in net.trainable_params() if parameter.name.endswith("w"))
    with options(split_blocks=name != "@jit node"):
        return net, found, forward_and_gradfn(net, x, weights=[found])[1]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", KINDS)
def test_a_changed_weight(name, change):
    with guard():
        _, found, grad_fn = forward(name, tensor(5, 3))
        CHANGES[change](found)
        with pytest.raises(ChangedTensorError,
                           match=rf"the weight (block\.)?w, saved for the backward of {KINDS[name][1]}"):
            grad_fn()


@pytest.mark.parametrize("name", KINDS)
def test_a_changed_input(name):
    x = tensor(5, 3)
    with guard():
        net, _, grad_fn = forward(name, x)
    assert net.trainable_params()  # it is alive still
    x[0] = 9.0
    with pytest.raises(ChangedTensorError, match=rf"shape \(5, 3\) and dtype Float32, saved for the backward of "
                                                 rf"{KINDS[name][1]}"):
        grad_fn.compute_input_grad()
        grad_fn.compute_weight_grad()


@pytest.mark.parametrize("name", KINDS)
def test_silent_with_two_micro_batches_in_flight(name):
    """Moving statistics change in between, and no false alarm comes of it; values are those without a guard."""
    inputs = [tensor(5, 3, seed=seed) for seed in range(2)]

    def run():
        net = KINDS[name][0]().set_train()
        found = [parameter for parameter in net.trainable_params() if parameter.name.endswith("w")]
        with options(split_blocks=name != "@jit node"):
            flights = [forward_and_gradfn(net, x, weights=found)[1] for x in inputs]
        return [(grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()) for grad_fn in flights]

    without = run()
    with guard() as watch:
        found = run()
    assert_same_bits(found, without)
    assert watch.checked >= 2


@pytest.mark.parametrize("name", [name for name in KINDS if name != "graph engine"])
def test_mindspores_own_value_and_grad(name):
    net, x = KINDS[name][0]().set_train(), tensor(5, 3)
    found = next(parameter for parameter in net.trainable_params() if parameter.name.endswith("w"))

    def loss(value):
        result = net(value).sum()
        if changes:
            ops.assign(found, ops.full_like(found, 2.0))
        return result

    changes = False
    with guard() as watch:
        ms.value_and_grad(loss, 0, [found])(x)
        assert watch.checked
        changes = True
        with pytest.raises(ChangedTensorError, match="the weight (block.)?w"):
            ms.value_and_grad(loss, 0, [found])(x)


def test_an_output_that_the_compiled_backward_reads():
    with guard():
        out, grad_fn = forward_and_gradfn(ms.jit(lambda_tanh), tensor(5, 3))
        out[0] = 9.0
        with pytest.raises(ChangedTensorError, match=r"Tanh \(compiled\)"):
            grad_fn.compute_input_grad()


def lambda_tanh(x):
    return ops.tanh(x)


def test_a_weight_between_dx_and_dw_of_compiled_code_that_dw_does_not_read():
    """The graph engine's dw of a matmul needs the input and no weight: a change in between is right, and allowed."""
    net, x = Compiled(), tensor(5, 3)
    expected = reference(Net(net), (x,), [net.w])
    with guard():
        _, grad_fn = forward_and_gradfn(net, x, weights=[net.w])
        assert grad_fn.engine == "graph"
        dx = grad_fn.compute_input_grad()
        ops.assign(net.w, ops.full_like(net.w, 2.0))
        dw = grad_fn.compute_weight_grad()
    assert_grads_close((dx, dw), expected)


def test_compiled_blocks_are_still_split_under_a_guard():
    net, x = Net(Compiled()), tensor(5, 3)
    with guard():
        _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        assert np.any([boundary.name == "Compiled" for group in grad_fn.weight_groups for boundary in group.boundaries])
