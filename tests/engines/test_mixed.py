"""Compiled blocks inside an eager net: split inside by pieces of their own, which equal blocks share."""

import contextlib
import gc
import random
import time
import warnings
import weakref

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common._grad_function import _Function

from mindspore_zb import explain, forward_and_gradfn, options, zero_bubble
from mindspore_zb.engines.graph import cache
from mindspore_zb.engines.graph.recording import GraphRecording
from mindspore_zb.engines.mixed import block as block_module
from mindspore_zb.engines.pynative import dx, recording
from mindspore_zb.engines.pynative.native import sync
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.fallback import FallbackWarning

from ..helpers import (as_numpy, assert_grads_close, check, dw_by_groups, is_pipeline_off, leaves_of, reference, split,
                       tensor, unsplit, weight)


class Block(nn.Cell):
    """A small compiled block, whose ``u`` meets dx elsewhere than its matmul."""

    def __init__(self, width=4, scale=1.0, seed=0):
        super().__init__()
        self.inner = nn.Dense(width, width, weight_init=tensor(width, width, seed=seed + 1), bias_init="ones")
        self.u = weight(width, seed=seed + 2, name="u")
        self.scale = scale

    @ms.jit
    def construct(self, x):
        return ops.tanh(self.inner(x)) * self.u * self.scale + x


class Net(nn.Cell):
    """Blocks with eager layers around them."""

    def __init__(self, blocks):
        super().__init__()
        self.first, self.last = nn.Dense(4, 4, weight_init="normal"), nn.Dense(4, 3, weight_init=tensor(3, 4, seed=9))
        self.blocks = nn.CellList(blocks)

    def construct(self, x):
        x = self.first(x).sin()
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def net_of(count, kind=Block):
    return Net([kind(seed=10 * number) for number in range(count)])


@contextlib.contextmanager
def no_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def watched_recordings(monkeypatch):
    """Weak references to the recordings that blocks make."""
    found = []
    init = GraphRecording.__init__

    def watching(self, *args, **kwargs):
        init(self, *args, **kwargs)
        found.append(weakref.ref(self))

    with monkeypatch.context() as patch:
        patch.setattr(GraphRecording, "__init__", watching)
        yield found


def are_gone(recordings):
    """Whether all these are freed, or will be as soon as MindSpore's own threads let go of their nodes."""
    end = time.monotonic() + 5
    while any(one() for one in recordings) and time.monotonic() < end:
        sync()
        time.sleep(0.001)
    return bool(recordings) and not any(one() for one in recordings)


def names_of(grad_fn):
    return [{weight.name for weight in group.weights} for group in grad_fn.weight_groups]


class TestSplit:
    """A block's dw is a group of the net's, and not computed with dx."""

    def test_values(self):
        net = net_of(2)
        check(net, [tensor(3, 4)], net.trainable_params())

    def test_each_block_is_a_group(self):
        net = net_of(2)
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
        groups = names_of(grad_fn)
        for block in net.blocks:
            assert {parameter.name for parameter in block.trainable_params()} in groups
        assert sum(map(len, groups)) == len(net.trainable_params())
        boundaries = [boundary.name for group in grad_fn.weight_groups for boundary in group.boundaries]
        assert boundaries.count("Block") == 2

    def test_blocks_come_in_the_order_of_their_backward(self):
        net = net_of(3)
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
        places = [names_of(grad_fn).index({one.name for one in block.trainable_params()}) for block in net.blocks]
        assert places == sorted(places, reverse=True)

    def test_one_group_for_each_of_the_blocks_own(self):
        net = net_of(1)
        with options(graph_pieces=None):
            _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
        assert {"blocks.0.u"} in names_of(grad_fn)
        dx = grad_fn.compute_input_grad()
        assert_grads_close((dx, dw_by_groups(grad_fn, "reversed")),
                           reference(net, [tensor(3, 4)], net.trainable_params()))

    def test_dw_waits(self, monkeypatch):
        """The weights' gradients of a block are not computed before its group is."""
        net, ran = net_of(1), []
        original = GraphRecording._run_group
        monkeypatch.setattr(GraphRecording, "_run_group",
                            lambda self, number: ran.append(number) or original(self, number))
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
        grad_fn.compute_input_grad()
        assert not ran
        grad_fn.compute_weight_grad()
        assert ran == [0]

    def test_without_splitting(self):
        net = net_of(1)
        with options(split_blocks=False):
            _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
        assert "Block" not in [boundary.name for group in grad_fn.weight_groups for boundary in group.boundaries]

    def test_pynative_mode_leaves_blocks_alone(self):
        net = zero_bubble(net_of(1), mode="pynative")
        _, grad_fn = net.forward_and_gradfn(tensor(3, 4))
        assert "Block" not in [boundary.name for group in grad_fn.weight_groups for boundary in group.boundaries]

    def test_unsplit_keeps_its_graph(self):
        net, x = net_of(2), tensor(3, 4)
        expected = reference(net, [x], net.trainable_params())
        _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        for _ in range(2):
            assert_grads_close(grad_fn(keep_graph=True), expected)
        dx = grad_fn.compute_input_grad()
        assert_grads_close((dx, grad_fn.compute_weight_grad()), expected)

    def test_groups_keep_their_graph(self):
        net, x = net_of(2), tensor(3, 4)
        dx, dw = reference(net, [x], net.trainable_params())
        _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        assert_grads_close(grad_fn.compute_input_grad(), dx)
        for _ in range(2):
            assert_grads_close(grad_fn.compute_weight_grad(keep_graph=True), dw)
        assert_grads_close(grad_fn.compute_weight_grad(), dw)

    def test_aux(self):
        block, x = Block(), tensor(3, 4)

        def fn(x):
            y = block(x)
            return y.sin(), y, "constant"

        (out, aux, text), grad_fn = forward_and_gradfn(fn, x, weights=block.trainable_params(), has_aux=True)
        assert text == "constant" and aux.shape == (3, 4)
        expected = reference(fn, [x], block.trainable_params(), has_aux=True)
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)

    def test_result(self):
        net, x = net_of(2), tensor(3, 4)
        out, _ = forward_and_gradfn(net, x, weights=net.trainable_params())
        np.testing.assert_allclose(out.asnumpy(), net(x).asnumpy(), rtol=1e-5)

    def test_micro_batches_in_any_order(self):
        net = net_of(2)
        weights = net.trainable_params()
        batches = [tensor(3, 4, seed=seed) for seed in range(4)]
        expected = [reference(net, [batch], weights) for batch in batches]
        grad_fns = [forward_and_gradfn(net, batch, weights=weights)[1] for batch in batches]
        order = list(range(4))
        random.Random(3).shuffle(order)
        dx = {place: grad_fns[place].compute_input_grad() for place in order}
        for place in reversed(order):
            assert_grads_close((dx[place], grad_fns[place].compute_weight_grad()), expected[place])

    def test_sens_may_be_used_again_after_dx(self):
        block, x, sens = Block(), tensor(3, 4), tensor(3, 4, seed=5)
        dx, dw = reference(lambda x: block(x), [x], block.trainable_params(), sens=sens)
        _, grad_fn = forward_and_gradfn(lambda x: block(x), x, weights=block.trainable_params())
        mine = sens.copy()
        assert_grads_close(grad_fn.compute_input_grad(mine), dx)
        ops.assign(Parameter(mine), ops.zeros_like(mine))
        mine.copy_(ops.zeros_like(mine))
        assert_grads_close(grad_fn.compute_weight_grad(), dw)


