"""Right values in hard places: norms, hooks, opaque sub-cells, recompute, recurrent cells."""

import contextlib
import functools
from itertools import permutations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common._grad_function import _Function

from mindspore_zb import ZeroBubbleError, forward_and_gradfn

from .helpers import assert_grads_close, check, reference, split, split_by_groups, tensor, unsplit, weight


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

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
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


class TestHooks:
    """A hook on an activation changes its gradient; it runs once per backward."""

    @pytest.fixture
    def scaling(self):
        """A hook that triples a gradient, and the list of its calls."""
        calls = []

        def hook(grad):
            calls.append(grad.shape)
            return grad * 3

        return hook, calls

    @pytest.mark.parametrize("place", ["between", "boundary", "weight side", "output", "input"])
    def test_hook_scales_a_gradient(self, scaling, place):
        hook, calls = scaling
        w, u = weight(4, 4, seed=1), weight(4, 4, seed=2)

        def fn(x):
            side = ops.tanh(w)
            activation = x.sin()
            product = activation @ side
            out = ops.tanh(product) @ u
            hooked = {"between": activation, "boundary": product, "weight side": side, "output": out, "input": x}
            hooked[place].register_hook(hook)
            return out

        for order in permutations([w, u]):
            expected = reference(fn, [tensor(3, 4)], order)
            for run in (split, split_by_groups, functools.partial(split_by_groups, order="reversed")):
                calls.clear()
                assert_grads_close(run(fn, [tensor(3, 4)], order), expected)
                assert len(calls) == 1

    def test_hook_that_only_looks(self):
        w, seen = weight(4, 4), []

        def fn(x):
            product = x @ w
            product.register_hook(lambda grad: seen.append(grad.asnumpy()))
            return product * 2

        expected = reference(fn, [tensor(3, 4)], [w])
        seen.clear()
        assert_grads_close(split(fn, [tensor(3, 4)], [w]), expected)
        assert len(seen) == 1 and (seen[0] == 2).all()

    def test_two_hooks_on_one_activation(self, scaling):
        hook, calls = scaling
        w = weight(4, 4)

        def fn(x):
            product = x @ w
            product.register_hook(hook)
            product.register_hook(lambda grad: grad + 1)
            return product.sin()

        expected = reference(fn, [tensor(3, 4)], [w])
        calls.clear()
        assert_grads_close(split(fn, [tensor(3, 4)], [w]), expected)
        assert len(calls) == 1

    def test_removed_hook_does_nothing(self, scaling):
        hook, calls = scaling
        w = weight(4, 4)

        def fn(x):
            product = x @ w
            product.register_hook(hook).remove()
            return product

        assert_grads_close(split(fn, [tensor(3, 4)], [w]), reference(fn, [tensor(3, 4)], [w]))
        assert not calls

    def test_hook_with_dw_repeated(self, scaling):
        hook, calls = scaling
        w = weight(4, 4)

        def fn(x):
            product = x @ w
            product.register_hook(hook)
            return product.sin()

        expected = reference(fn, [tensor(3, 4)], [w])
        calls.clear()
        _, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=[w])
        dx = grad_fn.compute_input_grad()
        for keep_graph in (True, True, False):
            assert_grads_close((dx, grad_fn.compute_weight_grad(keep_graph)), expected)
        assert len(calls) == 1

    def test_backward_hook_of_a_cell(self):
        dense, calls = nn.Dense(4, 4), []

        def hook(cell, grad_input, grad_output):
            calls.append(len(grad_output))
            return tuple(grad * 3 for grad in grad_input)

        handle = dense.register_backward_hook(hook)
        net = nn.SequentialCell(nn.Dense(4, 4), dense, nn.Dense(4, 2))
        expected = reference(net, [tensor(3, 4)], net.trainable_params())
        for run in (split, split_by_groups):
            calls.clear()
            assert_grads_close(run(net, [tensor(3, 4)], net.trainable_params()), expected)
            assert len(calls) == 1
        handle.remove()


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

    def test_jit_sub_cell_asked_for_different_gradients_in_turn(self):
        class Plain(nn.Cell):
            def __init__(self):
                super().__init__()
                self.u = weight(4, name="u")
                self.g = weight(4, seed=7, name="g")

            def construct(self, x):
                return ops.tanh(x) * self.u + self.g

        class Compiled(Plain):
            @ms.jit
            def construct(self, x):
                return ops.tanh(x) * self.u + self.g

        cell, plain, x = Compiled(), Plain(), tensor(3, 4)
        dx, (dw_u, dw_g) = reference(plain, [x], [plain.u, plain.g])
        for weights, dw in (([], ()), ([cell.u], (dw_u,)), ([cell.g], (dw_g,)), ([cell.g, cell.u], (dw_g, dw_u))) * 2:
            assert_grads_close(split(cell, [x], weights), (dx, dw))
            if weights:
                assert_grads_close(unsplit(cell, [x], weights, grad_position=None), dw)

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


class Counting(nn.Cell):
    """Two dense layers that count their forwards."""

    def __init__(self):
        super().__init__()
        self.one = nn.Dense(4, 4)
        self.two = nn.Dense(4, 4)
        self.forwards = 0

    def construct(self, x):
        self.forwards += 1
        return self.two(ops.tanh(self.one(x)))


def _reentrant(cell):
    return lambda x: ms.recompute(cell, x)


def _not_reentrant(cell):
    return lambda x: ms.recompute(cell, x, use_reentrant=False)


def _flagged(cell):
    cell.recompute()
    return cell


RECOMPUTES = [_reentrant, _not_reentrant, _flagged]


