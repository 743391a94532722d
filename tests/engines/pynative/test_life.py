"""What is freed when, seen without the garbage collector."""

import gc
import random

import pytest
from mindspore import nn, ops

from mindspore_zb import options

from ...helpers import assert_grads_close, dw_by_groups, reference, tensor, weight
from .saved import Layers, forward


@pytest.fixture(autouse=True)
def no_collector():
    """Only reference counts free anything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def layers():
    return Layers()


class TestFreedByDx:
    """After dx only what dw needs is left."""

    def test_what_only_dx_needs_is_gone(self, layers):
        x = tensor(3, 4)
        saved, grad_fn = forward(layers, x, layers.weights)
        assert set(layers.before) | set(layers.inputs) <= saved.pointers()
        grad_fn.compute_input_grad()
        assert saved.pointers() == set(layers.inputs)

    @pytest.mark.parametrize("activation", [ops.silu, ops.gelu, ops.sin, ops.tanh, ops.relu, ops.sigmoid,
                                            lambda x: x * x, lambda x: ops.softmax(x.sin()),
                                            lambda x: (x * 1.5 + x.sin()).exp()],
                             ids=["silu", "gelu", "sin", "tanh", "relu", "sigmoid", "square", "chain", "diamond"])
    def test_other_activations(self, activation):
        layers = Layers(activation)
        saved, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        grad_fn.compute_input_grad()
        assert saved.pointers() == set(layers.inputs)
        grad_fn.compute_weight_grad()
        assert saved.count() == 0

    def test_freed_while_dx_runs(self, layers):
        """What lies between two matmuls; the activation above the last one is freed when dx ends."""
        seen = []

        class Seen(nn.Cell):
            """Looks around when the backward comes to it, at the end of dx."""

            def construct(self, x):
                return x * 2.0

            def bprop(self, x, out, dout):
                seen.append(saved.pointers())
                return (dout * 2.0,)

        cell = Seen()
        saved, grad_fn = forward(lambda x: layers(cell(x)), tensor(3, 4), layers.weights)
        grad_fn.compute_input_grad()
        assert layers.before[1] not in seen[0]

    def test_without_early_freeing_it_is_gone_after_dx_at_the_latest_with_dw(self, layers):
        with options(free_early=False):
            saved, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        grad_fn.compute_input_grad()
        assert set(layers.inputs) <= saved.pointers()
        grad_fn.compute_weight_grad()
        assert saved.count() == 0

    def test_no_weights(self, layers):
        saved, grad_fn = forward(layers, tensor(3, 4), [])
        grad_fn.compute_input_grad()
        assert saved.count() == 0

    def test_weights_of_the_last_layer_only(self, layers):
        saved, grad_fn = forward(layers, tensor(3, 4), layers.weights[-1:])
        grad_fn.compute_input_grad()
        assert saved.pointers() - {one.data_ptr() for one in layers.weights} == {layers.inputs[-1]}

    def test_norm_whose_gradients_are_caught_in_dx(self):
        norm, w = nn.LayerNorm((4,)), weight(4, 4)
        saved, grad_fn = forward(lambda x: norm(ops.sin(x) @ w), tensor(3, 4), [*norm.trainable_params(), w])
        grad_fn.compute_input_grad()
        assert saved.count() == 1  # sin(x), for w
        grad_fn.compute_weight_grad()
        assert saved.count() == 0

    def test_unused_weight_side_of_another_output(self):
        w, u = weight(4, 4, seed=1), weight(4, 4, seed=2)
        saved, grad_fn = forward(lambda x: (ops.sin(x) @ w, ops.sin(u)), tensor(3, 4), [w])
        grad_fn.compute_input_grad()
        grad_fn.compute_weight_grad()
        assert saved.count() == 0


class TestFreedByDw:
    """Each group frees what it used, and the last one leaves nothing."""

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
    def test_each_group_frees_its_part(self, layers, order):
        saved, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        grad_fn.compute_input_grad()
        left = set(layers.inputs)
        for number in order:
            group = grad_fn.weight_groups[number]
            group.compute()
            left -= {layers.inputs[place] for place in group.positions}
            assert saved.pointers() == left
        assert saved.count() == 0

    def test_keep_graph_keeps(self, layers):
        saved, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        grad_fn.compute_input_grad()
        grad_fn.compute_weight_grad(keep_graph=True)
        grad_fn.weight_groups[0].compute(keep_graph=True)
        assert saved.pointers() == set(layers.inputs)
        grad_fn.compute_weight_grad()
        assert saved.count() == 0

    def test_whole_dw(self, layers):
        saved, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        grad_fn.compute_input_grad()
        grad_fn.compute_weight_grad()
        assert saved.count() == 0

    def test_unsplit(self, layers):
        saved, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        grad_fn(keep_graph=True)
        assert set(layers.before) | set(layers.inputs) <= saved.pointers()
        grad_fn()
        assert saved.count() == 0

    def test_weight_side_operations(self):
        w, u = weight(4, 4, seed=1), weight(4, 4, seed=2)
        saved, grad_fn = forward(lambda x: x.sin() @ ops.sin(w * 2) @ ops.sin(u), tensor(3, 4), [w, u])
        grad_fn.compute_input_grad()
        assert saved.count() > 0
        for group in grad_fn.weight_groups:
            group.compute()
        assert saved.count() == 0

    def test_results_stay_alive_alone(self, layers):
        saved, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        dx, dw = grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()
        assert saved.count() == 0
        assert dx._grad_node is None and all(grad._grad_node is None for grad in dw)


class TestMicroBatches:
    """Many graphs alive: each frees its own when it is done."""

    @pytest.mark.parametrize("seed", range(3))
    def test_20_finished_in_random_order(self, layers, seed):
        shuffled = random.Random(seed)
        batches = [tensor(3, 4, seed=place) for place in range(20)]
        expected = [reference(layers, [x], layers.weights) for x in batches]
        runs = [forward(layers, x, layers.weights) for x in batches]
        waiting = list(range(20)) * 2
        shuffled.shuffle(waiting)
        dx = {}
        for place in waiting:
            saved, grad_fn = runs[place]
            if place not in dx:
                dx[place] = grad_fn.compute_input_grad()
                assert saved.count() >= 3
            else:
                dw = dw_by_groups(grad_fn, seed) if place % 2 else grad_fn.compute_weight_grad()
                assert_grads_close((dx[place], dw), expected[place])
                assert saved.count() == 0
        assert all(saved.count() == 0 for saved, _ in runs)
