"""The graph engine from outside: values over several steps, states, memory, and what changes between calls."""

import gc
import os
import random
import threading
import warnings
import weakref

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindspore_zb import forward_and_gradfn, options, zero_bubble
from mindspore_zb.api import run_forward
from mindspore_zb.engines.graph import cache
from mindspore_zb.engines.graph.joint import weights_key
from mindspore_zb.errors import StateError, UnsupportedError
from mindspore_zb.fallback import FallbackWarning

from tests.networks.compare import assert_same, unsplit_grads


class Mlp(nn.Cell):
    """Linear layers with tanh between them."""

    def __init__(self, width=8, layers=3):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(width, width) for _ in range(layers)])
        self.scale = 2.0
        for place, parameter in enumerate(self.trainable_params()):
            parameter.set_data(normal(*parameter.shape, seed=place) * 0.3)

    def construct(self, x):
        for layer in self.layers:
            x = ops.tanh(layer(x)) * self.scale
        return x


class Experts(nn.Cell):
    """A product of the input and of weights, or of what is made of them."""

    def __init__(self, made):
        super().__init__()
        self.made = made
        shapes = {"one": (4, 5), "other": (4, 5), "own": (2, 4, 5), "turned": (2, 5, 4), "many": (6, 4, 5)}
        for seed, (name, shape) in enumerate(shapes.items()):
            setattr(self, name, Parameter(normal(*shape, seed=seed), name=name))
        self.ids = Tensor(np.array([3, 1], np.int32))

    def weight(self):
        if self.made == "shared":
            return self.one
        if self.made == "own":
            return self.own
        if self.made == "turned":
            return self.turned.swapaxes(1, 2)
        if self.made == "stacked":
            return ops.stack([self.one, self.other])
        if self.made == "joined":
            return ops.concat([self.one, self.other]).reshape(2, 4, 5)
        if self.made == "split":
            return ops.split(self.many, 2)[1]
        if self.made == "chosen":
            return ops.gather(self.many, self.ids, 0)
        if self.made == "tiled":
            return ops.tile(self.one.reshape(1, 4, 5), (2, 1, 1))
        return self.many[:2] * 0.5 + self.many[2:4]

    def construct(self, x):
        return ops.sin(ops.matmul(x, self.weight()))


