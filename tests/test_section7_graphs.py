"""Right values in hard places: shared weights, groups, several outputs, what is not used."""

from itertools import permutations

import numpy as np
import pytest
from mindspore import Tensor, ops

from mindspore_zb import forward_and_gradfn

from .helpers import assert_grads_close, check, dw_by_groups, reference, split, tensor, weight


class TestSharedWeights:
    """A weight that is met on several paths is summed once over all of them."""

    def test_used_twice_in_a_row(self):
        w = weight(4, 4)
        check(lambda x: x @ w @ w, [tensor(3, 4)], [w])

    def test_used_twice_side_by_side(self):
        w = weight(4, 4)
        check(lambda x: (x @ w).tanh() + (x.sin() @ w), [tensor(3, 4)], [w])

    def test_both_operands(self):
        w = weight(4, 4)
        check(lambda x: x @ (w @ w), [tensor(3, 4)], [w])

    def test_squared_in_one_operation(self):
        w = weight(4)
        check(lambda x: x * (w * w), [tensor(3, 4)], [w])

    def test_tied_embedding(self):
        w = weight(7, 4)
        check(lambda x: ops.tanh(x @ w.T) @ w, [tensor(3, 4)], [w])

    def test_many_uses_with_others_between(self):
        w, u = weight(4, 4, seed=1), weight(4, 4, seed=2)
        check(lambda x: ops.tanh(x @ w @ u) @ w @ u + x @ u, [tensor(3, 4)], [w, u])


class TestGroups:
    """Weights that share a boundary or a node are in one group, whatever their order."""

    @pytest.fixture
    def abc(self):
        """Three weights and a function that gives the names in each group, for each order of the weights."""
        weights = [weight(4, seed=seed, name=name) for seed, name in enumerate("abc")]

        def grouped(fn):
            for order in permutations(weights):
                _, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=order)
                yield ["".join(sorted(parameter.name for parameter in group.weights))
                       for group in grad_fn.weight_groups]

        return weights, grouped

    def test_third_meets_the_boundaries_of_both_others(self, abc):
        (a, b, c), grouped = abc

        def fn(x):
            return ops.tanh(x * (a + c)) * (b * c)

        check(fn, [tensor(3, 4)], [a, b, c])
        assert list(grouped(fn)) == [["abc"]] * 6

    def test_chain_of_shared_nodes(self, abc):
        (a, b, c), grouped = abc

        def fn(x):
            return (x * (a * b)).sin() * (b * c)

        check(fn, [tensor(3, 4)], [a, b, c])
        assert list(grouped(fn)) == [["abc"]] * 6

    @pytest.mark.one_engine
    def test_two_together_one_alone(self, abc):
        (a, b, c), grouped = abc

        def fn(x):
            return ops.tanh(x * (a * c)) * b

        check(fn, [tensor(3, 4)], [a, b, c])
        assert list(grouped(fn)) == [["b", "ac"]] * 6

    @pytest.mark.one_engine
    def test_separate_weights_have_separate_groups_in_order_of_execution(self, abc):
        (a, b, c), grouped = abc

        def fn(x):
            return ops.tanh(ops.tanh(x * a) * b) * c

        check(fn, [tensor(3, 4)], [a, b, c])
        assert list(grouped(fn)) == [["c", "b", "a"]] * 6

    def test_groups_hold_each_weight_once(self):
        weights = [weight(4, 4, seed=seed) for seed in range(5)]

        def fn(x):
            a, b, c, d, _ = weights
            return ops.tanh(x @ (a + b)) @ c @ (d @ a)

        _, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=weights)
        positions = [place for group in grad_fn.weight_groups for place in group.positions]
        assert sorted(positions) == [0, 1, 2, 3, 4]
        check(fn, [tensor(3, 4)], weights, vanishing=True)