class TestSharing:
    """Equal blocks are compiled once."""

    def test_equal_blocks_compile_once(self, compiled):
        net = net_of(4)
        for _ in range(2):
            split(net, [tensor(3, 4)], net.trainable_params())
        assert len(compiled) == 1

    def test_order_and_choice_of_weights(self, compiled):
        net = net_of(2)
        weights = net.trainable_params()
        expected = reference(net, [tensor(3, 4)], weights)
        for order in (1, 2):
            places = random.Random(order).sample(range(len(weights)), len(weights))
            assert_grads_close(split(net, [tensor(3, 4)], [weights[place] for place in places]),
                               (expected[0], tuple(expected[1][place] for place in places)))
        assert len(compiled) == 1
        one = net.blocks[0].u
        assert_grads_close(split(net, [tensor(3, 4)], one), reference(net, [tensor(3, 4)], one))

    @pytest.mark.parametrize("change", [
        lambda block: setattr(block, "scale", 2.0),
        lambda block: block.set_train(),
        lambda block: setattr(block.u, "requires_grad", False),
        lambda block: setattr(block, "inner", nn.Dense(4, 4, has_bias=False)),
        lambda block: setattr(block, "u", weight(1, name="u")),
    ], ids=["attribute", "training flag", "frozen", "another layer", "another shape"])
    def test_unequal_blocks_do_not(self, compiled, change):
        net = net_of(3)
        change(net.blocks[1])
        expected = reference(net, [tensor(3, 4)], net.trainable_params())
        assert_grads_close(split(net, [tensor(3, 4)], net.trainable_params()), expected)
        assert len(compiled) == 2

    def test_tensors_are_compared_by_value(self, compiled):
        class Masked(nn.Cell):
            def __init__(self, seed):
                super().__init__()
                self.w, self.mask = weight(4, seed=seed, name="w"), tensor(4, seed=seed % 2)

            @ms.jit
            def construct(self, x):
                return x * self.w + self.mask * x

        net = nn.SequentialCell([Masked(seed) for seed in (1, 2, 3, 4)])
        found = split(net, [tensor(3, 4)], net.trainable_params())
        assert len(compiled) == 2
        assert_grads_close(found, reference(net, [tensor(3, 4)], net.trainable_params()))

    def test_a_changed_global_is_seen(self, compiled, monkeypatch):
        one, two = Scaled(1), Scaled(2)
        for block, scale in ((one, 2.0), (two, 3.0)):
            monkeypatch.setitem(globals(), "SCALE", scale)
            dx, _ = split(lambda x: block(x), [tensor(3, 4)], [block.w])
            np.testing.assert_allclose(dx.asnumpy(), np.broadcast_to(block.w.asnumpy() * scale, (3, 4)), rtol=1e-6)
        assert len(compiled) == 2

    def test_a_changed_attribute_is_seen(self):
        net, x = net_of(2), tensor(3, 4)
        split(net, [x], net.trainable_params())
        net.blocks[1].scale = 3.0
        assert_grads_close(split(net, [x], net.trainable_params()), reference(net, [x], net.trainable_params()))

    def test_weights_are_read_at_each_run(self):
        net, x = net_of(2), tensor(3, 4)
        weights = net.trainable_params()

        def eager(x):  # MindSpore's own gradient of a @jit Cell misses set_data
            x = net.first(x).sin()
            for block in net.blocks:
                x = ops.tanh(block.inner(x)) * block.u + x
            return net.last(x)

        for seed in range(2):
            for place, one in enumerate(weights):
                one.set_data(tensor(*one.shape, seed=50 * seed + place))
            assert_grads_close(split(net, [x], weights), reference(eager, [x], weights))

    def test_replaced_weight(self):
        net, x = net_of(2), tensor(3, 4)
        split(net, [x], net.trainable_params())
        net.blocks[0].u = weight(4, seed=77, name="blocks.0.u")
        assert_grads_close(split(net, [x], net.trainable_params()), reference(net, [x], net.trainable_params()))

    def test_parameters_swapped_between_places(self, compiled):
        """Two weights of one shape must not be bound crosswise."""
        class Two(nn.Cell):
            def __init__(self, first, second):
                super().__init__()
                self.a, self.b = first, second

            @ms.jit
            def construct(self, x):
                return x * self.a + ops.sin(self.b) * x * x

        one, two = weight(4, seed=1, name="one"), weight(4, seed=2, name="two")
        three, four = weight(4, seed=3, name="one"), weight(4, seed=4, name="two")
        net = nn.SequentialCell([Two(one, two), Two(three, four)])
        orders = [one, two, three, four], [four, one, three, two]
        found = [split(net, [tensor(3, 4)], order) for order in orders]
        assert len(compiled) == 1
        for grads, order in zip(found, orders):
            assert_grads_close(grads, reference(net, [tensor(3, 4)], order))

    def test_programs_go_with_the_blocks(self):
        cache.clear_programs()
        net = net_of(2)
        split(net, [tensor(3, 4)], net.trainable_params())
        assert len(cache._SHARED) == 1
        first, parameter = weakref.ref(net.blocks[0]), weakref.ref(net.blocks[0].u)
        last = net.blocks[1]
        del net
        gc.collect()
        assert first() is None and parameter() is None
        assert len(cache._SHARED) == 1
        del last
        gc.collect()
        assert not len(cache._SHARED) and not len(cache._PROGRAMS)


