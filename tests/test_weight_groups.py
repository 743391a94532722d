"""``weight_groups``: any order, repeated, or mixed with the whole."""

import pytest
from mindspore import nn

from mindspore_zb import ZeroBubbleError, forward_and_gradfn

from .helpers import assert_grads_close, reference, tensor, weight
from .three_groups import ThreeGroups, bring_to


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
