"""``GradFunction``: the order of calls, its states, groups alone, and the shapes of results."""

from collections import namedtuple

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mindspore_zb import GradFunction, ZeroBubbleError, forward_and_gradfn

from .helpers import assert_grads_close, assert_same_bits, map_leaves, reference, split, tensor, unsplit, weight

Pair = namedtuple("Pair", "left right")


@pytest.fixture
def net():
    """Three groups: two dense layers without a bias, and a scale."""
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.one = nn.Dense(4, 4, has_bias=False)
            self.two = nn.Dense(4, 4, has_bias=False)
            self.scale = weight(4, name="scale")

        def construct(self, x):
            return ops.tanh(self.two(ops.tanh(self.one(x)))) * self.scale

    return Net()


@pytest.fixture
def expected(net):
    """The right ``(dx, dw)``."""
    return reference(net, [tensor(3, 4)], net.trainable_params())


@pytest.fixture
def grad_fn(net):
    """A fresh GradFunction."""
    return forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())[1]


def bring_to(state, grad_fn):
    """Make the calls that lead to a state; returns the same object."""
    if state != "fresh":
        grad_fn.compute_input_grad()
    if state == "after dw":
        grad_fn.compute_weight_grad()
    elif state == "after groups":
        for group in grad_fn.weight_groups:
            group.compute()
    elif state == "released":
        grad_fn.release()
    return grad_fn


GONE = ["after dw", "after groups", "released"]


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


class TestGroups:
    """Groups alone: any order, repeated, or mixed with the whole."""

    def test_each_weight_once(self, net, grad_fn):
        groups = grad_fn.weight_groups
        assert [group.index for group in groups] == [0, 1, 2]
        assert sorted(place for group in groups for place in group.positions) == [0, 1, 2]
        weights = net.trainable_params()
        for group in groups:
            assert [id(one) for one in group.weights] == [id(weights[place]) for place in group.positions]
            assert group.boundaries and all(boundary.slots for boundary in group.boundaries)

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
    def test_alone_in_any_order(self, grad_fn, expected, order):
        bring_to("after dx", grad_fn)
        groups = grad_fn.weight_groups
        for count, number in enumerate(order):
            assert grad_fn.state == "dx computed" and not groups[number].done
            grads = groups[number].compute()
            assert type(grads) is tuple
            assert_grads_close(grads, tuple(expected[1][place] for place in groups[number].positions))
            assert groups[number].done and [group.done for group in groups].count(True) in (count + 1, 3)
        assert grad_fn.state == "released"

    def test_before_dx(self, grad_fn, expected):
        with pytest.raises(RuntimeError, match=r"weight_groups\[0\].compute needs compute_input_grad first"):
            grad_fn.weight_groups[0].compute()
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)

    def test_twice(self, grad_fn, expected):
        bring_to("after dx", grad_fn)
        group = grad_fn.weight_groups[0]
        group.compute()
        with pytest.raises(RuntimeError, match=r"weight_groups\[0\] was already computed") as caught:
            group.compute()
        assert isinstance(caught.value, ZeroBubbleError)
        grad_fn.compute_weight_grad()

    def test_repeated_with_keep_graph(self, grad_fn, expected):
        bring_to("after dx", grad_fn)
        for group in grad_fn.weight_groups:
            right = tuple(expected[1][place] for place in group.positions)
            for keep_graph in (True, True, False):
                assert_grads_close(group.compute(keep_graph), right)
                assert group.done is not keep_graph
        assert grad_fn.state == "released"

    @pytest.mark.parametrize("number", range(3))
    def test_one_alone_then_the_rest(self, grad_fn, expected, number):
        bring_to("after dx", grad_fn)
        group = grad_fn.weight_groups[number]
        alone = group.compute()
        rest = grad_fn.compute_weight_grad()
        assert_grads_close(alone, tuple(expected[1][place] for place in group.positions))
        assert_grads_close(rest, tuple(None if place in group.positions else grad
                                       for place, grad in enumerate(expected[1])))
        assert grad_fn.state == "released"

    def test_one_alone_then_the_rest_repeated(self, grad_fn, expected):
        bring_to("after dx", grad_fn)
        place, = grad_fn.weight_groups[1].positions
        grad_fn.weight_groups[1].compute()
        right = tuple(None if here == place else grad for here, grad in enumerate(expected[1]))
        for keep_graph in (True, True, False):
            assert_grads_close(grad_fn.compute_weight_grad(keep_graph), right)

    def test_whole_kept_then_groups_alone(self, grad_fn, expected):
        bring_to("after dx", grad_fn)
        assert_grads_close(grad_fn.compute_weight_grad(keep_graph=True), expected[1])
        for group in reversed(grad_fn.weight_groups):
            assert_grads_close(group.compute(), tuple(expected[1][place] for place in group.positions))
        assert grad_fn.state == "released"

    def test_single_parameter_taken_alone(self, net):
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.scale)
        bring_to("after dx", grad_fn)
        grad, = grad_fn.weight_groups[0].compute()
        assert grad.shape == (4,) and grad_fn.state == "released"

    def test_unreached_weights_form_the_last_group(self, net, expected):
        unused, frozen = weight(2, name="unused"), weight(3, name="frozen", requires_grad=False)
        weights = [unused, *net.trainable_params(), frozen]
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=weights)
        last = grad_fn.weight_groups[-1]
        assert last.positions == (0, 4) and last.boundaries == ()
        bring_to("after dx", grad_fn)
        assert last.nbytes == 0
        grads = last.compute()
        assert [grad.shape for grad in grads] == [(2,), (3,)] and not any(grad.asnumpy().any() for grad in grads)
        assert_grads_close(grad_fn.compute_weight_grad(), (None, *expected[1], None))

    def test_bytes(self, grad_fn):
        groups = grad_fn.weight_groups
        assert [group.nbytes for group in groups] == [0, 0, 0]
        bring_to("after dx", grad_fn)
        assert all(group.nbytes >= 3 * 4 * 4 for group in groups)  # at least the gradient that flows into its node
        groups[0].compute()
        assert groups[0].nbytes == 0 and groups[1].nbytes > 0
        grad_fn.compute_weight_grad()
        assert [group.nbytes for group in groups] == [0, 0, 0]

    def test_description(self, grad_fn):
        bring_to("after dx", grad_fn)
        first = grad_fn.weight_groups[0]
        assert "scale" in repr(first) and "done" not in repr(first)
        first.compute()
        assert "done" in repr(first)

    def test_groups_before_and_after_dx_are_the_same(self, grad_fn):
        before = [group.positions for group in grad_fn.weight_groups]
        bring_to("after dx", grad_fn)
        assert [group.positions for group in grad_fn.weight_groups] == before
        grad_fn.compute_weight_grad()
        assert [group.positions for group in grad_fn.weight_groups] == before

    def test_groups_of_a_released_object_never_asked_before(self, grad_fn):
        grad_fn.release()
        with pytest.raises(ZeroBubbleError, match="released"):
            grad_fn.weight_groups  # pylint: disable=pointless-statement

    def test_group_outlives_the_callers_reference(self, net, expected):
        grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())[1]
        bring_to("after dx", grad_fn)
        groups = grad_fn.weight_groups
        del grad_fn
        for group in groups:
            assert_grads_close(group.compute(), tuple(expected[1][place] for place in group.positions))


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