SCALE = 1.0


class Scaled(nn.Cell):
    """Reads a global."""

    def __init__(self, seed):
        super().__init__()
        self.w = weight(4, seed=seed, name="w")

    @ms.jit
    def construct(self, x):
        return x * self.w * SCALE


class TestTied:
    """A weight in several places is in one group and summed once."""

    def test_block_called_twice(self):
        block = Block()

        def fn(x):
            return block(block(x).sin())

        check(fn, [tensor(3, 4)], block.trainable_params())
        _, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=block.trainable_params())
        assert len(grad_fn.weight_groups) == 1

    def test_weight_of_two_blocks(self):
        one, two = Block(seed=1), Block(seed=2)
        two.u = one.u
        weights = [one.u, one.inner.weight, two.inner.weight, two.inner.bias]
        check(lambda x: two(one(x)), [tensor(3, 4)], weights)

    def test_weight_of_a_block_and_of_the_net(self):
        block, other = Block(), weight(4, seed=8)

        def fn(x):
            return block(x * other) * block.u

        check(fn, [tensor(3, 4)], [other, block.u, block.inner.weight])
        _, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=[other, block.u, block.inner.weight])
        assert sorted(len(group.weights) for group in grad_fn.weight_groups) == [1, 2]

    def test_weight_as_input_of_its_block(self):
        block = Block()
        check(lambda x: block(block.u + x), [tensor(3, 4)], [block.u, block.inner.bias])

    def test_parameter_as_input(self):
        block, w = Mixes(), weight(3, 4, seed=5)
        check(lambda x: block(x, w), [tensor(3, 4)], [w, block.w])
        check(lambda x: block(w, x), [tensor(3, 4)], [block.w, w])


class Mixes(nn.Cell):
    """Two inputs, three outputs, the last one of integers."""

    def __init__(self):
        super().__init__()
        self.w = weight(4, seed=3, name="w")

    @ms.jit
    def construct(self, x, y):
        return x * self.w + ops.sin(y), x * y, ops.argmax(x, dim=-1)


class Nested(nn.Cell):
    """Containers in and out, constants and keywords."""

    def __init__(self):
        super().__init__()
        self.w = weight(4, seed=3, name="w")

    @ms.jit
    def construct(self, pair, scale=2.0):
        x, (y, z) = pair
        return {"a": x * self.w * scale, "b": (y, (z.sin(), x))}


