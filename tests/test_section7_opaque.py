"""Right values in hard places: custom ``bprop``, ``_Function`` and ``@jit`` inside an eager net."""

import mindspore as ms
import pytest
from mindspore import nn, ops
from mindspore.common._grad_function import _Function

from mindspore_zb import forward_and_gradfn

from .helpers import assert_grads_close, check, reference, split, split_by_groups, tensor, unsplit, weight


class Doubled(nn.Cell):
    """``x * w``, with a gradient that is not the true one: only its own ``bprop`` can give it."""

    def __init__(self):
        super().__init__()
        self.w = weight(4, name="doubled")
        self.internal_params = [self.w]  # without it MindSpore ignores the gradients of weights
        self.backwards = 0

    def construct(self, x):
        return x * self.w

    def bprop(self, x, out, dout):
        self.backwards += 1
        return (dout * self.w * 2,), {self.w: (dout * x).sum(0) * 5}


class DoubledInput(nn.Cell):
    """``sin(x)`` with a ``bprop`` of its own, without weights."""

    def construct(self, x):
        return ops.sin(x)

    def bprop(self, x, out, dout):
        return (dout * 7,)


class Scale(_Function):
    """``x * w`` with gradients that are not the true ones."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w * 2, (grad * x).sum(0) * 5


class MatMul(Scale):
    """The same under the name of an operation of MindSpore."""


class TestOpaque:
    """Backwards that cannot be split: they run once, their weights' gradients are caught."""

    @pytest.fixture
    def dense(self):
        return nn.Dense(4, 4)

    def test_custom_bprop_with_weights(self, dense):
        cell, last = Doubled(), nn.Dense(4, 2)
        weights = [dense.weight, cell.w, last.weight]
        check(lambda x: last(ops.tanh(cell(dense(x)))), [tensor(3, 4)], weights)

    def test_custom_bprop_runs_once(self, dense):
        cell = Doubled()
        for run in (split, split_by_groups):
            cell.backwards = 0
            run(lambda x: cell(dense(x)), [tensor(3, 4)], [dense.weight, cell.w])
            assert cell.backwards == 1

    def test_custom_bprop_as_first_and_as_last(self):
        cell = Doubled()
        check(cell, [tensor(3, 4)], [cell.w])

    def test_custom_bprop_without_weights(self, dense):
        cell = DoubledInput()
        check(lambda x: dense(cell(dense(x))), [tensor(3, 4)], dense.trainable_params())

    def test_custom_bprop_on_the_weight_side(self):
        cell, w = DoubledInput(), weight(4, 4)
        check(lambda x: x @ cell(w), [tensor(3, 4)], [w])

    def test_custom_bprop_twice_in_a_row(self, dense):
        cell = Doubled()
        check(lambda x: cell(dense(cell(x))), [tensor(3, 4)], [cell.w, dense.weight, dense.bias])

    @pytest.mark.parametrize("function", [Scale, MatMul], ids=["plain", "called MatMul"])
    def test_function(self, dense, function):
        w = weight(4)
        check(lambda x: dense(function.apply(dense(x), w)), [tensor(3, 4)], [w, dense.weight, dense.bias])
        check(lambda x: function.apply(x, w), [tensor(3, 4)], [w])

    @pytest.mark.parametrize("function", [Scale, MatMul], ids=["plain", "called MatMul"])
    def test_function_of_weights_only(self, function):
        w, u = weight(4, 4, seed=1), weight(4, seed=2)
        check(lambda x: x @ function.apply(w, u), [tensor(3, 4)], [w, u])

    def test_jit_sub_cell(self, dense):
        class Compiled(nn.Cell):
            def __init__(self):
                super().__init__()
                self.inner = nn.Dense(4, 4)
                self.u = weight(4, name="u")

            @ms.jit
            def construct(self, x):
                return ops.tanh(self.inner(x)) * self.u

        cell = Compiled()
        weights = [dense.weight, cell.inner.weight, cell.inner.bias, cell.u]
        check(lambda x: dense(cell(dense(x))), [tensor(3, 4)], weights)
        check(cell, [tensor(3, 4)], [cell.u, cell.inner.weight, cell.inner.bias])

    def test_jit_function(self, dense):
        @ms.jit
        def compiled(x, y):
            return ops.sin(x) * y, x + y

        check(lambda x: compiled(dense(x), x), [tensor(3, 4)], dense.trainable_params(),
              sens=(tensor(3, 4, seed=5), tensor(3, 4, seed=6)))

    @pytest.mark.parametrize("place", ["input side", "weight side", "both"])
    def test_jit_sub_cell_asked_for_different_gradients_in_turn(self, place):
        def plain(x, u, g):
            return ops.tanh(x) * u + g

        @ms.jit
        def above(x, u, g):
            return ops.tanh(x) * u + g

        @ms.jit
        def beside(x, u, g):
            return ops.tanh(x) * u + g

        w, u, g, x = weight(4, 4, seed=1), weight(4, seed=2), weight(4, seed=3), tensor(3, 4)

        def net(one, two):
            return {"input side": lambda a: one(a, u, ops.sin(g)) @ w,
                    "weight side": lambda a: a @ two(w, u, ops.sin(g)),
                    "both": lambda a: one(a @ two(w, g, u), u, ops.sin(g))}[place]

        dx, (dw_w, dw_u, dw_g) = reference(net(plain, plain), [x], [w, u, g])
        asked = [([], ()), ([u], (dw_u,)), ([g], (dw_g,)), ([w], (dw_w,)), ([g, u, w], (dw_g, dw_u, dw_w))]
        for weights, dw in asked * 2:
            assert_grads_close(split(net(above, beside), [x], weights), (dx, dw))
            assert_grads_close(unsplit(net(above, beside), [x], weights), (dx, dw) if weights else dx)

    def test_jit_function_of_an_input_and_a_computed_weight(self):
        @ms.jit
        def compiled(x, y):
            return ops.tanh(x) * y

        w, u = weight(3, 4, seed=1), weight(3, 4, seed=2)
        check(lambda x: compiled(x.sin(), ops.sin(w)) * u, [tensor(3, 4)], [w, u])

    def test_same_jit_sub_cell_in_several_micro_batches(self, dense):
        @ms.jit
        def compiled(x):
            return ops.tanh(x) * x

        def fn(x):
            return dense(compiled(dense(x)))

        batches = [tensor(3, 4, seed=seed) for seed in range(4)]
        expected = [reference(fn, [batch], dense.trainable_params()) for batch in batches]
        grad_fns = [forward_and_gradfn(fn, batch, weights=dense.trainable_params())[1] for batch in batches]
        dx = [grad_fn.compute_input_grad() for grad_fn in grad_fns]
        for place in (2, 0, 3, 1):
            assert_grads_close((dx[place], grad_fns[place].compute_weight_grad()), expected[place])
