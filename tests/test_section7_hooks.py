"""Right values in hard places: hooks on activations and on cells."""

import functools
from itertools import permutations

import pytest
from mindspore import nn, ops

from mindspore_zb import forward_and_gradfn

from .helpers import assert_grads_close, reference, split, split_by_groups, tensor, weight


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