class TestWeightsBeside:
    """A weight of the net meets a block's output in an operation that saves neither."""

    @pytest.mark.parametrize("join, shape", [
        (lambda out, w: out + w, (4,)), (lambda out, w: w + out, (4,)), (lambda out, w: out - w, (4,)),
        (lambda out, w: out + w, (3, 4)), (ops.bias_add, (4,)),
        (lambda out, w: ops.cat([out, w]), (3, 4)), (lambda out, w: out + ops.gather(w, Tensor([0, 2, 1]), 0), (3, 4))])
    def test_values(self, join, shape):
        blocks, other = [Block(seed=1), Block(seed=4)], weight(*shape, seed=7, name="other")
        weights = [other, *(one for block in blocks for one in block.trainable_params())]
        check(lambda x: join(blocks[0](x), other), [tensor(3, 4)], weights[:4])
        check(lambda x: blocks[1](join(blocks[0](x), other)), [tensor(3, 4)], weights)


class TestInputsAndOutputs:
    """Whatever goes in and out."""

    def test_several(self):
        block, dense = Mixes(), nn.Dense(4, 4, weight_init="normal")

        def fn(x, y):
            a, b, c = block(dense(x), y)
            return a.sin() + b, c

        check(fn, [tensor(3, 4), tensor(3, 4, seed=1)], [block.w, dense.weight], grad_position=(0, 1))
        check(fn, [tensor(3, 4), tensor(3, 4, seed=1)], [block.w, dense.weight], grad_position=1)

    def test_one_tensor_twice(self):
        block = Mixes()
        check(lambda x: (lambda h: block(h, h)[:2])(x.sin()), [tensor(3, 4)], [block.w])

    def test_some_outputs_without_gradient(self):
        block = Mixes()
        check(lambda x: block(x, x)[0], [tensor(3, 4)], [block.w])
        check(lambda x: block(x, x)[:2], [tensor(3, 4)], [block.w], sens=(None, tensor(3, 4)), vanishing=True)

    def test_no_gradient_reaches_the_block(self):
        block, w = Block(), weight(4)
        weights = [w, *block.trainable_params()]
        check(lambda x: (x * w, block(x)), [tensor(3, 4)], weights, sens=(tensor(3, 4), None), vanishing=True)

    def test_unused_result(self):
        block, w = Block(), weight(4)

        def fn(x):
            block(x)
            return x * w

        check(fn, [tensor(3, 4)], [w, *block.trainable_params()], vanishing=True)

    def test_nested(self):
        block = Nested()

        def fn(x, y):
            result = block([x.sin(), (y, x)], scale=3.0)
            return result["a"] * result["b"][0] + result["b"][1][0] * result["b"][1][1]

        def eager(x, y):  # MindSpore cannot differentiate the @jit Cell itself
            return x.sin() * block.w * 3.0 * y + x.sin() * x.sin()

        inputs = [tensor(3, 4), tensor(3, 4, seed=1)]
        expected = reference(eager, inputs, [block.w], grad_position=-1)
        assert_grads_close(split(fn, inputs, [block.w], grad_position=-1), expected)
        assert_grads_close(unsplit(fn, inputs, [block.w], grad_position=-1), expected)

    def test_integer_input(self):
        class Embeds(nn.Cell):
            def __init__(self):
                super().__init__()
                self.table = weight(7, 4, name="table")

            @ms.jit
            def construct(self, ids, x):
                return ops.gather(self.table, ids, 0) * x

        block = Embeds()
        check(lambda x: block(Tensor([1, 2, 1], ms.int32), x.sin()), [tensor(3, 4)], [block.table])

    def test_view_as_input(self):
        block = Block()
        check(lambda x: block(x.transpose(1, 0)).transpose(1, 0), [tensor(4, 3)], block.trainable_params())

    def test_half_precision(self):
        block = Scaled(1)
        block.w = weight(4, seed=1, name="w", dtype=np.float16)
        check(lambda x: block(x.sin()), [tensor(3, 4, dtype=np.float16)], [block.w])


def test_one_gradient_of_two_inputs():
    @ms.jit
    def both(x, y):
        return ops.tanh(x + y)

    def run(x, y):
        one, two = x.sin(), y.cos()
        return both(one, two) + one * 3.0 + two * 5.0

    check(run, [tensor(3, 4), tensor(3, 4, seed=2)], [], grad_position=(0, 1))


