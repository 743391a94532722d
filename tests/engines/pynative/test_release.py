"""Abandoned, released or failed: everything is freed at once, without the garbage collector."""

import gc
import time
import weakref

import mindspore as ms
import pytest
from mindspore import Tensor, nn, ops
from mindspore.common._grad_function import _Function

from mindspore_zb import ZeroBubbleError, forward_and_gradfn
from mindspore_zb.engines.pynative.native import sync

from ...helpers import dw_by_groups, tensor, weight
from .saved import Box, Layers, Saved, forward


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


class TestLetGo:
    """Abandoned, released or failed: everything is freed at once."""

    @pytest.mark.parametrize("state", ["fresh", "planned", "dx", "one group"])
    @pytest.mark.parametrize("way", ["release", "abandon"])
    def test_in_each_state(self, layers, state, way):
        saved, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        if state == "planned":
            assert len(grad_fn.weight_groups) == 3
        elif state != "fresh":
            grad_fn.compute_input_grad()
        if state == "one group":
            grad_fn.weight_groups[1].compute()
        assert saved.count() > 0
        if way == "release":
            grad_fn.release()
        else:
            del grad_fn
        assert saved.count() == 0

    def test_out_pins_nothing(self, layers):
        saved = Saved(*layers.weights)
        with saved:
            out, grad_fn = forward_and_gradfn(lambda x: {"a": layers(x), "b": x}, tensor(3, 4), weights=layers.weights)
        assert saved.count() > 0
        del grad_fn
        assert saved.count() == 0 and out["a"].shape == (3, 4)

    def test_aux_pins_nothing(self, layers):
        saved = Saved(*layers.weights)
        with saved:
            (out, aux), grad_fn = forward_and_gradfn(lambda x: (layers(x), layers(x.sin())), tensor(3, 4),
                                                     weights=layers.weights, has_aux=True)
        del grad_fn
        assert saved.count() == 0 and out.shape == aux.shape

    def test_input_of_the_caller_is_not_held(self, layers):
        x = tensor(3, 4)
        alive = weakref.ref(x)
        _, grad_fn = forward(layers, x, layers.weights)
        del x
        assert alive() is None
        grad_fn.compute_input_grad()

    def test_sens_of_the_caller_is_not_held(self, layers):
        sens = tensor(3, 4)
        alive = weakref.ref(sens)
        _, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        grad_fn.compute_input_grad(sens)
        del sens
        assert alive() is None

    def test_fn_is_not_held(self):
        layers = Layers()
        alive = weakref.ref(layers)
        _, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        del layers
        assert alive() is None
        grad_fn.release()

    @pytest.mark.parametrize("place", ["before", "forward", "no tensor"])
    def test_failed_forward(self, layers, place):
        saved = Saved(*layers.weights)

        def fn(x):
            out = layers(x)
            if place == "forward":
                raise LookupError
            return str(out.shape)

        with saved, pytest.raises((LookupError, ZeroBubbleError)):
            forward_and_gradfn(fn, tensor(3, 4), weights=3 if place == "before" else layers.weights)
        assert saved.count() == 0

    @pytest.mark.parametrize("place", ["dx", "dw"])
    def test_failed_backward(self, layers, place):
        def hook(grad):
            raise LookupError

        def fn(x):
            side = ops.sin(layers.weights[0])
            inside = x.sin()
            (inside if place == "dx" else side).register_hook(hook)
            return layers(inside @ side)

        saved, grad_fn = forward(fn, tensor(3, 4), layers.weights)
        with pytest.raises(LookupError):
            grad_fn.compute_input_grad()
            grad_fn.compute_weight_grad()
        end = time.monotonic() + 5
        while saved.count() and time.monotonic() < end:  # MindSpore's backward thread lets go of it soon, not at once
            time.sleep(0.005)
        assert saved.count() == 0

    def test_history_of_the_caller_is_not_kept_alive(self, layers, recording):
        outside = Saved(*layers.weights)
        with recording(), outside:
            x = ops.sin(tensor(3, 4) @ layers.weights[0])
        assert outside.count() > 0
        _, grad_fn = forward(layers, x, layers.weights)
        del x
        assert outside.count() == 0
        grad_fn.release()

    def test_groups_alone_hold_it_no_longer_than_needed(self, layers):
        saved, grad_fn = forward(layers, tensor(3, 4), layers.weights)
        grad_fn.compute_input_grad()
        groups = grad_fn.weight_groups
        del grad_fn
        assert saved.pointers() == set(layers.inputs)
        del groups
        assert saved.count() == 0


