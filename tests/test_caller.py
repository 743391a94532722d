"""Nothing of the caller changes, whatever happens; ``out`` carries no history."""

import random

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from mindspore_zb import ZeroBubbleError, forward_and_gradfn
from mindspore_zb.engines.pynative.native import _pynative_executor as executor

from .helpers import assert_grads_close, split, tensor, weight


def fail(*_):
    """A function of the user that raises."""
    raise LookupError("the user's own error")


class Caller:
    """All that belongs to the caller and must stay as it is."""

    def __init__(self):
        self.x, self.y, self.w, self.u = tensor(3, 4), tensor(3, 4, seed=2), weight(4, seed=1), weight(4, seed=3)
        self.frozen = weight(4, seed=4, name="frozen", requires_grad=False)
        self.y._requires_grad = True
        self.w._grad = tensor(4, seed=7)
        self.hooked = []
        self.handle = self.u.register_hook(self.hooked.append)
        self.weights = [self.w, self.u, self.frozen]

    def tensors(self):
        """All tensors of the caller."""
        return [self.x, self.y, *self.weights]

    def state(self):
        """What must not change, in a form that can be compared."""
        return {
            "values": [one.asnumpy().tobytes() for one in self.tensors()],
            "requires_grad": [one._requires_grad for one in self.tensors()],
            "trainable": [one.requires_grad for one in self.weights],
            "grad": [None if one._grad is None else one._grad.asnumpy().tobytes() for one in self.tensors()],
            "history": [getattr(one._grad_node, "name", str)() for one in (self.w, self.u)],
            "no history": [one._grad_node is None for one in (self.x, self.frozen)],
            "flags": (executor.grad_flag(), executor.enable_grad()),
            "mode": ms.get_context("mode"),
            "hook function": Tensor.register_hook,
            "parameter hook function": ms.Parameter.register_hook,
            "seeds": (ms.get_rng_state().asnumpy().tobytes(), np.random.get_state()[1].tobytes(), random.getstate()),
        }


@pytest.fixture
def caller():
    """A caller, compared after the test with what it was before."""
    caller = Caller()
    before = caller.state()
    yield caller
    after = caller.state()
    for name, value in before.items():
        assert after[name] == value, f"{name} changed"
    # Only the hook of the caller itself is left: one more backward by MindSpore runs it, and nothing else.
    caller.hooked.clear()
    grad = ms.grad(lambda x: (x * caller.u).sum(), None, [caller.u])(caller.x)
    assert_grads_close(grad if isinstance(grad, Tensor) else grad[0], caller.x.sum(0))
    assert len(caller.hooked) == 1