class TestSeveralOutputs:
    """Each path from an output counts once."""

    def test_output_of_weights_only(self):
        w = weight(4, 4)
        check(lambda x: (ops.tanh(x @ w), ops.tanh(w).sum()), [tensor(3, 4)], [w],
              sens=(tensor(3, 4, seed=5), tensor(seed=6)))

    def test_weights_only_output_alone_in_a_group(self):
        w, u = weight(4, 4, seed=1), weight(2, seed=2)
        check(lambda x: (x @ w, u * 3), [tensor(3, 4)], [w, u], sens=(tensor(3, 4, seed=5), tensor(2, seed=6)))

    def test_weight_itself_as_output(self):
        w = weight(4, 4)
        check(lambda x: (x @ w, w), [tensor(3, 4)], [w], sens=(tensor(3, 4, seed=5), tensor(4, 4, seed=6)))

    def test_weight_twice_as_output(self):
        w = weight(4)
        check(lambda x: (w, x * 2, w), [tensor(4)], [w], sens=tuple(tensor(4, seed=seed) for seed in (5, 6, 7)))

    def test_same_tensor_twice(self):
        w = weight(4, 4)

        def fn(x):
            h = x @ w
            return h, h, ops.sin(h)

        sens = tuple(tensor(3, 4, seed=seed) for seed in (5, 6, 7))
        check(fn, [tensor(3, 4)], [w])
        check(fn, [tensor(3, 4)], [w], sens=sens)
        for dropped in range(3):
            check(fn, [tensor(3, 4)], [w], sens=sens[:dropped] + (None,) + sens[dropped + 1:])

    def test_output_inside_another_outputs_graph(self):
        w, u = weight(4, 4, seed=1), weight(4, 4, seed=2)

        def fn(x):
            h = ops.tanh(x @ w)
            return h @ u, h

        check(fn, [tensor(3, 4)], [w, u], sens=(tensor(3, 4, seed=5), tensor(3, 4, seed=6)))
        check(lambda x: fn(x)[::-1], [tensor(3, 4)], [w, u], sens=(tensor(3, 4, seed=5), tensor(3, 4, seed=6)))

    def test_outputs_at_every_level(self):
        weights = [weight(4, 4, seed=seed) for seed in range(3)]

        def fn(x):
            outs = []
            for w in weights:
                x = ops.tanh(x @ w)
                outs += [x, x * 2]
            return outs

        check(fn, [tensor(3, 4)], weights, sens=[tensor(3, 4, seed=seed) for seed in range(6)])

    def test_integer_output(self):
        w = weight(4, 4)

        def fn(x):
            h = x @ w
            return h, ops.argmax(h, 1)

        check(fn, [tensor(3, 4)], [w])
        check(fn, [tensor(3, 4)], [w], sens=(tensor(3, 4, seed=5), None))
        expected = reference(fn, [tensor(3, 4)], [w], sens=(tensor(3, 4, seed=5), None))
        ignored = (tensor(3, 4, seed=5), Tensor(np.zeros(7, np.float32)))
        assert_grads_close(split(fn, [tensor(3, 4)], [w], sens=ignored), expected)

    def test_integer_output_first_and_non_tensors(self):
        w = weight(4, 4)

        def fn(x):
            h = x @ w
            return {"index": ops.argmax(h, 1), "name": "h", "mask": h > 0, "out": (h, None, 3)}

        check(fn, [tensor(3, 4)], [w])
        out, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=[w])
        assert out["name"] == "h" and out["out"][1:] == (None, 3)
        sens = {"index": None, "name": None, "mask": None, "out": (tensor(3, 4, seed=5), None, None)}
        got = grad_fn.compute_input_grad(sens), grad_fn.compute_weight_grad()
        assert_grads_close(got, reference(fn, [tensor(3, 4)], [w], sens=sens))

    def test_no_gradient_for_one_output(self):
        w, u = weight(4, 4, seed=1), weight(4, 4, seed=2)
        sens = (tensor(3, 4, seed=5), None)
        _, (dw_w, dw_u) = check(lambda x: (x @ w, x.sin() @ u), [tensor(3, 4)], [w, u], sens=sens, vanishing=True)
        assert np.abs(dw_w.asnumpy()).min() > 0 and not dw_u.asnumpy().any()

    def test_no_gradient_for_any_output(self):
        w = weight(4, 4)
        dx, dw = split(lambda x: (x @ w, x.sin()), [tensor(3, 4)], [w], sens=(None, None))
        assert dx.shape == (3, 4) and not dx.asnumpy().any()
        assert dw[0].shape == (4, 4) and not dw[0].asnumpy().any()


