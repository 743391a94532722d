"""Batches are cut into equal pieces, or refused by the name of the tensor."""

from collections import namedtuple

import mindspore as ms
import numpy as np
import pytest

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.pipeline import split_batch

Pair = namedtuple("Pair", "ids mask")


def rows(*shape, dtype=np.float32):
    return ms.Tensor(np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape))


def test_nested_values_are_cut_and_others_repeated():
    scalar = ms.Tensor(2.0, ms.float32)
    value = (Pair(rows(6, 2, dtype=np.int32), [rows(6)]), {"flag": True, "scale": scalar, "none": None})
    pieces = split_batch(value, 3)
    assert len(pieces) == 3
    for number, (pair, rest) in enumerate(pieces):
        assert isinstance(pair, Pair) and isinstance(pair.mask, list)
        np.testing.assert_array_equal(pair.ids.asnumpy(), value[0].ids.asnumpy()[2 * number:2 * number + 2])
        np.testing.assert_array_equal(pair.mask[0].asnumpy(), [2 * number, 2 * number + 1])
        assert rest == {"flag": True, "scale": scalar, "none": None}


def test_another_axis():
    pieces = split_batch(rows(2, 4, 3), 2, axis=np.int64(1))
    np.testing.assert_array_equal(pieces[1].asnumpy(), rows(2, 4, 3).asnumpy()[:, 2:])


@pytest.mark.parametrize("value, message", [
    (({"x": rows(10, 2)},), r"inputs\[0\]\['x'\] has a batch of 10 along axis 0, which cannot be cut into 4 equal"),
    ((rows(0, 2),), r"inputs\[0\] has a batch of 0 along axis 0"),
    ((rows(8), rows(4)), r"inputs\[1\] has a batch of 4 along axis 0, but inputs\[0\] has 8")])
def test_uneven_batches_are_refused(value, message):
    with pytest.raises(ArgumentValueError, match=message):
        split_batch(value, 4)


def test_nothing_to_cut():
    assert split_batch((), 2) == [(), ()]


@pytest.mark.parametrize("axis, message", [(-1, "axis is at least 0, not -1"), ("a", "axis is an integer, not str"),
                                           (True, "axis is an integer, not bool"), (1, "and so no axis 1")])
def test_axes_that_cannot_be_cut(axis, message):
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=message):
        split_batch((ms.ops.ones((6, 4)), ms.ops.ones((4,))), 2, axis)