def normal(*shape, seed=0):
    return Tensor(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


def graph(fn, *inputs, weights=None, **settings):
    """``(out, grad_fn)`` of the graph engine, which must not fall back."""
    out, grad_fn = run_forward(fn, inputs, {}, weights, settings.get("has_aux", False),
                               settings.get("grad_position", 0), "graph")
    assert grad_fn.engine == "graph" and grad_fn.fallback_reason is None
    return out, grad_fn


def check(fn, x, weights, sens=None, tolerance=None):
    """Split and unsplit gradients of the graph engine equal MindSpore's own."""
    sens = normal(*fn(x).shape, seed=9) if sens is None else sens
    right = unsplit_grads(fn, (x,), weights, sens)
    out, grad_fn = graph(fn, x, weights=weights)
    assert_same(out, right.out, "out", tolerance)
    assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx", tolerance)
    assert_same(grad_fn.compute_weight_grad(), right.dw, "dw", tolerance)


class TestCompiledOnce:
    """One compile per signature; what changes the result compiles anew."""

    def test_micro_batches_share_a_program(self, compiled):
        net = Mlp()
        for seed in range(3):
            check(net, normal(4, 8, seed=seed), net.trainable_params())
        assert len(compiled) == 1

    def test_other_shapes_and_back(self, compiled):
        net = Mlp(layers=1)
        for rows in (4, 6, 4, 6):
            check(net, normal(rows, 8), net.trainable_params())
        assert len(compiled) == 2

    def test_other_dtype(self):
        net = nn.SequentialCell(nn.ReLU())
        for dtype in (np.float32, np.float64):
            x = Tensor(np.array([-1.0, 2.0], dtype))
            out, grad_fn = graph(net, x)
            assert out.dtype == x.dtype and grad_fn.compute_input_grad().asnumpy().tolist() == [0.0, 1.0]

    def test_attribute_changed(self, compiled):
        net = Mlp(layers=1)
        check(net, normal(4, 8), net.trainable_params())
        net.scale = 5.0
        check(net, normal(4, 8), net.trainable_params())
        net.scale = 2.0
        check(net, normal(4, 8), net.trainable_params())
        assert len(compiled) == 2

    def test_constant_argument(self):
        def scaled(x, factor):
            return ops.sin(x) * factor

        for factor in (2.0, 3.0, 2.0):
            out, _ = graph(scaled, normal(3), factor)
            assert_same(out, ops.sin(normal(3)) * factor, "out")

    def test_weight_with_other_values(self, compiled):
        net = Mlp(layers=1)
        for seed in range(2):
            net.layers[0].weight.set_data(normal(8, 8, seed=seed))
            check(net, normal(4, 8), net.trainable_params())
        assert len(compiled) == 1

    def test_weight_replaced_and_reshaped(self):
        net = nn.Dense(8, 8)
        check(net, normal(4, 8), net.trainable_params())
        net.weight = Parameter(normal(8, 8, seed=3), name="weight")
        check(net, normal(4, 8), net.trainable_params())

        def product(x):
            return ops.matmul(x, weight)

        weight = Parameter(normal(8, 5), name="weight")
        check(product, normal(4, 8), [weight])
        weight.set_data(normal(8, 3, seed=4), slice_shape=True)
        check(product, normal(4, 8), [weight])

    def test_parameter_as_an_input_reshaped(self):
        weight = Parameter(normal(8, 5), name="weight")
        for columns in (5, 3):
            weight.set_data(normal(8, columns, seed=columns), slice_shape=True)
            out, grad_fn = graph(lambda x, w: ops.matmul(x, w), normal(4, 8), weight, weights=[weight])
            assert_same(out, ops.matmul(normal(4, 8), weight), "out")
            grad_fn.compute_input_grad()
            assert_same(grad_fn.compute_weight_grad()[0], ops.matmul(normal(4, 8).T, ops.ones((4, columns))), "dw")

    def test_cells_that_differ_in_the_shape_of_a_parameter_only(self):
        class Scales(nn.Cell):
            def __init__(self, columns):
                super().__init__()
                self.scale = Parameter(normal(1, columns, seed=columns), name="scale")

            def construct(self, x):
                return x * self.scale

        for columns in (1, 4):
            net = Scales(columns)
            check(net, normal(3, 4), net.trainable_params())

    def test_state_that_changes_at_every_call_falls_back_in_the_end(self, compiled):
        net = Mlp(layers=1)
        for step in range(cache.PROGRAMS_PER_CALL + 1):
            net.scale = 1.0 + step
            out, grad_fn = run_forward(net, (normal(2, 8),), {}, None, False, 0, "graph") \
                if step < cache.PROGRAMS_PER_CALL else (None, None)
        assert len(compiled) == cache.PROGRAMS_PER_CALL
        net.scale = 100.0
        with pytest.raises(UnsupportedError, match="changes too often.*scale"):
            graph(net, normal(2, 8))


class TestSteps:
    """Training steps, with an optimizer between them."""

    class Net(nn.Cell):
        """A convolution, a norm with moving statistics, and a dense layer."""

        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.dense = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dense(4, 3)
            for place, parameter in enumerate(self.trainable_params()):
                parameter.set_data(normal(*parameter.shape, seed=place) * 0.5)

        def construct(self, x):
            return self.dense(ops.relu(self.norm(self.conv(x))).mean(axis=(2, 3)))

    def test_batch_norm_statistics_and_optimizer(self):
        results = []
        for mode in ("graph", "pynative"):
            net = self.Net()
            net.set_train()
            optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)
            for step in range(4):
                out, grad_fn = run_forward(net, (normal(4, 2, 6, 6, seed=step),), {}, net.trainable_params(), False, 0,
                                           mode)
                assert grad_fn.engine == mode
                grad_fn.compute_input_grad(out)
                optimizer(grad_fn.compute_weight_grad())
            results.append([parameter.asnumpy() for parameter in net.get_parameters()])
        for one, two in zip(*results):
            np.testing.assert_allclose(one, two, rtol=0, atol=2e-5 * np.abs(two).max())

    def test_training_flag(self):
        net = self.Net()
        x = normal(4, 2, 6, 6)
        for training in (True, False, True):
            net.set_train(training)
            before = net.norm.moving_mean.asnumpy().copy()
            out, _ = graph(net, x, weights=net.trainable_params())
            assert (net.norm.moving_mean.asnumpy() != before).any() == training
            if not training:
                assert_same(out, net(x), "out")

    def test_dropout_has_one_mask_for_both_and_another_each_time(self):
        net = nn.SequentialCell(nn.Dropout(p=0.5), nn.ReLU())
        net.set_train()
        x = Tensor(np.ones((64, 64), np.float32))
        masks = []
        for _ in range(2):
            out, grad_fn = graph(net, x)
            masks.append(out.asnumpy() != 0)
            assert ((grad_fn.compute_input_grad().asnumpy() != 0) == masks[-1]).all()
        assert 0.3 < masks[0].mean() < 0.7 and (masks[0] != masks[1]).any()


