"""The checker rejects wrong results: a test that cannot fail tests nothing."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from . import helpers
from .helpers import assert_grads_close, assert_same_bits, check, dw_by_groups, reference, tensor, weight

RIGHT = tensor(3, 4)


def changed(place, change):
    """The right gradient with one entry changed."""
    values = RIGHT.asnumpy().copy()
    values[place] = change(values[place])
    return Tensor(values)


class TestAssertGradsClose:
    """Values, zeros, shape, dtype, None and nesting."""

    def test_accepts_the_same(self):
        assert_grads_close({"a": (RIGHT, [None, RIGHT])}, {"a": (RIGHT, [None, RIGHT])})

    def test_accepts_the_last_bits(self):
        assert_grads_close(changed((0, 0), lambda value: value * (1 + 1e-6)), RIGHT)

    @pytest.mark.parametrize("got", [
        RIGHT * 2, RIGHT + 1e-3, RIGHT * 0, changed((1, 2), lambda value: value + 1e-4),
        changed((0, 0), lambda _: np.nan), changed((0, 0), lambda _: np.inf), RIGHT.T,
        RIGHT[:1], RIGHT.reshape(12), RIGHT.astype(ms.float64), None,
        RIGHT.asnumpy(), (RIGHT,), [RIGHT],
    ], ids=["doubled", "shifted", "zeros", "one entry", "nan", "inf", "transposed", "broadcastable", "flat", "dtype",
            "None", "numpy", "in a tuple", "in a list"])
    def test_rejects(self, got):
        with pytest.raises(AssertionError):
            assert_grads_close(got, RIGHT)

    @pytest.mark.parametrize("got, expected", [
        ((RIGHT,), [RIGHT]), ((RIGHT,), (RIGHT, RIGHT)), ({"a": RIGHT}, {"b": RIGHT}), ({}, {"a": RIGHT}),
        (RIGHT, None),
        ((RIGHT, RIGHT * 2), (RIGHT, RIGHT)), ({"a": [RIGHT * 2]}, {"a": [RIGHT]}), ((), None),
    ])
    def test_rejects_nesting(self, got, expected):
        with pytest.raises(AssertionError):
            assert_grads_close(got, expected)

    def test_zero_must_be_zero(self):
        expected = Tensor(np.array([1.0, 0.0], np.float32))
        with pytest.raises(AssertionError, match="not zero"):
            assert_grads_close(Tensor(np.array([1.0, 1e-30], np.float32)), expected)
        with pytest.raises(AssertionError, match="not zero"):
            assert_grads_close(Tensor(np.array([1e-30], np.float32)), Tensor(np.zeros(1, np.float32)))

    def test_small_gradients_are_compared_by_their_own_size(self):
        with pytest.raises(AssertionError, match="off by"):
            assert_grads_close(RIGHT * 1.1e-12, RIGHT * 1e-12)

    def test_two_nans_are_not_close(self):
        wrong = Tensor(np.array([np.nan], np.float32))
        with pytest.raises(AssertionError, match="not finite"):
            assert_grads_close(wrong, wrong)

    def test_same_bits_sees_the_last_bit(self):
        one = Tensor(np.float32([1.0]))
        assert_same_bits(one, one)
        with pytest.raises(AssertionError):
            assert_same_bits(Tensor(np.nextafter(np.float32([1.0]), np.float32(2))), one)


class TestReference:
    """The reference is right where the answer is known."""

    def test_matmul(self):
        w, x, sens = weight(4, 2), tensor(3, 4), tensor(3, 2, seed=5)
        dx, (dw,) = reference(lambda a: a @ w, [x], [w], sens=sens)
        assert_grads_close(dx, Tensor(sens.asnumpy() @ w.asnumpy().T))
        assert_grads_close(dw, Tensor(x.asnumpy().T @ sens.asnumpy()))

    def test_shapes(self):
        w, x = weight(4), tensor(3, 4)
        assert reference(lambda a: a * w, [x], [w], grad_position=None)[0] is None
        dx, dw = reference(lambda a, b: a * w, [x, "text"], w, grad_position=-1)
        assert type(dx) is tuple and dx[1] is None and isinstance(dw, Tensor)

    def test_none_in_sens(self):
        w, x = weight(4), tensor(3, 4)
        dx, (dw,) = reference(lambda a: (a * 2, a * w), [x], [w], sens=(tensor(3, 4, seed=5), None))
        assert_grads_close(dx, tensor(3, 4, seed=5) * 2)
        assert not dw.asnumpy().any()


class TestCheck:
    """``check`` fails if the package is wrong in one of its ways to run."""

    @pytest.mark.parametrize("name", ["split", "split_by_groups", "unsplit"])
    def test_sees_a_wrong_run(self, monkeypatch, name):
        w, original = weight(4, 4), getattr(helpers, name)

        def wrong(*args, **kwargs):
            dx, dw = original(*args, **kwargs)
            return dx, tuple(grad * 1.001 for grad in dw)

        check(lambda x: ops.tanh(x @ w), [tensor(3, 4)], [w])
        monkeypatch.setattr(helpers, name, wrong)
        with pytest.raises(AssertionError, match="off by"):
            check(lambda x: ops.tanh(x @ w), [tensor(3, 4)], [w])

    def test_sees_that_nothing_is_tested(self):
        w = weight(4)
        with pytest.raises(AssertionError, match="reference gradient is zero"):
            check(lambda x: ops.sin(x), [tensor(3, 4)], [w])
        check(lambda x: ops.sin(x), [tensor(3, 4)], [w], vanishing=True)

    def test_sees_a_weight_in_two_groups(self):
        class Group:
            """A group of weight 0."""
            positions = (0,)

            @staticmethod
            def compute():
                return (RIGHT,)

        class Wrong:
            """Two groups with the same weight."""
            weight_groups = (Group, Group)

        with pytest.raises(AssertionError, match="in two groups"):
            dw_by_groups(Wrong)
