"""Right values in hard places: inputs given twice or with a history, token ids, pieces of a tensor."""

import numpy as np
from mindspore import Tensor, nn, ops

from mindspore_zb import forward_and_gradfn

from .helpers import assert_grads_close, check, reference, split, split_by_groups, tensor, weight


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