class TestFirstStage:
    """Nothing before the blocks asks for a gradient of the inputs: dw runs them."""

    def setup_method(self):
        self.table, self.blocks = weight(7, 4, seed=6, name="table"), [Block(seed=1), Block(seed=2)]
        self.ids = Tensor([[1, 2], [3, 1]], ms.int32)
        self.weights = [self.table, *(one for block in self.blocks for one in block.trainable_params())]

    def run(self, ids):
        x = ops.gather(self.table, ids, 0)
        for block in self.blocks:
            x = block(x)
        return x.sin()

    def test_values(self):
        check(self.run, [self.ids], self.weights)

    def test_without_the_table(self):
        check(self.run, [self.ids], self.weights[1:])

    def test_dx_runs_nothing(self, monkeypatch):
        ran = []
        original = GraphRecording.input_grads
        monkeypatch.setattr(GraphRecording, "input_grads",
                            lambda self, *args, **kwargs: ran.append(1) or original(self, *args, **kwargs))
        _, grad_fn = forward_and_gradfn(self.run, self.ids, weights=self.weights)
        assert grad_fn.compute_input_grad() is None and not ran
        grad_fn.compute_weight_grad()
        assert len(ran) == 2

    def test_keep_graph(self):
        _, dw = reference(self.run, [self.ids], self.weights)
        _, grad_fn = forward_and_gradfn(self.run, self.ids, weights=self.weights)
        grad_fn.compute_input_grad()
        for keep in (True, True, False):
            assert_grads_close(grad_fn.compute_weight_grad(keep_graph=keep), dw)

    def test_groups_alone(self):
        _, dw = reference(self.run, [self.ids], self.weights)
        _, grad_fn = forward_and_gradfn(self.run, self.ids, weights=self.weights)
        grad_fn.compute_input_grad()
        assert_grads_close(dw_by_groups(grad_fn, "reversed"), dw)

    def test_block_of_tokens(self):
        class Tokens(nn.Cell):
            def __init__(self):
                super().__init__()
                self.table = weight(7, 4, name="table")

            @ms.jit
            def construct(self, ids):
                return ops.gather(self.table, ids, 0)

        block, dense = Tokens(), nn.Dense(4, 2, weight_init="normal")
        check(lambda ids: dense(block(ids)), [self.ids], [block.table, dense.weight])

    def test_block_on_the_weight_side(self):
        block, w = Block(), weight(4, 4, seed=9)
        check(lambda x: x @ block(w.sin()), [tensor(3, 4)], [w, *block.trainable_params()])
        check(lambda x: x @ block(w.sin()), [tensor(3, 4)], block.trainable_params())


class TestWeights:
    """In any form, partly and frozen."""

    def test_single_and_none(self):
        net, x = net_of(1), tensor(3, 4)
        one = net.blocks[0].inner.weight
        assert_grads_close(split(net, [x], one), reference(net, [x], one))
        dx, _ = reference(net, [x])
        assert_grads_close(split(net, [x]), (dx, ()))
        assert_grads_close(unsplit(net, [x]), dx)

    def test_generator(self):
        net, x = net_of(1), tensor(3, 4)
        assert_grads_close(split(net, [x], iter(net.trainable_params())), reference(net, [x], net.trainable_params()))

    def test_frozen(self):
        net, x = net_of(2), tensor(3, 4)
        net.blocks[0].u.requires_grad = False
        weights = list(net.get_parameters())
        dx, dw = reference(net, [x], weights)
        place = next(place for place, one in enumerate(weights) if one is net.blocks[0].u)
        assert not as_numpy(dw[place]).any()
        assert_grads_close(split(net, [x], weights), (dx, dw))

    def test_weight_read_through_a_global(self):
        @ms.jit
        def compiled(x):
            return x * OUTSIDE + x

        assert_grads_close(split(lambda x: compiled(x.sin()), [tensor(3, 4)], [OUTSIDE]),
                           reference(lambda x: compiled(x.sin()), [tensor(3, 4)], [OUTSIDE]))


OUTSIDE = weight(4, seed=12, name="outside")


class TestState:
    """What blocks write and draw."""

    def test_batch_norm(self):
        class Norm(nn.Cell):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(4)
                self.norm.gamma.set_data(tensor(4, seed=3))

            @ms.jit
            def construct(self, x):
                return self.norm(x)

        def new():
            return nn.SequentialCell([Norm(), nn.Tanh(), Norm()]).set_train()

        net, other = new(), new()
        for seed in range(3):
            x = tensor(6, 4, seed=seed)
            expected = reference(other, [x], other.trainable_params())
            # The reference's own weights stay equal to those of the net
            assert_grads_close(split(net, [x], net.trainable_params()), expected)
        for one, two in zip(net.get_parameters(), other.get_parameters()):
            np.testing.assert_allclose(one.asnumpy(), two.asnumpy(), rtol=1e-5, atol=1e-7, err_msg=one.name)
        assert np.abs(net[2].norm.moving_mean.asnumpy()).max() > 1e-3

    def test_dropout(self):
        class Drops(nn.Cell):
            def __init__(self):
                super().__init__()
                self.drop, self.w = nn.Dropout(p=0.5), weight(64, seed=4, name="w")

            @ms.jit
            def construct(self, x):
                return self.drop(x) * self.w

        net = nn.SequentialCell([Drops(), Drops()]).set_train()
        x = ops.ones((8, 64))
        batches = [forward_and_gradfn(net, x, weights=net.trainable_params()) for _ in range(2)]
        outs = [out.asnumpy() for out, _ in batches]
        assert ((outs[0] == 0) != (outs[1] == 0)).any()
        for out, grad_fn in reversed(batches):
            kept = out.asnumpy() != 0
            dx = grad_fn.compute_input_grad().asnumpy()
            assert ((dx != 0) == kept).all() and 0.1 < kept.mean() < 0.4
            assert ((dx != 0) <= kept).all()
            dw = grad_fn.compute_weight_grad()
            np.testing.assert_allclose(dw[1].asnumpy() * net[1].w.asnumpy(), out.asnumpy().sum(0), rtol=1e-4, atol=1e-4)