class TestUnused:
    """What the output does not depend on has a gradient of zeros."""

    def test_only_unused_weights(self):
        check(lambda x: ops.sin(x), [tensor(3, 4)], [weight(2), weight(3, 3, seed=7)], vanishing=True)

    def test_some_unused_weights(self):
        w, u, g = weight(4, 4, seed=1), weight(2, seed=2), weight(4, seed=3)
        check(lambda x: ops.tanh(x @ w) * g, [tensor(3, 4)], [w, u, g], vanishing=True)

    def test_unused_input(self):
        w = weight(4)
        check(lambda x, y: y * w, [tensor(3, 4), tensor(4, seed=1)], [w], vanishing=True)
        check(lambda x, y: y * w, [tensor(3, 4), tensor(4, seed=1)], [w], grad_position=(0, 1), vanishing=True)

    def test_only_weights_are_used(self):
        w = weight(4)
        check(lambda x: w.sin() * 2, [tensor(3, 4)], [w], sens=tensor(4, seed=5), vanishing=True)

    def test_input_returned_as_it_is(self):
        check(lambda x: x, [tensor(3, 4)], [weight(4)], sens=tensor(3, 4, seed=5), vanishing=True)
        check(lambda x: x, [tensor(3, 4)], None, sens=tensor(3, 4, seed=5), vanishing=True)

    def test_input_returned_beside_its_use(self):
        w = weight(4, 4)
        check(lambda x: (x, x @ w, x), [tensor(3, 4)], [w], sens=tuple(tensor(3, 4, seed=seed) for seed in (5, 6, 7)))

    def test_stop_gradient_of_the_input(self):
        w = weight(4, 4)
        check(lambda x: ops.stop_gradient(x) @ w, [tensor(3, 4)], [w], vanishing=True)

    def test_stop_gradient_of_the_output(self):
        w = weight(4, 4)
        check(lambda x: ops.stop_gradient(x @ w), [tensor(3, 4)], [w], vanishing=True)

    def test_stop_gradient_of_one_path(self):
        w, u = weight(4, 4, seed=1), weight(4, 4, seed=2)
        check(lambda x: ops.stop_gradient(x @ w) @ u + ops.tanh(x) @ w, [tensor(3, 4)], [w, u], vanishing=True)

    def test_constant_output(self):
        constant = tensor(2)
        check(lambda x: constant, [tensor(3, 4)], [weight(4)], vanishing=True)
        check(lambda x: (x.sin(), constant), [tensor(3, 4)], [weight(4)], vanishing=True)


def test_groups_of_one_micro_batch_beside_whole_dw_of_another():
    w, u, x = weight(4, 4, seed=1), weight(4, 4, seed=2), tensor(3, 4)
    first = forward_and_gradfn(lambda a: ops.tanh(a @ w) @ u, x, weights=[w, u])[1]
    second = forward_and_gradfn(lambda a: ops.tanh(a @ w) @ u, x, weights=[w, u])[1]
    expected = reference(lambda a: ops.tanh(a @ w) @ u, [x], [w, u])
    dx = second.compute_input_grad(), first.compute_input_grad()
    assert_grads_close((dx[0], dw_by_groups(first, "reversed")), expected)
    assert_grads_close((dx[1], second.compute_weight_grad()), expected)