class TestNames:
    """Names of Parameters do not matter."""

    def test_two_of_one_name(self):
        one, other = Parameter(normal(4, 4), name="w"), Parameter(normal(4, 4, seed=1), name="w")

        def fn(x):
            return ops.matmul(ops.tanh(ops.matmul(x, one)), other)

        check(fn, normal(3, 4), [one, other])
        check(fn, normal(3, 4), [other, one])
        assert one.name == other.name == "w"

    def test_after_an_eager_call_that_renames(self):
        class Block(nn.Cell):
            def __init__(self):
                super().__init__()
                self.layers = nn.SequentialCell(nn.Dense(4, 4), nn.Tanh(), nn.BatchNorm1d(4))

            def construct(self, x):
                return self.layers(x)

        class Net(nn.Cell):
            def __init__(self):
                super().__init__()
                self.blocks = nn.CellList([Block(), Block()])

            def construct(self, x):
                for block in self.blocks:
                    x = block(x)
                return x

        net = Net()
        net.set_train()
        net(normal(5, 4))
        names = [parameter.name for parameter in net.get_parameters()]
        check(net, normal(5, 4), net.trainable_params(), tolerance=1e-4)
        before = [parameter.asnumpy().copy() for parameter in net.get_parameters()]
        graph(net, normal(5, 4, seed=3), weights=net.trainable_params())
        changed = [name for name, one, parameter in zip(names, before, net.get_parameters())
                   if (one != parameter.asnumpy()).any()]
        assert len(changed) == 4 and all("moving" in name for name in changed)
        assert [parameter.name for parameter in net.get_parameters()] == names


class TestManyAtOnce:
    """Micro-batches in flight, and threads."""

    def test_eight_in_any_order(self):
        net = Mlp()
        weights = net.trainable_params()
        inputs = [normal(4, 8, seed=seed) for seed in range(8)]
        right = [unsplit_grads(net, (x,), weights, ops.ones_like(net(x))) for x in inputs]
        flights = [graph(net, x, weights=weights)[1] for x in inputs]
        order = list(range(8))
        random.Random(3).shuffle(order)
        for place in order:
            assert_same(flights[place].compute_input_grad(), right[place].dx, "dx")
        random.Random(4).shuffle(order)
        for place in order:
            assert_same(flights[place].compute_weight_grad(), right[place].dw, "dw")

    def test_two_threads(self):
        nets = [Mlp(), Mlp()]
        right = [unsplit_grads(net, (normal(4, 8),), net.trainable_params(), ops.ones((4, 8))) for net in nets]
        errors = []

        def work(net, expected):
            try:
                for _ in range(20):
                    _, grad_fn = graph(net, normal(4, 8), weights=net.trainable_params())
                    assert_same(grad_fn.compute_input_grad(), expected.dx, "dx")
                    assert_same(grad_fn.compute_weight_grad(), expected.dw, "dw")
            except BaseException as error:  # to be seen in the main thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=pair) for pair in zip(nets, right)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads) and not errors