class TestResultShapes:
    """dx for every form of ``grad_position``."""

    @staticmethod
    def fn(one, two, three, *, bias=None, mode=None):
        """Uses everything."""
        out = one * two["a"] + three[0].left * three[0].right
        return out if bias is None else out * bias

    @pytest.fixture
    def inputs(self):
        return [tensor(3, 4), {"a": tensor(4, seed=1), "n": 3},
                [Pair(tensor(4, seed=2), tensor(3, 1, seed=3)), Tensor(np.arange(3, dtype=np.int32))]]

    @pytest.mark.parametrize("position", [0, 1, 2, (0,), [0], (1, 0), [2, 0, 1], (0, 1, 2), -1])
    @pytest.mark.parametrize("kwargs", [{}, {"mode": "text"}, {"bias": tensor(4, seed=4), "mode": None}],
                             ids=["none", "no tensor", "tensor"])
    def test_against_the_reference(self, inputs, position, kwargs):
        w = weight(4)

        def fn(*args, **named):
            return self.fn(*args, **named) * w

        expected = reference(fn, inputs, [w], grad_position=position, kwargs=kwargs)
        assert_grads_close(split(fn, inputs, [w], grad_position=position, kwargs=kwargs), expected)
        assert_grads_close(unsplit(fn, inputs, [w], grad_position=position, kwargs=kwargs), expected)

    def shapes(self, inputs, position, **kwargs):
        """Shapes of dx, nested like it."""
        dx, _ = split(self.fn, inputs, None, grad_position=position, kwargs=kwargs)
        return map_leaves(lambda grad: None if grad is None else grad.shape, dx)

    def test_written_out(self, inputs):
        one, two, three = (3, 4), {"a": (4,), "n": None}, [Pair((4,), (3, 1)), None]
        assert self.shapes(inputs, 0) == one
        assert self.shapes(inputs, 1) == two
        assert self.shapes(inputs, 2) == three
        assert self.shapes(inputs, (0,)) == (one,)
        assert self.shapes(inputs, [0]) == (one,)
        assert self.shapes(inputs, (2, 0)) == (three, one)
        assert self.shapes(inputs, -1) == (one, two, three)
        assert self.shapes(inputs, -1, mode="text") == (one, two, three)
        assert self.shapes(inputs, -1, bias=tensor(4), mode=1) == ((one, two, three), {"bias": (4,), "mode": None})
        assert self.shapes(inputs, 0, bias=tensor(4)) == one

    def test_integer_tensor_in_kwargs_counts_as_tensor(self):
        ids = Tensor(np.array([1, 0], np.int32))
        dx, _ = split(lambda x, index: x[index], [tensor(3, 4)], None, grad_position=-1, kwargs={"index": ids})
        assert type(dx) is tuple and dx[0][0].shape == (3, 4) and dx[1] == {"index": None}

    def test_only_kwargs(self):
        w = weight(4)
        dx, _ = split(lambda *, x: x * w, [], [w], grad_position=-1, kwargs={"x": tensor(3, 4)})
        assert dx[0] == () and dx[1]["x"].shape == (3, 4)

    def test_gradients_carry_no_history(self, net, expected):
        for grad in (*split(net, [tensor(3, 4)], net.trainable_params())[1], split(net, [tensor(3, 4)])[0]):
            assert grad._grad_node is None and not grad._requires_grad


