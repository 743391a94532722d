"""Right values in hard places: norms, recurrent cells, dropout."""

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from .helpers import assert_grads_close, check, reference, split_by_groups, tensor, weight


class TestNorms:
    """One kernel makes dx and the weights' gradients; a weight may be shared between two of them."""

    def test_layer_norm(self):
        net = nn.SequentialCell(nn.Dense(4, 4), nn.LayerNorm((4,)), nn.Dense(4, 2))
        check(net, [tensor(3, 4)], net.trainable_params())

    def test_layer_norm_with_shared_beta(self):
        one, two, dense = nn.LayerNorm((4,)), nn.LayerNorm((4,)), nn.Dense(4, 4)
        two.beta = one.beta
        weights = [one.gamma, one.beta, two.gamma]
        check(lambda x: two(ops.tanh(dense(one(x)))), [tensor(3, 4)], weights, sens=tensor(3, 4, seed=5))

    def test_layer_norm_whose_beta_is_used_elsewhere_too(self):
        norm = nn.LayerNorm((4,))
        check(lambda x: norm(x * norm.beta + x.sin()) * norm.gamma, [tensor(3, 4)], [norm.gamma, norm.beta],
              sens=tensor(3, 4, seed=5))

    def test_layer_norm_of_a_weight(self):
        norm, w = nn.LayerNorm((4,)), weight(4, 4)
        check(lambda x: x @ norm(w), [tensor(3, 4)], [norm.gamma, norm.beta, w], sens=tensor(3, 4, seed=5))

    def test_batch_norm_in_training(self):
        net = nn.SequentialCell(nn.Conv2d(2, 3, 3, has_bias=True), nn.BatchNorm2d(3), nn.ReLU())
        net.set_train()
        check(net, [tensor(2, 2, 5, 5)], net.trainable_params(), sens=tensor(2, 3, 5, 5, seed=5))

    def test_group_norm(self):
        norm = nn.GroupNorm(2, 4)
        check(lambda x: norm(x.sin()), [tensor(2, 4, 3, 3)], norm.trainable_params(), sens=tensor(2, 4, 3, 3, seed=5))

    def test_prelu(self):
        net = nn.SequentialCell(nn.Dense(4, 4), nn.PReLU(4, 0.3), nn.Dense(4, 2))
        check(net, [tensor(3, 4)], net.trainable_params())


class TestRecurrent:
    """Several weights of one operation, several outputs."""

    @pytest.mark.parametrize("kind", [nn.LSTM, pytest.param(nn.GRU, marks=pytest.mark.slow), nn.RNN])
    def test_recurrent_cell(self, kind):
        net = kind(3, 4, num_layers=1)
        state = tensor(1, 2, 4, seed=3)
        hidden = (state, tensor(1, 2, 4, seed=4)) if kind is nn.LSTM else state
        check(lambda x, h: net(x, h)[0], [tensor(5, 2, 3), hidden], net.trainable_params(), grad_position=(0, 1))

    def test_lstm_with_all_outputs(self):
        net = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
        hidden = tensor(4, 2, 4, seed=3), tensor(4, 2, 4, seed=4)
        check(net, [tensor(5, 2, 3), hidden], net.trainable_params(), grad_position=-1)

    def test_weight_used_in_every_step(self):
        w, u = weight(4, 4, seed=1), weight(3, 4, seed=2)

        def fn(sequence):
            state = ops.zeros((2, 4))
            for step in ops.unbind(sequence, 0):
                state = ops.tanh(state @ w + step @ u)
            return state

        check(fn, [tensor(5, 2, 3)], [w, u])


class TestRandom:
    """Dropout: dx and dw see the mask of the forward."""

    def test_dropout(self):
        net = nn.SequentialCell(nn.Dense(4, 8), nn.Dropout(p=0.5), nn.Dense(8, 4))
        net.set_train()
        x, kept = tensor(6, 4), []

        def fn(a):
            h = net[1](net[0](a))
            kept.append(Tensor((h.asnumpy() != 0).astype(np.float32) * 2))
            return net[2](h)

        got = split_by_groups(fn, [x], net.trainable_params(), order="reversed")
        mask = kept[-1]
        expected = reference(lambda a: net[2](net[0](a) * mask), [x], net.trainable_params())
        assert_grads_close(got, expected)


def test_nested_cells():
    net = nn.SequentialCell(nn.SequentialCell(nn.Dense(4, 4), nn.ReLU()), nn.CellList([nn.Dense(4, 2)])[0])
    check(net, [tensor(3, 4)], list(net.trainable_params()))
