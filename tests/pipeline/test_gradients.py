"""Gradients are summed in place into buffers of their own."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter

from mindspore_zb.errors import ArgumentValueError
from mindspore_zb.pipeline.gradients import GradientBuffers


def weight(name, dtype=np.float32, size=3):
    return Parameter(ms.Tensor(np.ones(size, dtype)), name=name)


def tensor(*values, dtype=np.float32):
    return ms.Tensor(np.array(values, dtype))


def test_sums_stay_in_the_same_buffer_and_leave_gradients_alone():
    one = weight("one")
    buffers = GradientBuffers([one, one])
    assert buffers.weights == (one,)
    first = tensor(1, 2, 3)
    buffers.add([one], [first])
    buffer = buffers.sums()[0]
    address = buffer.data_ptr()
    buffers.add([one], [tensor(10, 20, 30)])
    assert buffers.sums()[0].data_ptr() == address
    np.testing.assert_array_equal(buffers.sums()[0].asnumpy(), [11, 22, 33])
    np.testing.assert_array_equal(first.asnumpy(), [1, 2, 3])
    buffers.clear()
    buffers.add([one], [tensor(5, 5, 5)])
    np.testing.assert_array_equal(buffers.sums()[0].asnumpy(), [5, 5, 5])
    assert buffers.sums()[0].data_ptr() == address


def test_the_first_gradient_is_not_added_to_what_was_there():
    one = weight("one")
    buffers = GradientBuffers([one])
    buffers.add([one], [tensor(np.inf, np.nan, 1)])
    buffers.clear()
    buffers.add([one], [tensor(1, 2, 3)])
    np.testing.assert_array_equal(buffers.sums()[0].asnumpy(), [1, 2, 3])


def test_float32_sums_of_float16_gradients():
    half = weight("half", np.float16, 1)
    exact, rounded = GradientBuffers([half], float32=True), GradientBuffers([half])
    for _ in range(4):
        for buffers in (exact, rounded):
            buffers.add([half], [tensor(1024, dtype=np.float16)])
            buffers.add([half], [tensor(0.25, dtype=np.float16)])
    assert exact.sums()[0].dtype == ms.float32 and rounded.sums()[0].dtype == ms.float16
    assert float(exact.sums()[0][0]) == 4 * (1024 + 0.25)
    assert float(rounded.sums()[0][0]) != 4 * (1024 + 0.25)


def test_zeros_where_nothing_was_added():
    one, other = weight("one"), weight("other")
    buffers = GradientBuffers([one, other])
    buffers.add([one], [tensor(1, 2, 3)])
    assert buffers.sums()[1].asnumpy().tolist() == [0, 0, 0]
    buffers.clear()
    assert buffers.sums()[0].asnumpy().tolist() == [0, 0, 0]


def test_sums_in_the_order_of_an_optimizer():
    one, other = weight("one"), weight("other", size=2)
    buffers = GradientBuffers([one, other])
    assert [grad.shape for grad in buffers.sums_of([other, one])] == [(2,), (3,)]
    with pytest.raises(ArgumentValueError, match="the optimizer has the weight 'third', which no stage"):
        buffers.sums_of([one, weight("third")])