class TestAux:
    """``has_aux``: only ``out`` is differentiated, the rest comes back untouched."""

    def test_values_and_gradients(self):
        w, marker = weight(4, 4), object()

        def fn(x):
            h = x @ w
            return ops.tanh(h), h, {"marker": marker, "w": w}

        (out, h, rest), grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=[w], has_aux=True)
        expected = reference(fn, [tensor(3, 4)], [w], has_aux=True)
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)
        assert (ops.tanh(h).asnumpy() == out.asnumpy()).all()
        assert rest["marker"] is marker and rest["w"] is w
        assert out._grad_node is None and h._grad_node is None

    def test_aux_may_be_missing_or_empty(self):
        w = weight(4)
        out, _ = forward_and_gradfn(lambda x: (x * w,), tensor(3, 4), weights=[w], has_aux=True)
        assert type(out) is tuple and len(out) == 1

    def test_nested_out(self):
        w = weight(4)
        result, grad_fn = forward_and_gradfn(lambda x: ({"a": x * w, "b": x}, "aux"), tensor(3, 4), weights=[w],
                                             has_aux=True)
        assert list(result[0]) == ["a", "b"] and result[1] == "aux"
        sens = {"a": tensor(3, 4, seed=5), "b": None}
        expected = reference(lambda x: x * w, [tensor(3, 4)], [w], sens=sens["a"])
        assert_grads_close((grad_fn.compute_input_grad(sens), grad_fn.compute_weight_grad()), expected)

    def test_sens_is_for_out_alone(self):
        w = weight(4)
        _, grad_fn = forward_and_gradfn(lambda x: (x * w, x), tensor(3, 4), weights=[w], has_aux=True)
        with pytest.raises(ValueError, match="sens"):
            grad_fn.compute_input_grad((tensor(3, 4), tensor(3, 4)))


def test_bytes_of_all_groups_count_a_shared_storage_once():
    """The bias and the matrix of a layer receive one gradient, in one storage."""
    dense = nn.Dense(8, 8)
    _, grad_fn = forward_and_gradfn(dense, tensor(16, 8), weights=dense.trainable_params())
    assert grad_fn.nbytes == 0
    grad_fn.compute_input_grad(tensor(16, 8))
    one_activation = 16 * 8 * 4
    assert sorted(group.nbytes for group in grad_fn.weight_groups) == [one_activation, 2 * one_activation]
    assert grad_fn.nbytes == 2 * one_activation
    grad_fn.compute_weight_grad()
    assert grad_fn.nbytes == 0
