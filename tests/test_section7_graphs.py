"""Right values in hard places: shared weights, several outputs, unused weights and inputs, pieces of a tensor."""

from itertools import permutations

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mindspore_zb import forward_and_gradfn

from .helpers import (assert_grads_close, check, dw_by_groups, reference, split, split_by_groups, tensor, weight)


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

    def test_two_together_one_alone(self, abc):
        (a, b, c), grouped = abc

        def fn(x):
            return ops.tanh(x * (a * c)) * b

        check(fn, [tensor(3, 4)], [a, b, c])
        assert list(grouped(fn)) == [["b", "ac"]] * 6

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


class TestInputs:
    """Inputs that are the same tensor, have a history, or come from one another."""

    def test_same_tensor_twice(self):
        w, x = weight(4, 4), tensor(3, 4)
        dx, _ = check(lambda a, b: ops.tanh(a @ w) * b, [x, x], [w], grad_position=(0, 1))
        assert np.abs(dx[0].asnumpy() - dx[1].asnumpy()).max() > 0.1

    def test_same_tensor_twice_only_one_asked_for(self):
        w, x = weight(4, 4), tensor(3, 4)
        check(lambda a, b: ops.tanh(a @ w) * b, [x, x], [w], grad_position=1)

    def test_same_tensor_in_a_list_and_a_dict(self):
        w, x = weight(4, 4), tensor(3, 4)
        check(lambda a, b, c: a[0] @ w * b["k"] + a[1] * c, [[x, x], {"k": x}], [w], grad_position=-1, kwargs={"c": x})

    def test_parameter_as_input(self):
        w, u = weight(4, 4, seed=1), weight(4, seed=2)
        dx, dw = check(lambda x, p: x @ p * u, [tensor(3, 4), w], [w, u], grad_position=(0, 1), vanishing=True)
        assert np.abs(dx[1].asnumpy()).max() > 0 and not dw[0].asnumpy().any()

    def test_parameter_as_input_not_asked_for(self):
        w = weight(4, 4)
        _, dw = check(lambda x, p: x @ p, [tensor(3, 4), w], [w])
        assert np.abs(dw[0].asnumpy()).max() > 0

    def test_computed_from_a_weight_outside(self, recording):
        w, y = weight(4, 4), tensor(3, 4)
        with recording():
            x = ops.tanh(y @ w)
        assert x._grad_node is not None
        detached = Tensor(x.asnumpy())
        expected = reference(lambda a: ops.sin(a @ w), [detached], [w])
        assert_grads_close(split(lambda a: ops.sin(a @ w), [x], [w]), expected)
        assert_grads_close(split_by_groups(lambda a: ops.sin(a @ w), [x], [w]), expected)
        assert_grads_close(split(lambda a, b: a @ w * b, [detached, x], [w]),
                           reference(lambda a, b: a @ w * b, [detached, detached], [w]))

    def test_captured_tensor_with_a_history_from_a_weight(self, recording):
        w, x = weight(4, 4), tensor(3, 4)
        with recording():
            outside = ops.tanh(w)
        expected = reference(lambda a: a @ w + Tensor(outside.asnumpy()).sum(), [x], [w])
        assert_grads_close(split(lambda a: a @ w + outside.sum(), [x], [w]), expected)
        _, grad_fn = forward_and_gradfn(lambda a: a @ w + outside.sum(), x, weights=[w])
        assert_grads_close(grad_fn(), expected)

    def test_outside_tensor_returned(self, recording):
        w, x = weight(4, 4), tensor(3, 4)
        with recording():
            outside = ops.tanh(w)
        dx, dw = split(lambda a: (a @ w, outside), [x], [w])
        assert_grads_close((dx, dw), reference(lambda a: a @ w, [x], [w]))

    def test_input_computed_from_another_input(self, recording):
        w, x = weight(4, 4), tensor(3, 4)
        x._requires_grad = True
        with recording():
            y = ops.sin(x) * 2
        apart = [Tensor(x.asnumpy()), Tensor(y.asnumpy())]
        for position in (0, 1, (0, 1), (1, 0), -1):
            expected = reference(lambda a, b: (a @ w) * b, apart, [w], grad_position=position)
            assert_grads_close(split(lambda a, b: (a @ w) * b, [x, y], [w], grad_position=position), expected)

    def test_token_ids(self):
        table, w = weight(10, 4, seed=1), weight(4, 3, seed=2)
        ids = Tensor(np.array([[1, 2, 2], [0, 9, 2]], np.int32))
        dx, dw = check(lambda i: ops.tanh(ops.gather(table, i, 0)) @ w, [ids], [table, w])
        assert dx is None

    def test_embedding_cell_with_token_ids(self):
        net = nn.SequentialCell(nn.Embedding(10, 4), nn.Dense(4, 3))
        ids = Tensor(np.array([[1, 2, 2], [0, 9, 2]], np.int32))
        check(net, [ids], net.trainable_params())
        check(net, [ids], net.trainable_params(), grad_position=-1)


