"""Uses that once gave wrong numbers or odd errors: reused buffers, calls from hooks and threads, copies, nesting."""

import copy
import threading

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.common._grad_function import _Function

from mindspore_zb import forward_and_gradfn, zero_bubble
from mindspore_zb.api import run_forward
from mindspore_zb.errors import ArgumentTypeError, StateError, UnsupportedError

from .helpers import assert_grads_close, check, reference, tensor, weight


def test_a_receive_buffer_may_be_used_again_before_dw():
    net, buffer = nn.Dense(4, 4), ops.zeros((3, 4))
    flights = [forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())[1] for _ in range(2)]
    for number, grad_fn in enumerate(flights):
        buffer.copy_(ops.ones((3, 4)) * (number + 1))
        grad_fn.compute_input_grad(buffer)
    assert [float(grad_fn.compute_weight_grad()[1][0]) for grad_fn in flights] == [3, 6]


@pytest.mark.parametrize("call", ["release", "compute_input_grad", "__call__"])
def test_a_hook_cannot_call_the_running_object(call):
    w, refused, made = weight(4, 4, name="w"), [], []

    def fn(x):
        hidden = x @ w

        def hook(grad):
            with pytest.raises(StateError, match="is running"):
                getattr(made[0], call)()
            refused.append(call)
            return grad

        hidden.register_hook(hook)
        return ops.silu(hidden)

    made.append(forward_and_gradfn(fn, tensor(3, 4), weights=[w])[1])
    got = made[0].compute_input_grad(), made[0].compute_weight_grad()
    assert refused == [call]
    assert_grads_close(got, reference(lambda x: ops.silu(x @ w), [tensor(3, 4)], [w]))


def test_two_threads_with_one_object_give_one_result_and_one_error():
    w, results = weight(4, 4, name="w"), []
    grad_fn = forward_and_gradfn(lambda x: ops.silu(x @ w), tensor(3, 4), weights=[w])[1]

    def run():
        try:
            results.append(grad_fn.compute_input_grad())
        except StateError:
            results.append(None)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (right,) = [result for result in results if result is not None]
    assert_grads_close(right, reference(lambda x: ops.silu(x @ w), [tensor(3, 4)], [w])[0])


def test_a_copy_of_a_decorated_cell_runs_itself():
    copied = copy.deepcopy(zero_bubble(nn.Dense(4, 4)))
    for parameter in copied.trainable_params():
        parameter.set_data(ops.zeros_like(parameter))
    assert float(copied.forward_and_gradfn(tensor(3, 4))[0].abs().max()) == 0


def test_methods_are_not_decorated():
    with pytest.raises(ArgumentTypeError, match="is a method: decorate its class"):
        class Stage:
            @zero_bubble
            def step(self, x):
                return x


class Inside(_Function):
    """silu whose backward asks MindSpore for a gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return ops.silu(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return ms.grad(lambda value: (ops.silu(value) * grad).sum())(x)


def test_gradients_may_be_asked_for_inside_a_backward():
    w, u = weight(4, 4, name="w"), weight(4, 4, seed=2, name="u")
    check(lambda x: Inside.apply(x @ w) @ u, [tensor(3, 4)], [w, u])


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_recompute_inside_recompute(outer, inner):
    class Block(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense, self.w = nn.Dense(4, 4), weight(4, 4, name="w")

        def construct(self, x):
            return ms.recompute(self.dense, x, use_reentrant=inner) @ self.w

    block, u = Block(), weight(4, 4, seed=2, name="u")
    weights = [u, *block.trainable_params()]
    fn, x = (lambda x: ms.recompute(block, x @ u, use_reentrant=outer)), tensor(3, 4)
    grad_fn = forward_and_gradfn(fn, x, weights=weights)[1]
    got = grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()
    assert_grads_close(got, reference(fn, [x], weights))


@pytest.mark.parametrize("mode, engine", [("auto", "graph"), ("graph", "graph"), ("pynative", "pynative")])
def test_in_graph_mode(mode, engine):
    net, x = nn.Dense(4, 3), tensor(2, 4)
    right = net.weight.asnumpy().sum(axis=0)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        _, grad_fn = zero_bubble(net, mode=mode).forward_and_gradfn(x)
        dx, dw = grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()
        assert ms.get_context("mode") == ms.GRAPH_MODE
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert grad_fn.engine == engine
    np.testing.assert_allclose(dx.asnumpy(), np.stack([right, right]), rtol=1e-5)
    np.testing.assert_allclose(dw[0].asnumpy(), np.tile(x.asnumpy().sum(axis=0), (3, 1)), rtol=1e-5)


@pytest.mark.parametrize("fn", [
    lambda x, w: ms.grad(lambda z: ops.sin(z @ w).sum())(x), lambda x, w: ms.value_and_grad(lambda z: (z @ w).sum())(x)[1],
    lambda x, w: ops.GradOperation()(lambda z: ops.sin(z))(x) * x, lambda x, w: ms.vjp(ops.sin, x)[1](x)])
def test_a_gradient_inside_is_refused_and_not_taken_for_a_constant(fn):
    w, x = weight(4, 4, name="w"), tensor(3, 4)
    with pytest.raises(UnsupportedError, match="gradient inside"):
        forward_and_gradfn(lambda x: fn(x, w), x, weights=[w])
    check(lambda x: ops.sin(x @ w), [x], [w])  # and nothing is left behind
    assert_grads_close(ms.grad(lambda z: ops.sin(z).sum())(x), ops.cos(x))


@pytest.mark.parametrize("mode", ["pynative", "graph"])
@pytest.mark.parametrize("split", [True, False])
def test_no_gradient_shares_memory_with_sens(mode, split):
    b, x, sens = weight(3, 4, name="b"), tensor(3, 4), ops.ones((3, 4))
    _, grad_fn = run_forward(lambda x: x + b, (x,), {}, [b], False, 0, mode)
    dx, dw = (grad_fn.compute_input_grad(sens), grad_fn.compute_weight_grad()) if split else grad_fn(sens)
    sens[:] = 7
    assert float(dx.max()) == 1 and float(dw[0].max()) == 1
