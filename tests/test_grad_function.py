"""``GradFunction``: the order of calls and its states."""

import numpy as np
import pytest
from mindspore import Tensor, ops

from mindspore_zb import GradFunction, ZeroBubbleError, forward_and_gradfn

from .helpers import assert_grads_close, assert_same_bits, reference, split, tensor, unsplit, weight
from .three_groups import GONE, ThreeGroups, bring_to


@pytest.fixture
def net():
    """Three weights in three groups."""
    return ThreeGroups()


@pytest.fixture
def expected(net):
    """The right ``(dx, dw)``."""
    return reference(net, [tensor(3, 4)], net.trainable_params())


@pytest.fixture
def grad_fn(net):
    """A fresh GradFunction."""
    return forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())[1]


class TestState:
    """Each cell of the table of states."""

    def test_compute_input_grad_fresh(self, grad_fn, expected):
        assert grad_fn.state == "fresh"
        assert_grads_close(grad_fn.compute_input_grad(), expected[0])
        assert grad_fn.state == "dx computed"

    def test_compute_input_grad_after_dx(self, grad_fn, expected):
        bring_to("after dx", grad_fn)
        with pytest.raises(RuntimeError, match="already computed") as caught:
            grad_fn.compute_input_grad()
        assert isinstance(caught.value, ZeroBubbleError)
        assert_grads_close(grad_fn.compute_weight_grad(), expected[1])  # as usable as before

    @pytest.mark.parametrize("state", GONE)
    def test_compute_input_grad_when_gone(self, grad_fn, state):
        with pytest.raises(RuntimeError, match="released") as caught:
            bring_to(state, grad_fn).compute_input_grad()
        assert isinstance(caught.value, ZeroBubbleError)

    def test_compute_weight_grad_fresh(self, grad_fn, expected):
        with pytest.raises(RuntimeError, match="compute_input_grad first") as caught:
            grad_fn.compute_weight_grad()
        assert isinstance(caught.value, ZeroBubbleError)
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)

    def test_compute_weight_grad_after_dx(self, grad_fn, expected):
        assert_grads_close(bring_to("after dx", grad_fn).compute_weight_grad(), expected[1])
        assert grad_fn.state == "released"

    def test_compute_weight_grad_any_number_of_times(self, grad_fn, expected):
        bring_to("after dx", grad_fn)
        results = [grad_fn.compute_weight_grad(keep_graph=True) for _ in range(4)]
        assert grad_fn.state == "dx computed"
        results.append(grad_fn.compute_weight_grad())
        assert grad_fn.state == "released"
        for result in results:
            assert_grads_close(result, expected[1])
            assert_same_bits(result, results[0])

    @pytest.mark.parametrize("keep_graph", [False, True])
    @pytest.mark.parametrize("state", GONE)
    def test_compute_weight_grad_when_gone(self, grad_fn, state, keep_graph):
        with pytest.raises(RuntimeError, match="released") as caught:
            bring_to(state, grad_fn).compute_weight_grad(keep_graph)
        assert isinstance(caught.value, ZeroBubbleError)

    def test_call_fresh(self, grad_fn, expected):
        assert_grads_close(grad_fn(), expected)
        assert grad_fn.state == "released"

    def test_call_keeps_it_fresh(self, grad_fn, expected):
        results = [grad_fn(keep_graph=True) for _ in range(3)]
        assert grad_fn.state == "fresh"
        results.append(grad_fn())
        for result in results:
            assert_grads_close(result, expected)
            assert_same_bits(result, results[0])

    def test_split_after_a_call_that_keeps(self, grad_fn, expected):
        assert_grads_close(grad_fn(keep_graph=True), expected)
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)

    def test_call_after_dx(self, grad_fn, expected):
        bring_to("after dx", grad_fn)
        with pytest.raises(RuntimeError, match="split has begun") as caught:
            grad_fn()
        assert isinstance(caught.value, ZeroBubbleError)
        assert_grads_close(grad_fn.compute_weight_grad(), expected[1])

    @pytest.mark.parametrize("state", GONE)
    def test_call_when_gone(self, grad_fn, state):
        with pytest.raises(RuntimeError, match="released") as caught:
            bring_to(state, grad_fn)()
        assert isinstance(caught.value, ZeroBubbleError)

    def test_different_sens_in_each_call(self, net, grad_fn):
        for seed in range(3):
            sens = tensor(3, 4, seed=seed + 5)
            expected = reference(net, [tensor(3, 4)], net.trainable_params(), sens=sens)
            assert_grads_close(grad_fn(sens, keep_graph=seed < 2), expected)

    def test_engine(self, grad_fn):
        assert isinstance(grad_fn, GradFunction)
        assert (grad_fn.engine, grad_fn.fallback_reason) == ("pynative", None)
        bring_to("released", grad_fn)
        assert grad_fn.engine == "pynative"


