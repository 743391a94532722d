"""Right values in hard places: long chains, many weights and groups, many micro-batches, threads."""

import random
import threading
import time

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mindspore_zb import forward_and_gradfn
from mindspore_zb.engines.pynative.planner import clear_plans

from .helpers import (as_numpy, assert_grads_close, assert_same_bits, dw_by_groups, reference, split, split_by_groups,
                      tensor, weight)


class TestLargeGraphs:
    """No recursion, and time that grows like the graph."""

    @pytest.mark.slow
    def test_chain_of_3000_nodes(self):
        w = weight(4)

        def fn(x):
            x = x * w
            for _ in range(1499):
                x = (x * 1.0003).sin()
            return x * w

        for run in (split, split_by_groups):
            assert_grads_close(run(fn, [tensor(2, 4)], [w]), reference(fn, [tensor(2, 4)], [w]))

    def test_chain_of_3000_nodes_on_the_weight_side(self):
        w = weight(4)

        def fn(x):
            side = w
            for _ in range(1500):
                side = (side * 1.0003).sin()
            return x * side

        assert_grads_close(split(fn, [tensor(2, 4)], [w]), reference(fn, [tensor(2, 4)], [w]))

    def test_500_weights_in_one_group(self):
        weights = [weight(2, seed=seed) for seed in range(500)]

        def fn(x):
            total = weights[0]
            for one in weights[1:]:
                total = total + one.sin()
            return x * total

        order = random.Random(1).sample(weights, 500)
        expected = reference(fn, [tensor(3, 2)], order)
        _, grad_fn = forward_and_gradfn(fn, tensor(3, 2), weights=order)
        assert [len(group.weights) for group in grad_fn.weight_groups] == [500]
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)
        assert_grads_close(split_by_groups(fn, [tensor(3, 2)], order), expected)

    @pytest.mark.slow
    def test_500_groups(self):
        weights = [weight(2, seed=seed) for seed in range(500)]

        def fn(x):
            for one in weights:
                x = ops.tanh(x * one) + x
            return x

        shuffled = random.Random(1).sample(weights, 500)
        expected = reference(fn, [tensor(3, 2)], shuffled)
        for order in ("given", "reversed", 1):
            _, grad_fn = forward_and_gradfn(fn, tensor(3, 2), weights=shuffled)
            assert len(grad_fn.weight_groups) == 500
            assert_grads_close((grad_fn.compute_input_grad(), dw_by_groups(grad_fn, order)), expected)
        assert_grads_close(split(fn, [tensor(3, 2)], shuffled), expected)

    @pytest.mark.one_engine
    @pytest.mark.slow
    def test_time_is_linear_in_the_graph(self):
        def seconds(count):
            """CPU time of this thread for plan, dx and dw of ``count`` groups; the forward is MindSpore's own."""
            weights = [weight(2, seed=seed) for seed in range(count)]

            def fn(x):
                for one in weights:
                    x = ops.tanh(x * one) + x
                return x

            found = []
            for _ in range(3):
                clear_plans()
                _, grad_fn = forward_and_gradfn(fn, tensor(3, 2), weights=weights)
                start = time.thread_time()
                grad_fn.compute_input_grad()
                grad_fn.compute_weight_grad()
                found.append(time.thread_time() - start)
            return min(found)

        seconds(50)
        assert seconds(800) < 2 * 4 * seconds(200)  # quadratic would be 16 times

    def test_one_weight_used_500_times(self):
        w = weight(2)

        def fn(x):
            for _ in range(500):
                x = ops.tanh(x * w) + x * 0.1
            return x

        assert_grads_close(split(fn, [tensor(3, 2)], [w]), reference(fn, [tensor(3, 2)], [w]))