class TestCallerIsUnchanged:
    """Flags, gradients, hooks, random state, context: after success and after each kind of failure."""

    @staticmethod
    def fn(caller):
        """Uses all of the caller's tensors."""
        return lambda x, y: ops.tanh(x * caller.w) * y * caller.u + caller.frozen

    @pytest.fixture(params=[False, True], ids=["not recording", "recording"], autouse=True)
    def callers_flag(self, request):
        """The caller's own grad flag; the fixture ``caller`` compares it."""
        flag = executor.grad_flag()
        executor.set_grad_flag(request.param)
        yield
        executor.set_grad_flag(flag)

    def test_split(self, caller):
        _, grad_fn = forward_and_gradfn(self.fn(caller), caller.x, caller.y, weights=caller.weights, grad_position=-1)
        grad_fn.compute_input_grad()
        grad_fn.compute_weight_grad(keep_graph=True)
        grad_fn.compute_weight_grad()

    def test_groups(self, caller):
        _, grad_fn = forward_and_gradfn(self.fn(caller), caller.x, caller.y, weights=caller.weights)
        grad_fn.compute_input_grad()
        for group in grad_fn.weight_groups:
            group.compute()

    def test_unsplit(self, caller):
        _, grad_fn = forward_and_gradfn(self.fn(caller), caller.x, caller.y, weights=caller.weights, grad_position=1)
        grad_fn(keep_graph=True)
        grad_fn()

    def test_forward_alone(self, caller):
        forward_and_gradfn(self.fn(caller), caller.x, caller.y, weights=caller.weights)[1].release()
        forward_and_gradfn(self.fn(caller), caller.x, caller.y, weights=caller.weights)

    def test_hook_of_the_caller_on_a_weight_runs_once(self, caller):
        caller.hooked.clear()
        split(self.fn(caller), [caller.x, caller.y], caller.weights)
        assert len(caller.hooked) == 1

    @pytest.mark.parametrize("wrong", [dict(weights=3), dict(grad_position=7), dict(grad_position="0")])
    def test_wrong_argument(self, caller, wrong):
        with pytest.raises(ZeroBubbleError):
            forward_and_gradfn(self.fn(caller), caller.x, caller.y, **wrong)

    def test_fn_that_raises(self, caller):
        def fn(x, y):
            x.register_hook(fail)
            fail(x * caller.w, y)

        with pytest.raises(LookupError, match="the user's own error"):
            forward_and_gradfn(fn, caller.x, caller.y, weights=caller.weights)

    def test_fn_with_an_impossible_operation(self, caller):
        with pytest.raises((ValueError, RuntimeError)):
            forward_and_gradfn(lambda x, y: (x * caller.w) @ y, caller.x, caller.y, weights=caller.weights)

    def test_fn_without_a_tensor(self, caller):
        with pytest.raises(ZeroBubbleError):
            forward_and_gradfn(lambda x, y: str(x * caller.w), caller.x, caller.y, weights=caller.weights)

    def test_wrong_aux(self, caller):
        with pytest.raises(ZeroBubbleError):
            forward_and_gradfn(self.fn(caller), caller.x, caller.y, weights=caller.weights, has_aux=True)

    def test_wrong_sens(self, caller):
        _, grad_fn = forward_and_gradfn(self.fn(caller), caller.x, caller.y, weights=caller.weights)
        with pytest.raises(ZeroBubbleError):
            grad_fn.compute_input_grad(tensor(3))

    @pytest.mark.parametrize("place", ["dx", "dw"])
    def test_backward_that_raises(self, caller, place):
        def fn(x, y):
            inside, side = ops.tanh(x), ops.tanh(caller.w)
            (inside if place == "dx" else side).register_hook(fail)
            return inside * side * y * caller.u

        _, grad_fn = forward_and_gradfn(fn, caller.x, caller.y, weights=caller.weights)
        with pytest.raises(LookupError, match="the user's own error"):
            grad_fn.compute_input_grad()
            grad_fn.compute_weight_grad()

    def test_keyboard_interrupt_in_fn(self, caller):
        def fn(x, y):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            forward_and_gradfn(fn, caller.x, caller.y, weights=caller.weights)

    def test_nested_forward_and_gradfn(self, caller):
        def fn(x, y):
            split(self.fn(caller), [x, y], caller.weights)
            return self.fn(caller)(x, y)

        got = split(fn, [caller.x, caller.y], caller.weights)
        assert_grads_close(got, split(self.fn(caller), [caller.x, caller.y], caller.weights))

    def test_gradients_do_not_share_memory_with_the_caller(self, caller):
        dx, dw = split(self.fn(caller), [caller.x, caller.y], caller.weights, grad_position=-1)
        pointers = {one.data_ptr() for one in caller.tensors()}
        assert not pointers & {grad.data_ptr() for grad in (*dx, *dw)}


class TestOutAndRandomState:
    """``out`` is the result of ``fn`` without history; random numbers are drawn by ``fn`` alone."""

    def test_out_has_no_history(self, recording):
        w, x = weight(4), tensor(3, 4)
        with recording():
            out, grad_fn = forward_and_gradfn(lambda a: {"a": a * w, "b": [a, w]}, x, weights=[w])
            assert out["a"]._grad_node is None and out["b"][0]._grad_node is None
            assert not out["a"]._requires_grad
        assert (out["a"].asnumpy() == (x * w).asnumpy()).all()
        assert grad_fn.compute_input_grad().shape == (3, 4)

    def test_out_shares_storage_with_the_result(self):
        w, kept = weight(4), []

        def fn(x):
            kept.append(x * w)
            return kept[0]

        out, _ = forward_and_gradfn(fn, tensor(3, 4), weights=[w])
        assert out.data_ptr() == kept[0].data_ptr()

    @pytest.mark.parametrize("backward", [False, True])
    def test_random_state_moves_as_by_fn_alone(self, backward):
        w = weight(4)

        def fn(x):
            return ops.dropout(x * w, 0.5, True)

        def run(forward):
            ms.set_seed(3)
            out = forward()
            return out.asnumpy().tobytes(), ops.rand(5).asnumpy().tobytes(), ms.get_rng_state().asnumpy().tobytes()

        def ours():
            out, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=[w])
            if backward:
                grad_fn.compute_input_grad()
                grad_fn.compute_weight_grad()
            return out

        assert run(ours) == run(lambda: fn(tensor(3, 4)))