class TestGroups:
    """dw in pieces."""

    @pytest.mark.parametrize("pieces, count", [("auto", 1), (1, 1), (2, 2), (4, 4), (None, 6)])
    def test_pieces(self, pieces, count):
        net = Mlp(layers=6)
        weights = net.trainable_params()
        right = unsplit_grads(net, (normal(4, 8),), weights, ops.ones((4, 8)))
        with options(graph_pieces=pieces):
            _, grad_fn = graph(net, normal(4, 8), weights=weights)
        grad_fn.compute_input_grad()
        groups = grad_fn.weight_groups
        assert len(groups) == count
        assert sorted(place for group in groups for place in group.positions) == list(range(len(weights)))
        held = grad_fn.nbytes
        for group in reversed(groups):
            for place, grad in zip(group.positions, group.compute()):
                assert_same(grad, right.dw[place], f"dw of {weights[place].name}")
            assert grad_fn.nbytes < held
            held = grad_fn.nbytes
        assert held == 0 and grad_fn.state == "released"

    def test_order_of_calls(self):
        net = Mlp()
        _, grad_fn = graph(net, normal(4, 8), weights=net.trainable_params())
        with pytest.raises(StateError, match="compute_input_grad first"):
            grad_fn.compute_weight_grad()
        one = grad_fn(keep_graph=True)
        assert_same(grad_fn(keep_graph=True), one, "unsplit again", 0)
        dx = grad_fn.compute_input_grad()
        with pytest.raises(StateError, match="already computed"):
            grad_fn.compute_input_grad()
        dw = grad_fn.compute_weight_grad(keep_graph=True)
        assert_same(grad_fn.compute_weight_grad(), dw, "dw again", 0)
        assert_same((dx, dw), one, "split", 0)
        with pytest.raises(StateError, match="released"):
            grad_fn.compute_weight_grad()

    @pytest.mark.parametrize("policy", ["views", "elementwise", "cheap", "selective"])
    def test_recompute_saves_bytes_and_changes_nothing(self, policy):
        net = Mlp()
        results, held = [], []
        for chosen in ("none", policy):
            with options(graph_recompute=chosen):
                _, grad_fn = graph(net, normal(4, 8), weights=net.trainable_params())
            held.append(grad_fn._recording._program.layout.saved_bytes)
            results.append((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()))
        assert_same(results[1], results[0], "gradients", 0)
        assert held[1] <= held[0]

    @staticmethod
    def saved(fn, policy, weights, *inputs):
        """Bytes that cross to the backward; values are checked."""
        sens = normal(*fn(*inputs).shape, seed=9)
        places = tuple(range(len(inputs)))
        right = unsplit_grads(fn, inputs, weights, sens, grad_position=places)
        with options(graph_recompute=policy):
            _, grad_fn = graph(fn, *inputs, weights=weights, grad_position=places)
        saved, _ = grad_fn._recording.crossing_bytes()
        assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx")
        assert_same(grad_fn.compute_weight_grad(), right.dw, "dw")
        return saved

    @pytest.mark.parametrize("shape", [(5, 2, 3), (4, 2, 5, 3)], ids=str)
    def test_selective_recompute_computes_the_products_of_attention_again(self, shape):
        """Of attention only queries, keys and values are saved, and not what is as long as wide."""
        def attention(queries, keys, values):
            return ops.matmul(ops.softmax(ops.matmul(queries, keys.swapaxes(-1, -2)) * 0.5), values)

        def and_on(queries, keys, values):
            return ops.tanh(attention(queries, keys, values))

        inputs = [normal(*shape, seed=seed) for seed in range(3)]
        each, scores = inputs[0].nbytes, inputs[0].nbytes // shape[-1] * shape[-2]
        for fn, more in ((attention, 0), (and_on, each)):  # without products tanh has to be saved too
            assert self.saved(fn, "cheap", (), *inputs) == 3 * each + scores + more
            assert self.saved(fn, "selective", (), *inputs) == 3 * each

    @pytest.mark.parametrize("groups", [1, 2])
    def test_selective_recompute_of_grouped_attention(self, groups):
        """Several queries share keys and values: shapes that are broadcast."""
        def attention(queries, keys, values):
            return ops.matmul(ops.softmax(ops.matmul(queries, keys)), values)

        inputs = normal(2, groups, 3, 7, 4), normal(2, groups, 1, 4, 5, seed=1), normal(2, groups, 1, 5, 4, seed=2)
        each, scores = sum(value.nbytes for value in inputs), 4 * 2 * groups * 3 * 7 * 5
        assert self.saved(attention, "cheap", (), *inputs) == each + scores
        assert self.saved(attention, "selective", (), *inputs) == each

    @pytest.mark.parametrize("made", ["shared", "own", "turned", "stacked", "joined", "split", "chosen", "tiled", "sum"])
    def test_selective_recompute_computes_no_product_of_a_weight_again(self, made):
        """Of a linear layer and of experts, each of which has a matrix of its own, what is read later is saved."""
        net, x = Experts(made), normal(2, 3, 4)
        saved = [self.saved(net, policy, net.trainable_params(), x) for policy in ("cheap", "selective")]
        assert saved[0] == saved[1] >= 4 * 2 * 3 * (4 + 5)  # x, and what the sine reads

    def test_selective_recompute_computes_no_product_of_single_matrices_again(self):
        inputs = normal(3, 4), normal(4, 5, seed=1)
        assert self.saved(lambda one, other: ops.tanh(ops.matmul(one, other)), "selective", (), *inputs) == sum(
            matrix.nbytes for matrix in inputs) + 4 * 3 * 5


