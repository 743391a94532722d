"""The comparison of the value tests must reject what is wrong."""

import numpy as np
import pytest

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from tests.networks.compare import assert_same, random_sens, relative_difference, unsplit_grads

RIGHT = (Tensor([1.0, -200.0], ms.float32), {"a": Tensor([[3.0]], ms.float16), "b": None}, [Tensor([2], ms.int32)])


def changed(place, value):
    """``RIGHT`` with one entry changed."""
    wrong = [RIGHT[0], dict(RIGHT[1]), list(RIGHT[2])]
    if place == "b" or place == "a":
        wrong[1][place] = value
    else:
        wrong[place] = value
    return tuple(wrong)


@pytest.mark.parametrize("wrong", [
    changed(0, Tensor([1.0, -200.01], ms.float32)),
    changed(0, Tensor([1.01, -200.0], ms.float32)),
    changed(0, Tensor([-1.0, 200.0], ms.float32)),
    changed(0, Tensor([2.0, -400.0], ms.float32)),
    changed(0, Tensor([0.0, 0.0], ms.float32)),
    changed(0, Tensor([float("nan"), -200.0], ms.float32)),
    changed(0, Tensor([1.0, float("inf")], ms.float32)),
    changed(0, Tensor([1.0, -200.0], ms.float64)),
    changed(0, Tensor([[1.0, -200.0]], ms.float32)),
    changed(0, None),
    changed("a", Tensor([[3.1]], ms.float16)),
    changed("b", Tensor([0.0], ms.float32)),
    changed(2, [Tensor([3], ms.int32)]),
    changed(2, []),
    RIGHT[:2],
    list(RIGHT[1].values()),
], ids=lambda wrong: "")
def test_a_wrong_result_is_rejected(wrong):
    with pytest.raises(AssertionError):
        assert_same(wrong, RIGHT)


def test_a_right_result_passes():
    near = changed(0, Tensor([1.0005, -200.0005], ms.float32))
    assert_same(RIGHT, RIGHT, tolerance=0)
    assert_same(near, RIGHT)
    with pytest.raises(AssertionError):
        assert_same(near, RIGHT, tolerance=0)


def test_expected_zeros_must_be_zeros():
    zeros = ops.zeros((2,), ms.float32)
    assert_same(zeros, zeros)
    with pytest.raises(AssertionError):
        assert_same(Tensor([0.0, 1e-30], ms.float32), zeros)
    assert relative_difference(zeros, zeros) == 0


def test_the_reference_equals_a_formula():
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 3)).astype(np.float32), rng.standard_normal((3, 4)).astype(np.float32)
    weight, unused = Parameter(Tensor(w), name="w"), Parameter(Tensor(w), name="unused")
    frozen = Parameter(Tensor(w), name="frozen", requires_grad=False)
    inputs = (Tensor(x),)

    def fn(x, *, scale):
        hidden = ops.matmul(x, weight) + ops.matmul(x, frozen)
        return (hidden * scale["s"][0], ops.argmax(hidden, dim=1)), "aux"

    kwargs = {"scale": {"s": (Tensor(2.0),)}}
    sens = (random_sens(ops.ones((2, 4)), 5), None)
    expected = unsplit_grads(fn, inputs, [weight, unused, frozen], sens, kwargs=kwargs, has_aux=True,
                             grad_position=-1)
    given = sens[0].asnumpy()
    np.testing.assert_allclose(expected.dw[0].asnumpy(), 2 * x.T @ given, rtol=1e-5, atol=1e-6)
    assert not expected.dw[1].asnumpy().any() and not expected.dw[2].asnumpy().any()
    (dx,), by_name = expected.dx
    np.testing.assert_allclose(dx.asnumpy(), 4 * given @ w.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_name["scale"]["s"][0].asnumpy(), (given * (2 * x @ w)).sum(), rtol=1e-4)
    assert expected.out[1] == "aux"


def test_the_reference_without_any_gradient_gives_zeros():
    weight = Parameter(Tensor([2.0]), name="w")
    expected = unsplit_grads(lambda x: (x * weight, x), (Tensor([3.0]),), [weight], (None, None))
    assert_same(expected.dx, Tensor([0.0]))
    assert_same(expected.dw, (Tensor([0.0]),))