class Doubled(_Function):
    """``2 x``, which saves x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class TestMemory:
    """Nothing stays longer than it is needed; the collector is off."""

    def test_freed_by_group(self, monkeypatch):
        net = net_of(2)
        split(net, [tensor(3, 4)], net.trainable_params())
        with no_collector(), watched_recordings(monkeypatch) as recordings:
            _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
            grad_fn.compute_input_grad()
            held = [grad_fn.nbytes]
            for group in grad_fn.weight_groups:
                assert group.nbytes > 0
                group.compute()
                held.append(grad_fn.nbytes)
            assert held == sorted(held, reverse=True) and held[-1] == 0 < held[0]
            del grad_fn, group
            assert len(recordings) == 2 and are_gone(recordings)

    def test_dx_frees_what_only_dx_needs(self, monkeypatch):
        net = net_of(1)
        with watched_recordings(monkeypatch) as recordings:
            _, grad_fn = forward_and_gradfn(net, tensor(3, 4))
            with no_collector():
                grad_fn.compute_input_grad()
                assert not recordings[0]() or not recordings[0]()._values

    @pytest.mark.parametrize("between, keeps", [
        (lambda x: x, True), (lambda x: x + 1.0, True), (ops.gelu, False), (Doubled.apply, False)])
    def test_nodes_keep_what_they_saved_only_if_it_is_nothing(self, monkeypatch, between, keeps):
        """To free nothing costs each block a wait; to keep something is what dx must not."""
        blocks, told, run_backward = nn.CellList([Block(seed=1), Block(seed=2)]), [], dx.run_backward

        def watching(edges, grads, leaves, keep_graph, *more):
            told.append(keep_graph)
            return run_backward(edges, grads, leaves, keep_graph, *more)

        monkeypatch.setattr(dx, "run_backward", watching)
        monkeypatch.setattr(recording, "run_backward", watching)

        def net(x):
            return blocks[1](between(blocks[0](x))) + x

        weights = blocks.trainable_params()
        check(net, [tensor(3, 4)], weights)
        assert told and set(told) == {keeps}
        told.clear()
        grads = forward_and_gradfn(net, tensor(3, 4), weights=weights)[1](tensor(3, 4, seed=3))
        assert_grads_close(grads, reference(net, [tensor(3, 4)], weights, sens=tensor(3, 4, seed=3)))
        assert told == [keeps]
        with no_collector(), watched_recordings(monkeypatch) as recordings:
            out, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=weights)
            grad_fn.compute_input_grad()
            grad_fn.compute_weight_grad()
            assert not any(one() and one()._values for one in recordings)
            del grad_fn
            assert are_gone(recordings) and out.shape == (3, 4)

    @pytest.mark.parametrize("end", ["after dx", "kept by dw", "one group"])
    @pytest.mark.parametrize("last", [nn.Identity(), nn.Dense(4, 4, weight_init="ones")])
    def test_a_tensor_from_inside_keeps_nothing_of_a_block(self, monkeypatch, last, end):
        blocks, kept = nn.CellList([Block(seed=1), Block(seed=2)]), []

        def net(x):
            kept.append(blocks[1](blocks[0](x)))
            return last(kept[-1] + 1.0)

        with no_collector(), watched_recordings(monkeypatch) as recordings:
            _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=[
                *blocks.trainable_params(), *last.trainable_params()])
            grad_fn.compute_input_grad()
            if end == "kept by dw":
                grad_fn.compute_weight_grad(keep_graph=True)
            if end == "one group":
                grad_fn.weight_groups[0].compute()
            del grad_fn
            assert are_gone(recordings) and kept[0].shape == (3, 4)

    def test_the_backward_of_a_block_that_is_gone(self):
        kept, block = [], Block()
        _, grad_fn = forward_and_gradfn(lambda x: kept.append(block(x)) or kept[0] + 1.0, tensor(3, 4),
                                        weights=block.trainable_params())
        node = kept[0]._grad_node
        del grad_fn
        with pytest.raises(UnsupportedError, match="the backward of the compiled block Block was released"):
            type(node).backward(node, tensor(3, 4))

    @pytest.mark.parametrize("end", ["abandoned", "released", "after dx"])
    def test_abandoned(self, monkeypatch, end):
        net = net_of(2)
        split(net, [tensor(3, 4)], net.trainable_params())
        with no_collector(), watched_recordings(monkeypatch) as recordings:
            out, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
            if end == "released":
                grad_fn.release()
                assert not any(one() and one()._values for one in recordings)
            if end == "after dx":
                grad_fn.compute_input_grad()
            del grad_fn
            assert len(recordings) == 2 and are_gone(recordings)
            del out

    def test_unreached_block_is_freed_with_dx(self, monkeypatch):
        block, w = Block(), weight(4)
        with no_collector(), watched_recordings(monkeypatch) as recordings:
            _, grad_fn = forward_and_gradfn(lambda x: (x * w, block(x)), tensor(3, 4),
                                            weights=[w, *block.trainable_params()])
            grad_fn.compute_input_grad((tensor(3, 4), None))
            assert not any(one() and one()._values for one in recordings)


class TestPipeline:
    """The backward of a net with blocks is run by the calling thread alone: each block waits for MindSpore's threads."""

    def seen(self, backward):
        """Whether MindSpore's pipeline was off where gradients came by, and whether it is afterwards."""
        net, seen = net_of(2), []

        def run(x):
            x = net.first(x)
            x.register_hook(lambda grad: seen.append(is_pipeline_off()))
            return net.last(net.blocks[1](net.blocks[0](x)))

        x = tensor(3, 4)
        _, grad_fn = forward_and_gradfn(run, x, weights=net.trainable_params())
        assert not is_pipeline_off()
        backward(grad_fn)
        return seen, is_pipeline_off()

    def test_forward(self, monkeypatch):
        original, seen = block_module._Carried.take, []
        monkeypatch.setattr(block_module._Carried, "take",
                            lambda carried: seen.append(is_pipeline_off()) or original(carried))
        assert self.seen(lambda grad_fn: None) == ([], False) and seen == [True, True]

    def test_dx(self):
        assert self.seen(lambda grad_fn: (grad_fn.compute_input_grad(), grad_fn.compute_weight_grad())) == \
            ([True], False)

    def test_whole(self):
        assert self.seen(lambda grad_fn: grad_fn()) == ([True], False)

    def test_dw_that_runs_blocks(self):
        table, block, seen = weight(7, 4, seed=6, name="table"), Block(seed=1), []

        def run(ids):
            x = ops.gather(table, ids, 0)
            x.register_hook(lambda grad: seen.append(is_pipeline_off()))
            return block(x)

        _, grad_fn = forward_and_gradfn(run, Tensor([1, 2], ms.int32), weights=[table, *block.trainable_params()])
        grad_fn.compute_input_grad()
        grad_fn.compute_weight_grad()
        assert seen == [True] and not is_pipeline_off()

    def test_after_an_error(self):
        def run(x):
            x = x * 2.0
            x.register_hook(lambda grad: 1 / 0)
            return net(x)

        net = net_of(1)
        _, grad_fn = forward_and_gradfn(run, tensor(3, 4), weights=net.trainable_params())
        with pytest.raises(ZeroDivisionError):
            grad_fn.compute_input_grad()
        assert not is_pipeline_off()

    def test_eager_nets_keep_it(self):
        seen = []

        def run(x):
            x = x * 2.0
            x.register_hook(lambda grad: seen.append(is_pipeline_off()))
            return x.sin()

        _, grad_fn = forward_and_gradfn(run, tensor(3, 4))
        grad_fn.compute_input_grad()
        assert seen == [False]