class TestRecompute:
    """The forward runs once more per micro-batch, and not twice."""

    @pytest.fixture
    def first(self):
        return nn.Dense(4, 4)

    @pytest.fixture
    def plain(self):
        """The cell, and a function to find the reference without recompute."""
        return Counting()

    @pytest.mark.parametrize("kind", RECOMPUTES)
    @pytest.mark.parametrize("run", [split, split_by_groups, functools.partial(split_by_groups, order="reversed")],
                             ids=["split", "groups", "groups reversed"])
    def test_one_extra_forward(self, first, plain, kind, run):
        weights = [*first.trainable_params(), *plain.trainable_params()]
        expected = reference(lambda x: plain(ops.sin(first(x))), [tensor(3, 4)], weights)
        block = kind(plain)
        plain.forwards = 0
        assert_grads_close(run(lambda x: block(ops.sin(first(x))), [tensor(3, 4)], weights), expected)
        assert plain.forwards == 2

    @pytest.mark.parametrize("kind", RECOMPUTES)
    def test_unsplit(self, first, plain, kind):
        weights = [*first.trainable_params(), *plain.trainable_params()]
        expected = reference(lambda x: first(plain(x)), [tensor(3, 4)], weights)
        block = kind(plain)
        plain.forwards = 0
        _, grad_fn = forward_and_gradfn(lambda x: first(block(x)), tensor(3, 4), weights=weights)
        assert_grads_close(grad_fn(), expected)
        assert plain.forwards == 2

    @pytest.mark.parametrize("kind", RECOMPUTES)
    def test_first_in_first_out(self, first, plain, kind):
        weights = [*first.trainable_params(), *plain.trainable_params()]
        batches = [tensor(3, 4, seed=seed) for seed in range(4)]
        expected = [reference(lambda x: plain(ops.sin(first(x))), [batch], weights) for batch in batches]
        block = kind(plain)
        with _only_where_it_cannot_be_right(kind):
            plain.forwards = 0
            grad_fns = [forward_and_gradfn(lambda x: block(ops.sin(first(x))), batch, weights=weights)[1]
                        for batch in batches]
            dx = [grad_fn.compute_input_grad() for grad_fn in grad_fns]
            dw = [grad_fn.compute_weight_grad() for grad_fn in grad_fns]
            assert_grads_close(list(zip(dx, dw)), expected)
            assert plain.forwards == 2 * len(batches)

    @pytest.mark.parametrize("kind", RECOMPUTES)
    def test_last_in_first_out(self, first, plain, kind):
        weights = [*first.trainable_params(), *plain.trainable_params()]
        batches = [tensor(3, 4, seed=seed) for seed in range(3)]
        expected = [reference(lambda x: plain(ops.sin(first(x))), [batch], weights) for batch in batches]
        block = kind(plain)
        grad_fns = [forward_and_gradfn(lambda x: block(ops.sin(first(x))), batch, weights=weights)[1]
                    for batch in batches]
        for place in (2, 1, 0):
            got = grad_fns[place].compute_input_grad(), grad_fns[place].compute_weight_grad()
            assert_grads_close(got, expected[place])

    @pytest.mark.parametrize("kind", [_reentrant, _not_reentrant])
    def test_several_blocks_and_one_block_twice(self, first, plain, kind):
        other = Counting()
        weights = [*first.trainable_params(), *plain.trainable_params(), *other.trainable_params()]
        expected = reference(lambda x: plain(other(plain(first(x)))), [tensor(3, 4)], weights)
        recomputed, others = kind(plain), kind(other)
        plain.forwards = other.forwards = 0
        got = split(lambda x: recomputed(others(recomputed(first(x)))), [tensor(3, 4)], weights)
        assert_grads_close(got, expected)
        assert (plain.forwards, other.forwards) == (4, 2)

    def test_dw_repeated_with_keep_graph(self, first, plain):
        weights = [*first.trainable_params(), *plain.trainable_params()]
        expected = reference(lambda x: plain(first(x)), [tensor(3, 4)], weights)
        _, grad_fn = forward_and_gradfn(lambda x: ms.recompute(plain, first(x), use_reentrant=False), tensor(3, 4),
                                        weights=weights)
        dx = grad_fn.compute_input_grad()
        for keep_graph in (True, True, False):
            assert_grads_close((dx, grad_fn.compute_weight_grad(keep_graph)), expected)

    def test_abandoned_micro_batch_between_two_others(self, first, plain):
        weights = [*first.trainable_params(), *plain.trainable_params()]
        expected = reference(lambda x: plain(first(x)), [tensor(3, 4)], weights)
        for kind in (_reentrant, _not_reentrant):
            block = kind(plain)
            grad_fns = [forward_and_gradfn(lambda x: block(first(x)), tensor(3, 4), weights=weights)[1]
                        for _ in range(3)]
            grad_fns[0].compute_input_grad()
            grad_fns[0].release()
            del grad_fns[0]
            for grad_fn in grad_fns:
                assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)


@contextlib.contextmanager
def _only_where_it_cannot_be_right(kind):
    """Let a clear error pass for ``cell.recompute()``: MindSpore keeps its arguments on one stack."""
    try:
        yield
    except ZeroBubbleError as error:
        if kind is not _flagged:
            raise
        assert "recompute" in str(error)


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


def test_parameter_tuple_and_nested_cells():
    net = nn.SequentialCell(nn.SequentialCell(nn.Dense(4, 4), nn.ReLU()), nn.CellList([nn.Dense(4, 2)])[0])
    check(net, [tensor(3, 4)], list(net.trainable_params()))
    assert all(isinstance(parameter, Parameter) for parameter in net.trainable_params())