class Scale(_Function):
    """``x * w``, and a weak reference to each of its contexts."""

    contexts = []

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.marker = Marker()
        Scale.contexts.append(weakref.ref(ctx.marker))
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class Marker:
    """Something that can be referenced weakly."""


class TestOpaque:
    """Nodes that Python code stands behind."""

    def test_function_is_gone_after_its_last_use(self):
        w, u = weight(4, seed=1), weight(4, 4, seed=2)
        Scale.contexts.clear()
        _, grad_fn = forward(lambda x: Scale.apply(x.sin(), w) @ u, tensor(3, 4), [w, u])
        assert Scale.contexts[0]() is not None
        grad_fn.compute_input_grad()
        grad_fn.compute_weight_grad()
        assert Scale.contexts[0]() is None

    def test_function_abandoned(self):
        w, u = weight(4, seed=1), weight(4, 4, seed=2)
        Scale.contexts.clear()
        _, grad_fn = forward(lambda x: Scale.apply(x.sin(), w) @ u, tensor(3, 4), [w, u])
        del grad_fn
        assert Scale.contexts[0]() is None

    @pytest.mark.parametrize("end", ["dw", "release", "abandon", "abandon after dx"])
    @pytest.mark.parametrize("reentrant", [True, False])
    def test_recompute_holds_nothing_afterwards(self, reentrant, end):
        class Block(nn.Cell):
            """Takes something that can be referenced weakly."""

            def __init__(self):
                super().__init__()
                self.dense = nn.Dense(4, 4)

            def construct(self, x, marker=None):
                return ops.tanh(self.dense(x))

        block, marker = Block(), Marker()
        alive = weakref.ref(marker)
        grad_fn = forward_and_gradfn(
            lambda x, thing: ms.recompute(block, x.sin(), thing, use_reentrant=reentrant), tensor(3, 4), marker,
            weights=block.trainable_params())[1]
        del marker
        if end in ("dw", "abandon after dx"):
            grad_fn.compute_input_grad()
        if end == "dw":
            grad_fn.compute_weight_grad()
        elif end == "release":
            grad_fn.release()
        else:
            del grad_fn
        sync()
        assert alive() is None

    def test_stack_of_a_recompute_cell_is_empty_afterwards(self):
        block = nn.SequentialCell(nn.Dense(4, 4), nn.Tanh())
        block.recompute()
        grad_fns = [forward_and_gradfn(lambda x: block(x.sin()), tensor(3, 4), weights=block.trainable_params())[1]
                    for _ in range(4)]
        grad_fns[0].compute_input_grad()
        grad_fns[1].release()
        grad_fns[2].compute_input_grad()
        grad_fns[2].compute_weight_grad()
        del grad_fns
        for cell in [block, *block.cells()]:
            recomputed = getattr(cell, "_recompute_cell", None)
            assert recomputed is None or (recomputed.args, recomputed.kwargs) == ([], [])


class TestNoCycles:
    """The garbage collector, called at last, finds nothing of ours."""

    @staticmethod
    def ours_among_garbage(run):
        """What ``run()`` leaves for the collector: objects of this package, tensors and saved boxes."""
        run()  # first calls fill caches
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            run()
            gc.collect()
            return [one for one in gc.garbage
                    if isinstance(one, (Tensor, Box)) or type(one).__module__.startswith("mindspore_zb")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()

    @pytest.mark.parametrize("end", ["split", "groups", "unsplit", "release", "abandon", "abandon after dx"])
    def test_after(self, layers, end):
        def run():
            _, grad_fn = forward(layers, tensor(3, 4), layers.weights, grad_position=-1)
            if end in ("split", "groups", "abandon after dx"):
                grad_fn.compute_input_grad()
            if end == "split":
                grad_fn.compute_weight_grad()
            elif end == "groups":
                dw_by_groups(grad_fn)
            elif end == "unsplit":
                grad_fn()
            elif end == "release":
                grad_fn.release()

        assert self.ours_among_garbage(run) == []

    def test_after_errors(self, layers):
        def run():
            for weights in (3, layers.weights):
                try:
                    forward_and_gradfn(lambda x: str(layers(x)), tensor(3, 4), weights=weights)
                except ZeroBubbleError:
                    pass
            _, grad_fn = forward(layers, tensor(3, 4), layers.weights)
            try:
                grad_fn.compute_input_grad(tensor(2))
            except ZeroBubbleError:
                pass

        assert self.ours_among_garbage(run) == []

    def test_sees_a_cycle(self):
        def run():
            box = [Box(tensor(3))]
            box.append(box)

        assert {type(one) for one in self.ours_among_garbage(run)} == {Box, Tensor}