class TestMemory:
    """What is held, and for how long."""

    def test_after_dx_what_dw_needs_and_nothing_after_dw(self):
        rows, width, layers = 16, 8, 3
        net = Mlp(width, layers)
        net.scale = 1.0
        _, grad_fn = graph(net, normal(rows, width), weights=net.trainable_params())
        grad_fn.compute_input_grad(normal(rows, width, seed=5))
        assert grad_fn.nbytes == 2 * layers * rows * width * 4  # of each layer its input and its output's gradient
        values = [weakref.ref(value) for value in grad_fn._recording._values.values()
                  if not isinstance(value, Parameter)]
        gc.disable()
        try:
            grad_fn.compute_weight_grad()
            assert not [value for value in values if value() is not None]
        finally:
            gc.enable()

    def test_abandoned(self):
        net = Mlp()
        _, grad_fn = graph(net, normal(4, 8), weights=net.trainable_params())
        values = [weakref.ref(value) for value in grad_fn._recording._values.values()
                  if not isinstance(value, Parameter)]
        gc.disable()
        try:
            del grad_fn
            assert values and not [value for value in values if value() is not None]
        finally:
            gc.enable()

    def test_programs_go_with_the_cell(self):
        net = Mlp(layers=1)
        graph(net, normal(4, 8))
        gone = weakref.ref(net)
        del net
        gc.collect()
        assert gone() is None


class TestLettingGo:
    """What is held while dw runs piece by piece."""

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
    @pytest.mark.parametrize("shared", [True, False])
    def test_each_lets_go_of_what_no_other_needs(self, order, shared):
        weights = [Parameter(normal(8, 8, seed=seed), name=f"w{seed}") for seed in range(4)]

        def fn(x):
            one, other = ops.tanh(x), ops.sin(x)
            return one @ weights[0], other @ (weights[1] * weights[2]), (one if shared else ops.cos(x)) @ weights[3]

        x, sens = normal(4, 8), tuple(normal(4, 8, seed=seed) for seed in range(10, 13))
        right = unsplit_grads(fn, (x,), weights, sens)
        with options(graph_pieces=None):
            _, grad_fn = graph(fn, x, weights=weights)
        assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx")
        groups, recording = grad_fn.weight_groups, grad_fn._recording
        assert [group.positions for group in groups] == [(0,), (1, 2), (3,)]
        held = [set(recording.held([number])) for number in range(len(groups))]
        for done, number in enumerate(order, 1):
            for place, grad in zip(groups[number].positions, groups[number].compute()):
                assert_same(grad, right.dw[place], f"dw of weight {place}")
            assert set(grad_fn.held_storages()) == set().union(*(held[waiting] for waiting in order[done:]))

    def test_an_unsplit_backward_lets_go_as_it_goes(self, monkeypatch):
        net, held = Mlp(), []
        with options(graph_pieces=None):
            _, grad_fn = graph(net, normal(4, 8), weights=net.trainable_params())
        recording = grad_fn._recording
        values = {name: weakref.ref(value) for name, value in recording.values.items()
                  if not isinstance(value, Parameter)}
        run = type(recording)._run_group

        def looking(self, number):
            held.append(sum(value() is not None for value in values.values()))
            return run(self, number)

        monkeypatch.setattr(type(recording), "_run_group", looking)
        gc.disable()
        try:
            del recording
            grad_fn(normal(4, 8, seed=3))
        finally:
            gc.enable()
        assert len(held) == 3 and held == sorted(held, reverse=True) and held[-1] < held[0] < len(values)


class TestArguments:
    """Tensors as callers have them."""

    def test_sens_is_free_again_after_dx(self):
        net = Mlp()
        weights = net.trainable_params()
        sens = normal(4, 8, seed=2)
        right = unsplit_grads(net, (normal(4, 8),), weights, normal(4, 8, seed=2))
        _, grad_fn = graph(net, normal(4, 8), weights=weights)
        grad_fn.compute_input_grad(sens)
        sens.copy_(ops.zeros((4, 8)))
        assert_same(grad_fn.compute_weight_grad(), right.dw, "dw")

    def test_views(self):
        net = Mlp()
        check(net, normal(8, 4).T, net.trainable_params(), normal(8, 4, seed=3).T)
        check(net, normal(8, 8)[2:6], net.trainable_params(), normal(8, 8, seed=3)[::2])

    def test_wrong_sens(self):
        _, grad_fn = graph(Mlp(), normal(4, 8))
        with pytest.raises(ValueError, match="shape"):
            grad_fn.compute_input_grad(normal(1, 8))
        with pytest.raises(TypeError, match="Float64"):
            grad_fn.compute_input_grad(normal(4, 8).astype(ms.float64))
        assert grad_fn.compute_input_grad().shape == (4, 8)