class TestPieces:
    """Pieces of one tensor that take different paths: gradients go by slot."""

    def test_split_of_an_activation(self):
        w, u = weight(4, 6, seed=1), weight(2, 2, seed=2)

        def fn(x):
            one, two, three = ops.split(x @ w, [1, 2, 3], axis=1)
            return one.sin().sum() + (two @ u).sum(), three

        check(fn, [tensor(3, 4)], [w, u], sens=(tensor(seed=5), tensor(3, 3, seed=6)))

    def test_unused_piece(self):
        w, u = weight(4, 6, seed=1), weight(2, 2, seed=2)
        check(lambda x: ops.split(x @ w, [1, 2, 3], axis=1)[1] @ u, [tensor(3, 4)], [w, u])

    def test_split_of_a_weight(self):
        w = weight(4, 6)

        def fn(x):
            one, two, three = ops.split(w, [1, 2, 3], axis=1)
            return (x @ one).sin() * (x @ three), x @ two

        check(fn, [tensor(3, 4)], [w])
        check(lambda x: fn(x)[0], [tensor(3, 4)], [w])

    def test_split_of_an_input(self):
        w, u = weight(1, 4, seed=1), weight(3, 4, seed=2)

        def fn(x):
            one, two = ops.split(x, [1, 3], axis=1)
            return ops.tanh(one @ w) * (two @ u)

        check(fn, [tensor(3, 4)], [w, u])
        check(lambda x: ops.split(x, [1, 3], axis=1)[0] @ w, [tensor(3, 4)], [w, u], vanishing=True)

    def test_unbind(self):
        w, u = weight(4, 4, seed=1), weight(4, seed=2)

        def fn(x):
            one, two, three = ops.unbind(x @ w, 0)
            return one * u, ops.sin(three)

        check(fn, [tensor(3, 4)], [w, u], sens=(tensor(4, seed=5), tensor(4, seed=6)))

    def test_unbind_of_weights(self):
        w, u = weight(3, 4, seed=1), weight(4, 4, seed=2)

        def fn(x):
            one, _, three = ops.unbind(w @ u, 0)
            return x * one, ops.sin(x @ u) + three

        check(fn, [tensor(3, 4)], [w, u])

    def test_topk(self):
        w, u = weight(4, 6, seed=1), weight(2, 4, seed=2)

        def fn(x):
            values, indices = ops.topk(x @ w, 2)
            return values @ u, indices

        check(fn, [tensor(3, 4)], [w, u])

    def test_pieces_as_boundaries_of_several_weights(self):
        weights = [weight(2, 2, seed=seed) for seed in range(3)]

        def fn(x):
            pieces = ops.split(x, 2, axis=1)
            return ops.concat([ops.tanh(piece @ w) for piece, w in zip(pieces, weights)], 1)

        check(fn, [tensor(3, 6)], weights)

    def test_concat_of_weights_and_inputs(self):
        w, u = weight(2, 4, seed=1), weight(3, 4, seed=2)
        check(lambda x: ops.concat([w, x, u, w], 0).sin(), [tensor(3, 4)], [w, u])


def test_groups_of_one_micro_batch_beside_whole_dw_of_another():
    w, u, x = weight(4, 4, seed=1), weight(4, 4, seed=2), tensor(3, 4)
    first = forward_and_gradfn(lambda a: ops.tanh(a @ w) @ u, x, weights=[w, u])[1]
    second = forward_and_gradfn(lambda a: ops.tanh(a @ w) @ u, x, weights=[w, u])[1]
    expected = reference(lambda a: ops.tanh(a @ w) @ u, [x], [w, u])
    dx = second.compute_input_grad(), first.compute_input_grad()
    assert_grads_close((dx[0], dw_by_groups(first, "reversed")), expected)
    assert_grads_close((dx[1], second.compute_weight_grad()), expected)