class TestMicroBatches:
    """What is made once for all micro-batches of a net is made again where they differ."""

    def test_other_weights_of_the_request(self):
        net = net_of(2)
        every, x = net.trainable_params(), tensor(3, 4)
        for weights in (every, every[::-1], every[3:], every[::2], every):
            check(net, [x], weights)

    def test_a_weight_more_that_asks_for_nothing(self):
        net, x = net_of(2), tensor(3, 4)
        frozen, weights = Parameter(tensor(2), name="frozen", requires_grad=False), net.trainable_params()
        for request in (weights, [frozen, *weights], [*weights, frozen], weights):
            check(net, [x], request, vanishing=True)

    def test_nets_of_equal_structure(self):
        x, nets = tensor(3, 4), [net_of(2), net_of(2, lambda seed: Block(seed=seed + 5)), net_of(2)]
        for net in nets * 2:
            check(net, [x], net.trainable_params())

    def test_blocks_in_another_order(self):
        net = net_of(2)
        net.blocks[1].u.requires_grad = False
        for _ in range(2):
            check(net, [tensor(3, 4)], net.trainable_params())
            net.blocks = nn.CellList([net.blocks[1], net.blocks[0]])

    def test_more_nets_than_are_remembered(self):
        x, weights = tensor(3, 4), [weight(4, 4, seed=seed, name=f"w{seed}") for seed in range(20)]
        block = Block()
        for _ in range(2):
            for one in weights:
                check(lambda x, w=one: block(ops.matmul(x, w)), [x], [one, *block.trainable_params()])


class TestNothingIsLeft:
    """MindSpore's names and the caller's Cells are as they were."""

    @pytest.mark.parametrize("raises", [False, True])
    def test_names_and_attributes(self, raises):
        from mindspore.graph.api import _JitExecutor
        net = zero_bubble(net_of(1), mode="graph")
        names = (_JitExecutor.__call__, nn.Cell.__call__)
        before = {id(cell): (dict(vars(cell)), dict(cell._params)) for _, cell in net.cells_and_names()}

        def fn(x):
            y = net.blocks[0](x)
            assert nn.Cell.__call__ is not names[1]
            if raises:
                raise KeyError("mine")
            return y

        if raises:
            with pytest.raises(KeyError):
                forward_and_gradfn(fn, tensor(3, 4))
        else:
            forward_and_gradfn(fn, tensor(3, 4))
        assert (_JitExecutor.__call__, nn.Cell.__call__) == names
        for _, cell in net.cells_and_names():
            attributes, parameters = before[id(cell)]
            assert set(vars(cell)) == set(attributes) and dict(cell._params) == parameters