class TestWhichEngine:
    """``@jit`` in all forms goes through the graph engine; what cannot, falls back and says so once."""

    def test_jit_in_all_forms(self):
        class Compiled(nn.Cell):
            def __init__(self):
                super().__init__()
                self.dense = nn.Dense(4, 3)

            @ms.jit
            def construct(self, x):
                return ops.tanh(self.dense(x))

        @ms.jit
        def function(x):
            return ops.tanh(ops.matmul(x, weight))

        weight = Parameter(normal(4, 3), name="weight")
        cell, dense = Compiled(), nn.Dense(4, 3)
        for fn, weights in ((cell, cell.trainable_params()), (function, [weight]),
                            (ms.jit(dense), dense.trainable_params())):
            right = unsplit_grads(fn, (normal(2, 4),), weights, ops.ones((2, 3)))
            out, grad_fn = forward_and_gradfn(fn, normal(2, 4), weights=weights)
            assert grad_fn.engine == "graph"
            assert_same(out, right.out, "out")
            assert_same(grad_fn.compute_input_grad(), right.dx, "dx")
            assert_same(grad_fn.compute_weight_grad(), right.dw, "dw")

    def test_fallback_warns_once_and_is_right(self):
        @ms.jit
        def branching(x):
            if ops.sum(x) > 0:
                return ops.tanh(ops.matmul(x, weight))
            return ops.sin(ops.matmul(x, weight))

        weight = Parameter(normal(4, 3), name="weight")
        with pytest.warns(FallbackWarning, match="branching.*control flow"):
            _, grad_fn = forward_and_gradfn(branching, normal(2, 4), weights=[weight])
        assert grad_fn.engine == "pynative" and "control flow" in grad_fn.fallback_reason
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, grad_fn = forward_and_gradfn(branching, normal(2, 4), weights=[weight])
        right = unsplit_grads(branching, (normal(2, 4),), [weight], ops.ones((2, 3)))
        assert_same(grad_fn.compute_input_grad(), right.dx, "dx")
        assert_same(grad_fn.compute_weight_grad(), right.dw, "dw")

    def test_hooks_are_not_lost(self):
        net = Mlp(layers=1)
        net.register_forward_hook(lambda cell, inputs, output: output * 2)
        with pytest.raises(UnsupportedError, match="hook"):
            graph(net, normal(4, 8))

    def test_graph_mode_raises(self):
        def branching(x):
            return x + 1 if ops.sum(x) > 0 else x

        with pytest.raises(UnsupportedError, match="mode='graph', but .*branching"):
            graph(branching, normal(3))

    def test_decorator(self):
        net = zero_bubble(Mlp(), mode="graph")
        _, grad_fn = net.forward_and_gradfn(normal(4, 8))
        assert grad_fn.engine == "graph"

    def test_no_trace_is_left(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        net = Mlp(layers=1)
        unsplit_grads(net, (normal(4, 8),), net.trainable_params(), ops.ones((4, 8)))  # which leaves traces of its own
        before = [dict(vars(cell)) for _, cell in net.cells_and_names()]
        mode = ms.get_context("mode")
        check(net, normal(4, 8), net.trainable_params())
        with pytest.raises(UnsupportedError):
            graph(lambda x: x.undefined(), normal(4, 8))
        assert os.listdir(tmp_path) == [] and ms.get_context("mode") == mode
        after = [dict(vars(cell)) for _, cell in net.cells_and_names()]
        for one, two in zip(before, after):
            assert one.keys() == two.keys()
            assert not [key for key in one if one[key] is not two[key] and one[key] != two[key]]


def test_weights_have_one_key():
    first, second = Parameter(normal(2), name="first"), Parameter(normal(2), name="second")
    key = weights_key((first, second))
    assert weights_key([first, second]) is key
    assert len({key, weights_key((second, first)), weights_key((first,)), weights_key(())}) == 4