class TestRelease:
    """``release`` lets go at once, in any state, any number of times."""

    @pytest.mark.parametrize("state", ["fresh", "after dx", *GONE])
    def test_in_any_state(self, grad_fn, state):
        bring_to(state, grad_fn)
        for _ in range(2):
            grad_fn.release()
            assert grad_fn.state == "released"
        with pytest.raises(ZeroBubbleError, match="released"):
            grad_fn()

    def test_with_some_groups_done(self, grad_fn):
        bring_to("after dx", grad_fn)
        groups = grad_fn.weight_groups
        groups[1].compute()
        grad_fn.release()
        for group in groups:
            assert group.done and group.nbytes == 0
            with pytest.raises(ZeroBubbleError, match="released"):
                group.compute()

    def test_error_tells_how_to_go_on(self, grad_fn):
        grad_fn.release()
        with pytest.raises(RuntimeError, match="run forward_and_gradfn again"):
            grad_fn.compute_input_grad()

    def test_backward_that_raises_releases(self):
        w = weight(4, 4)

        def fn(x):
            h = x.sin()
            h.register_hook(self._fail)
            return h @ w

        for call in ("compute_input_grad", "__call__"):
            _, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=[w])
            with pytest.raises(LookupError, match="a hook of the user"):
                getattr(grad_fn, call)()
            assert grad_fn.state == "released"
            with pytest.raises(ZeroBubbleError, match="released"):
                grad_fn.compute_weight_grad()
        assert_grads_close(split(lambda x: x @ w, [tensor(3, 4)], [w]), reference(lambda x: x @ w, [tensor(3, 4)], [w]))

    def test_dw_that_raises_releases(self):
        w = weight(4, 4)

        def fn(x):
            h = ops.tanh(w)
            h.register_hook(self._fail)
            return x @ h

        _, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=[w])
        assert grad_fn.compute_input_grad().shape == (3, 4)
        with pytest.raises(LookupError, match="a hook of the user"):
            grad_fn.compute_weight_grad()
        assert grad_fn.state == "released"

    @staticmethod
    def _fail(grad):
        raise LookupError("a hook of the user")


class TestNothingToSplit:
    """``grad_position=None``, no weights, no differentiable input."""

    def test_no_input_asked_for(self, net, expected):
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params(), grad_position=None)
        with pytest.raises(ValueError, match="grad_position is None") as caught:
            grad_fn.compute_input_grad()
        assert isinstance(caught.value, ZeroBubbleError)
        assert_grads_close(grad_fn(keep_graph=True), expected[1])
        assert_grads_close(grad_fn(), expected[1])
        with pytest.raises(ZeroBubbleError, match="released"):
            grad_fn()

    def test_no_input_asked_for_single_weight(self, net, expected):
        grad = unsplit(net, [tensor(3, 4)], net.scale, grad_position=None)
        assert isinstance(grad, Tensor)

    def test_dw_without_dx_is_an_error_that_says_what_to_call(self, net):
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params(), grad_position=None)
        with pytest.raises(ZeroBubbleError, match="call the GradFunction itself"):
            grad_fn.compute_weight_grad()

    @pytest.mark.parametrize("weights", [None, []])
    def test_no_weights(self, net, expected, weights):
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=weights)
        assert_grads_close(grad_fn.compute_input_grad(), expected[0])
        assert grad_fn.compute_weight_grad(keep_graph=True) == ()
        assert grad_fn.compute_weight_grad() == ()
        with pytest.raises(ZeroBubbleError, match="released"):
            grad_fn.compute_weight_grad()

    def test_no_weights_unsplit_gives_dx_alone(self, net, expected):
        assert_grads_close(unsplit(net, [tensor(3, 4)]), expected[0])

    @pytest.mark.parametrize("weights", [None, [], ()])
    def test_neither(self, net, weights):
        with pytest.raises(ValueError, match="weights.*grad_position") as caught:
            forward_and_gradfn(net, tensor(3, 4), weights=weights, grad_position=None)
        assert isinstance(caught.value, ZeroBubbleError)

    def test_no_differentiable_input(self):
        table, ids = weight(10, 4, name="table"), Tensor(np.array([1, 5, 5], np.int32))

        def fn(i):
            return ops.tanh(ops.gather(table, i, 0))

        dw = reference(fn, [ids], [table], sens=tensor(3, 4, seed=5))[1]
        for position, dx in ((0, None), ((0,), (None,)), (-1, (None,))):
            got = split(fn, [ids], [table], sens=tensor(3, 4, seed=5), grad_position=position)
            assert_grads_close(got, (dx, dw))
            whole = unsplit(fn, [ids], [table], sens=tensor(3, 4, seed=5), grad_position=position)
            assert_grads_close(whole, (dx, dw))

    def test_sens_is_checked_also_without_differentiable_input(self):
        table, ids = weight(10, 4, name="table"), Tensor(np.array([1, 5, 5], np.int32))
        _, grad_fn = forward_and_gradfn(lambda i: ops.gather(table, i, 0), ids, weights=[table])
        with pytest.raises(ValueError, match="out has"):
            grad_fn.compute_input_grad(tensor(3, 3))

    def test_no_positional_inputs(self):
        w = weight(4)
        assert_grads_close(unsplit(lambda: w.sin(), [], [w], grad_position=None), (ops.cos(w),))
        assert_grads_close(split(lambda: w.sin(), [], [w], grad_position=-1), ((), (ops.cos(w),)))