class TestOther:
    """Blocks in other forms, and in other places."""

    def test_zero_bubble_class(self):
        @zero_bubble(mode="graph")
        class Eager(nn.Cell):
            def __init__(self):
                super().__init__()
                self.inner = nn.Dense(4, 4, weight_init="normal")

            def construct(self, x):
                return self.inner(x).tanh()

        self.check_one(Eager(), "Eager")

    def test_zero_bubble_instance(self):
        self.check_one(zero_bubble(nn.Dense(4, 4, weight_init="normal"), mode="graph"), "Dense")

    def test_jit_of_an_instance(self):
        cell = nn.Dense(4, 4, weight_init="normal")
        self.check_one(ms.jit(cell), "Dense", cell)

    def test_jit_function(self):
        cell = nn.Dense(4, 4, weight_init="normal")

        @ms.jit
        def compiled(x):
            return ops.tanh(cell(x))

        self.check_one(compiled, "compiled", cell)

    def test_jit_method(self):
        class Methods(nn.Cell):
            def __init__(self):
                super().__init__()
                self.inner = nn.Dense(4, 4, weight_init="normal")

            @ms.jit
            def half(self, x):
                return self.inner(x).tanh()

            def construct(self, x):
                return self.half(x)

        cell = Methods()
        self.check_one(cell, "half", cell)

    def test_inherited_construct(self):
        class Child(Block):
            def construct(self, x):
                return super().construct(x) * 2

        cell = Child()
        check(lambda x: cell(x.sin()), [tensor(3, 4)], cell.trainable_params())

    @staticmethod
    def check_one(block, name, cell=None):
        dense = nn.Dense(4, 4, weight_init=tensor(4, 4, seed=2))
        weights = [dense.weight, *(cell or block).trainable_params()]

        def fn(x):
            return dense(block(dense(x)))

        check(fn, [tensor(3, 4)], weights)
        _, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=weights)
        assert name in [boundary.name for group in grad_fn.weight_groups for boundary in group.boundaries]

    def test_block_in_a_compiled_net_is_part_of_it(self):
        net = Block()
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
        assert grad_fn.engine == "graph"

    def test_no_grad(self):
        from mindspore.common.api import _no_grad
        block, w = Block(), weight(4)

        def fn(x):
            with _no_grad():
                y = block(x)
            return x * w + y

        check(fn, [tensor(3, 4)], [w, *block.trainable_params()], vanishing=True)

    def test_recomputed(self):
        block, dense = Block(), nn.Dense(4, 4, weight_init="normal")
        weights = [dense.weight, *block.trainable_params()]
        check(lambda x: ms.recompute(nn.SequentialCell(block), dense(x)), [tensor(3, 4)], weights)

    def test_hook_on_the_result(self):
        block, calls = Block(), []

        def fn(x):
            y = block(x.sin())
            y.register_hook(lambda grad: calls.append(1) or grad * 2)
            return y.cos()

        dx, dw = reference(fn, [tensor(3, 4)], block.trainable_params())
        calls.clear()
        assert_grads_close(split(fn, [tensor(3, 4)], block.trainable_params()), (dx, dw))
        assert len(calls) == 1

    def test_explanation(self):
        net = net_of(2)
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
        for after_dx in (False, True):
            if after_dx:
                grad_fn.compute_input_grad()
            explanation = explain(grad_fn)
            assert all(leaf.node is not None for leaf in explanation.weights)
            assert "dw0 of Block" in str(explanation)
            assert len(explanation.groups) == len(grad_fn.weight_groups)
            assert all((group.captured_bytes > 0) == after_dx for group in explanation.groups)


class TestFallback:
    """What cannot be compiled stays one node, or eager."""

    def test_one_warning_for_a_class(self):
        class Refused(nn.Cell):
            def __init__(self, seed):
                super().__init__()
                self.w, self.calls = weight(4, seed=seed, name=f"w{seed}"), 0

            @ms.jit
            def construct(self, x):
                if x.sum() > 100:
                    x = x * 2
                return x * self.w

        net = nn.SequentialCell([Refused(1), Refused(2)])
        with pytest.warns(FallbackWarning, match="Refused inside an eager net") as told:
            check(net, [tensor(3, 4)], net.trainable_params())
        assert len([one for one in told if one.category is FallbackWarning]) == 1

    def test_hooked_cell(self):
        block = Block()
        handle = block.register_forward_hook(lambda cell, inputs, output: output * 2)
        with pytest.warns(FallbackWarning, match="forward hook"):
            check(lambda x: block(x.sin()), [tensor(3, 4)], block.trainable_params())
        handle.remove()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(lambda x: block(x.sin()), [tensor(3, 4)], block.trainable_params())

    def test_gradients_nest_as_asked(self):
        net = net_of(1)
        dx, dw = split(net, [tensor(3, 4)], net.trainable_params(), grad_position=-1)
        assert len(leaves_of(dx)) == 1 and len(dw) == len(net.trainable_params())
