"""Settings hold inside their block, in their thread, and change no value."""

import threading

import pytest
from mindspore import nn, ops

from mindspore_zb import ZeroBubbleError, forward_and_gradfn, options
from mindspore_zb.settings import current_options

from .helpers import assert_grads_close, assert_same_bits, reference, split, split_by_groups, tensor, weight


def test_holds_inside_the_block():
    assert current_options().free_early
    with options(free_early=False) as inside:
        assert not inside.free_early and not current_options().free_early
        with options(free_early=True):
            assert current_options().free_early
        with options():
            assert not current_options().free_early
        assert not current_options().free_early
    assert current_options().free_early


def test_ends_with_an_exception():
    with pytest.raises(LookupError), options(free_early=False):
        raise LookupError
    assert current_options().free_early


def test_holds_in_its_thread_only():
    seen = []
    with options(free_early=False):
        thread = threading.Thread(target=lambda: seen.append(current_options().free_early))
        thread.start()
        thread.join()
    assert seen == [True]


@pytest.mark.parametrize("changes, name", [
    ({"free_late": True}, "'free_late'.*free_early"), ({"free_early": 1}, "free_early"),
    ({"free_early": None}, "free_early"),
])
def test_wrong_settings(changes, name):
    with pytest.raises(TypeError, match=name) as caught, options(**changes):
        raise AssertionError("the block must not run")
    assert isinstance(caught.value, ZeroBubbleError)
    assert current_options().free_early


class TestFreeEarly:
    """With and without it, all values are the same."""

    @pytest.fixture
    def net(self):
        return nn.SequentialCell(nn.Dense(4, 8), nn.GELU(), nn.LayerNorm((8,)), nn.Dense(8, 8), nn.SiLU(),
                                 nn.Dense(8, 2))

    def test_same_bits(self, net):
        sens = tensor(3, 2, seed=5)
        early = split(net, [tensor(3, 4)], net.trainable_params(), sens=sens)
        with options(free_early=False):
            late = split(net, [tensor(3, 4)], net.trainable_params(), sens=sens)
            by_groups = split_by_groups(net, [tensor(3, 4)], net.trainable_params(), sens=sens, order="reversed")
        assert_same_bits(late, early)
        assert_same_bits(by_groups, early)
        assert_grads_close(early, reference(net, [tensor(3, 4)], net.trainable_params(), sens=sens))

    def test_counts_when_the_forward_starts(self):
        w, u = weight(4, 4, seed=1), weight(4, 4, seed=2)

        def fn(x):
            return ops.silu(x @ w) @ u

        expected = reference(fn, [tensor(3, 4)], [w, u])
        with options(free_early=False):
            _, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=[w, u])
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)


@pytest.mark.parametrize("setting", [{"graph_pieces": 0}, {"graph_pieces": True}, {"graph_pieces": "four"},
                                     {"graph_recompute": "some"}, {"graph_recompute": None}])
def test_settings_of_the_graph_engine_are_checked(setting):
    with pytest.raises((TypeError, ValueError), match=next(iter(setting))):
        with options(**setting):
            pass