class Block(nn.Cell):
    """A small residual block with a norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((8,))
        self.up = nn.Dense(8, 16)
        self.down = nn.Dense(16, 8)

    def construct(self, x):
        return x + self.down(ops.gelu(self.up(self.norm(x))))


class TestMicroBatches:
    """Many graphs alive at once, finished in any order, add up to that of the whole batch."""

    @pytest.fixture
    def net(self):
        return nn.SequentialCell(Block(), Block())

    @pytest.mark.parametrize("order", ["given", "reversed", 1])
    def test_sum_over_four_is_that_of_one(self, net, order):
        batch, sens, weights = tensor(8, 8), tensor(8, 8, seed=5), net.trainable_params()
        dx, dw = split(net, [batch], weights, sens=sens)
        parts = [forward_and_gradfn(net, part, weights=weights)[1] for part in ops.split(batch, 2, axis=0)]
        found_dx = [grad_fn.compute_input_grad(part) for grad_fn, part in zip(parts, ops.split(sens, 2, axis=0))]
        found_dw = [dw_by_groups(grad_fn, order) for grad_fn in parts]
        assert_grads_close(ops.concat(found_dx, 0), dx)
        for place, whole in enumerate(dw):
            assert_grads_close(sum(part[place] for part in found_dw[1:]) + found_dw[0][place], whole)

    @pytest.mark.parametrize("seed", range(3))
    def test_20_in_random_order(self, net, seed):
        shuffled = random.Random(seed)
        weights = net.trainable_params()
        batches = [tensor(3, 8, seed=place) for place in range(20)]
        expected = [reference(net, [batch], weights) for batch in batches]
        grad_fns = [forward_and_gradfn(net, batch, weights=weights)[1] for batch in batches]
        dx, dw = {}, {}
        steps = [(place, step) for place in range(20) for step in ("dx", "dw")]
        shuffled.shuffle(steps)
        for place, _ in steps:  # whichever comes first for a micro-batch is its dx
            if place not in dx:
                dx[place] = grad_fns[place].compute_input_grad()
            elif place % 2:
                dw[place] = dw_by_groups(grad_fns[place], shuffled.random())
            else:
                dw[place] = grad_fns[place].compute_weight_grad()
        for place in range(20):
            assert_grads_close((dx[place], dw[place]), expected[place])

    def test_different_shapes_and_nets_in_turn(self, net):
        other = nn.SequentialCell(nn.Dense(8, 3), nn.Tanh())
        runs = [(net, tensor(1 + place % 3, 8, seed=place)) if place % 2 else (other, tensor(2, 8, seed=place))
                for place in range(8)]
        grad_fns = [forward_and_gradfn(fn, x, weights=fn.trainable_params())[1] for fn, x in runs]
        dx = [grad_fn.compute_input_grad() for grad_fn in grad_fns]
        for place in reversed(range(8)):
            fn, x = runs[place]
            got = dx[place], grad_fns[place].compute_weight_grad()
            assert_grads_close(got, reference(fn, [x], fn.trainable_params()))

    def test_optimizer_step_between_micro_batches(self):
        net, x = nn.Dense(4, 4, has_bias=False), tensor(3, 4)
        for scale in (1.0, 0.5):
            net.weight.set_data(Tensor(net.weight.asnumpy() * scale))
            assert_grads_close(split(net, [x], net.trainable_params()), reference(net, [x], net.trainable_params()))

    def test_same_run_twice_gives_the_same_bits(self, net):
        first = split(net, [tensor(3, 8)], net.trainable_params())
        assert_same_bits(split_by_groups(net, [tensor(3, 8)], net.trainable_params(), order="reversed"), first)
        assert_same_bits(split(net, [tensor(3, 8)], net.trainable_params()), first)

    def test_dx_has_the_bits_of_the_unsplit_run(self):
        net = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 8), nn.LayerNorm((8,)), nn.Dense(8, 2))
        expected = reference(net, [tensor(3, 8)], net.trainable_params(), sens=tensor(3, 2, seed=5))
        assert_same_bits(split(net, [tensor(3, 8)], net.trainable_params(), sens=tensor(3, 2, seed=5)), expected)


class TestThreads:
    """Each thread with its own graph, and one graph handed from thread to thread."""

    @staticmethod
    def run_all(functions):
        """Run each function in a thread of its own; raises what a thread raises."""
        errors = []

        def guarded(function):
            try:
                function()
            except BaseException as error:  # pylint: disable=broad-except
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
        if errors:
            raise errors[0]

    def test_two_threads(self):
        nets = [nn.SequentialCell(nn.Dense(8, 8), nn.LayerNorm((8,)), nn.Tanh(), nn.Dense(8, 4)) for _ in range(2)]
        batches = [tensor(3, 8, seed=seed) for seed in range(2)]
        expected = [reference(net, [x], net.trainable_params()) for net, x in zip(nets, batches)]

        def work(place):
            net, x = nets[place], batches[place]
            for turn in range(15):
                run = split_by_groups if turn % 3 else split
                assert_grads_close(run(net, [x], net.trainable_params()), expected[place])

        self.run_all([lambda: work(0), lambda: work(1)])

    def test_shared_net_in_four_threads(self):
        net = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 4))
        batches = [tensor(3, 8, seed=seed) for seed in range(4)]
        expected = [reference(net, [x], net.trainable_params()) for x in batches]

        def work(place):
            for _ in range(8):
                got = split(net, [batches[place]], net.trainable_params())
                assert_grads_close(got, expected[place])

        self.run_all([lambda place=place: work(place) for place in range(4)])

    def test_forward_dx_and_dw_in_three_threads(self):
        net, x, made = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 4)), tensor(3, 8), []
        expected = reference(net, [x], net.trainable_params())
        self.run_all([lambda: made.append(forward_and_gradfn(net, x, weights=net.trainable_params())[1])])
        self.run_all([lambda: made.append(made[0].compute_input_grad())])
        self.run_all([lambda: made.append(made[0].compute_weight_grad())])
        assert_grads_close((made[1], made[2]), expected)


def test_values_of_a_net_against_differences():
    """The reference itself against numbers: central differences in double precision."""
    w, x = weight(3, 3, dtype=np.float64), tensor(2, 3, dtype=np.float64)

    def total(inputs, weights):
        return float((np.tanh(inputs @ weights) @ weights).sum())

    def differences(function, values):
        found = np.zeros_like(values)
        for place in np.ndindex(values.shape):
            step = np.zeros_like(values)
            step[place] = 1e-6
            found[place] = (function(values + step) - function(values - step)) / 2e-6
        return Tensor(found)

    dx, dw = reference(lambda a: ops.tanh(a @ w) @ w, [x], [w])
    inputs, weights = as_numpy(x), as_numpy(w)
    assert np.abs(as_numpy(dx - differences(lambda values: total(values, weights), inputs))).max() < 1e-8
    assert np.abs(as_numpy(dw[0] - differences(lambda values: total(inputs, values), weights))).max() < 1e-8
