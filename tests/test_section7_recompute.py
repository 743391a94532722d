"""Right values in hard places: recompute, in all its kinds and any order of micro-batches."""

import functools
import gc

import mindspore as ms
import pytest
from mindspore import nn, ops

from mindspore_zb import forward_and_gradfn
from mindspore_zb.engines.pynative.observe import HAS_SESSIONS, _recompute

from .helpers import assert_grads_close, reference, split, split_by_groups, tensor, weight


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

    def test_after_a_callers_own_gradient_that_raised(self, first, plain):
        def fails(x):
            raise ValueError("on purpose")

        other = Counting()
        weights = [*first.trainable_params(), *plain.trainable_params(), *other.trainable_params()]
        expected = reference(lambda x: plain(other(plain(first(x)))), [tensor(3, 4)], weights)
        recomputed, others = _reentrant(plain), _reentrant(other)

        def fn(x):
            return recomputed(others(recomputed(first(x))))

        with pytest.raises(ValueError, match="on purpose"):
            ms.grad(fails)(tensor(3, 4))
        with pytest.raises(RuntimeError, match="Can not find top cell"):  # if it works, README has one limit too many
            split(fn, [tensor(3, 4)], weights)
        assert_grads_close(split(fn, [tensor(3, 4)], weights), expected)


@pytest.mark.skipif(not HAS_SESSIONS, reason="2.9 keeps nothing between runs")
@pytest.mark.parametrize("last", ["dx", "a group", "dw kept"])
def test_a_dropped_micro_batch_leaves_nothing_behind(last):
    w, x = weight(4, 4, name="w"), tensor(3, 4)
    handles = _recompute._recompute_session_handles
    before = len(handles)
    for _ in range(3):
        _, grad_fn = forward_and_gradfn(lambda x: ms.recompute(lambda z: z @ w, x, use_reentrant=False), x, weights=[w])
        grad_fn.compute_input_grad()
        if last != "dx":
            grad_fn.compute_weight_grad(keep_graph=True) if last == "dw kept" else grad_fn.weight_groups[0].compute(True)
        del grad_fn
    gc.collect()
    assert len(handles) == before
