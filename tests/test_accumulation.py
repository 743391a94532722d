"""Gradients are summed in place into buffers of their own; the sums are those of the whole batch."""

import threading

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, nn, ops

import mindspore_zb
from mindspore_zb import GradientAccumulator, forward_and_gradfn
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, StateError
from tests.helpers import assert_grads_close, assert_same_bits, reference, tensor


class Net(nn.Cell):
    """Two layers, a frozen weight, one that nothing reads, and one whose gradient is ``sens`` itself."""

    def __init__(self, dtype=np.float32):
        super().__init__()
        self.first = Parameter(tensor(5, 6, seed=1, dtype=dtype), name="first")
        self.unread = Parameter(tensor(3, seed=2, dtype=dtype), name="unread")
        self.second = Parameter(tensor(6, 4, seed=3, dtype=dtype), name="second")
        self.frozen = Parameter(tensor(4, seed=4, dtype=dtype), name="frozen", requires_grad=False)
        self.shift = Parameter(tensor(2, 4, seed=5, dtype=dtype), name="shift")

    def construct(self, x):
        return ops.matmul(ops.tanh(ops.matmul(x, self.first)), self.second) * self.frozen + self.shift


BATCH = tensor(8, 5)
MICRO_BATCHES = [BATCH[place:place + 2] for place in range(0, 8, 2)]


def weights_of(net):
    return [net.first, net.unread, net.second, net.frozen, net.shift]


def whole_batch(net, weights):
    """By value_and_grad on all of the batch at once."""
    return reference(lambda x: [net(x[place:place + 2]) for place in range(0, 8, 2)], [BATCH], weights)[1]


def flights(net, weights, batches=tuple(MICRO_BATCHES)):
    grad_fns = [forward_and_gradfn(net, batch, weights=weights)[1] for batch in batches]
    for grad_fn in grad_fns:
        grad_fn.compute_input_grad()
    return grad_fns


def whole(accumulator, grad_fn):
    accumulator.accumulate(grad_fn)


def by_groups(accumulator, grad_fn):
    for group in reversed(grad_fn.weight_groups):
        accumulator.accumulate(group)


def one_group_then_the_rest(accumulator, grad_fn):
    accumulator.accumulate(grad_fn.weight_groups[1])
    accumulator.accumulate(grad_fn)


WAYS = [whole, by_groups, one_group_then_the_rest]


@pytest.mark.parametrize("way", WAYS)
def test_sums_are_those_of_the_whole_batch(way):
    net = Net()
    weights = weights_of(net)
    accumulator = GradientAccumulator(reversed(weights))
    expected = whole_batch(net, weights)[::-1]
    for set_to_none in (False, True, False):
        for grad_fn in flights(net, weights):
            way(accumulator, grad_fn)
            assert grad_fn.state == "released"
        assert_grads_close(accumulator.gradients(), expected)
        accumulator.clear(set_to_none)


def test_the_first_micro_batch_is_assigned():
    net = Net()
    weights = weights_of(net)
    accumulator = GradientAccumulator(weights)
    accumulator.add(weights, [ops.full(weight.shape, np.nan, dtype=weight.dtype) for weight in weights])
    accumulator.clear()
    _, exact = reference(net, [MICRO_BATCHES[0]], weights)
    accumulator.accumulate(flights(net, weights, MICRO_BATCHES[:1])[0])
    assert_same_bits(accumulator.gradients(), exact)


def test_in_place_and_apart_from_the_gradients():
    net = Net()
    weights = [net.shift, net.first]
    accumulator = GradientAccumulator(weights)
    _, grad_fn = forward_and_gradfn(net, MICRO_BATCHES[0], weights=weights)
    sens = tensor(2, 4, seed=9)
    before = sens.asnumpy().copy()
    grad_fn.compute_input_grad(sens)
    grads = grad_fn.compute_weight_grad()
    kept = [grad.asnumpy().copy() for grad in grads]
    accumulator.add(weights, grads)
    buffers = accumulator.gradients()
    addresses = [buffer.data_ptr() for buffer in buffers]
    assert not set(addresses) & {grad.data_ptr() for grad in (*grads, sens)}
    accumulator.add(weights, grads)
    assert [buffer.data_ptr() for buffer in accumulator.gradients()] == addresses
    for buffer, grad, values in zip(buffers, grads, kept):
        np.testing.assert_array_equal(grad.asnumpy(), values)
        np.testing.assert_array_equal(buffer.asnumpy(), 2 * values)  # seen through what was handed out before
    np.testing.assert_array_equal(sens.asnumpy(), before)
    accumulator.clear()
    accumulator.add(weights, grads)
    assert [buffer.data_ptr() for buffer in accumulator.gradients()] == addresses


def test_a_group_that_waits_is_not_disturbed():
    """Two weights that get the same gradient: it may be handed out for one while the other's dw still reads it."""
    one, two = Parameter(tensor(2, 4, seed=1), name="one"), Parameter(tensor(2, 4, seed=2), name="two")
    x = tensor(2, 4)
    accumulator = GradientAccumulator([one, two])
    for _ in range(2):
        _, grad_fn = forward_and_gradfn(lambda x: x * 2 + one + two, x, weights=[one, two])
        grad_fn.compute_input_grad(tensor(2, 4, seed=3))
        for group in grad_fn.weight_groups:
            accumulator.accumulate(group)
            accumulator.add(group.weights, [tensor(2, 4, seed=4)] * len(group.weights))
    expected = 2 * (tensor(2, 4, seed=3).asnumpy() + tensor(2, 4, seed=4).asnumpy())
    for grad in accumulator.gradients():
        np.testing.assert_allclose(grad.asnumpy(), expected, rtol=1e-6)


def half_weight(dtype):
    return Parameter(ms.Tensor(np.ones(1), dtype), name="half")


def add_halves(accumulator, half, big, small):
    for _ in range(4):
        accumulator.add([half], [ms.Tensor([big], half.dtype)])
        accumulator.add([half], [ms.Tensor([small], half.dtype)])


@pytest.mark.parametrize("dtype, big, small", [(ms.float16, 1024, 0.25), (ms.bfloat16, 256, 0.5)])
def test_float32_sums(dtype, big, small):
    half = half_weight(dtype)
    exact = GradientAccumulator([half], float32=True)
    add_halves(exact, half, big, small)
    assert exact.gradients()[0].dtype == ms.float32 and exact.nbytes == 4
    assert float(exact.gradients()[0].asnumpy()[0]) == 4 * (big + small)
    for again in (False, True):
        exact.clear(set_to_none=again)
        assert exact.gradients()[0].dtype == ms.float32 and not exact.gradients()[0].asnumpy().any()


def test_sums_of_float16_otherwise():
    half = half_weight(ms.float16)
    rounded = GradientAccumulator(half)
    add_halves(rounded, half, 1024, 0.25)
    assert rounded.gradients()[0].dtype == ms.float16 and rounded.nbytes == 2
    assert float(rounded.gradients()[0].asnumpy()[0]) != 4 * (1024 + 0.25)


def test_float32_does_not_shorten_float64():
    double = Parameter(ms.Tensor([1.0], ms.float64), name="double")
    accumulator = GradientAccumulator([double], float32=True)
    accumulator.add([double], [ms.Tensor([1 + 1e-12], ms.float64)])
    assert accumulator.gradients()[0].asnumpy()[0] == 1 + 1e-12


def test_zeros_and_set_to_none():
    net = Net()
    weights = weights_of(net)
    accumulator = GradientAccumulator(weights)
    assert accumulator.nbytes == 0
    assert_same_bits(accumulator.gradients(), tuple(ops.zeros_like(weight) for weight in weights))
    whole(accumulator, flights(net, weights)[0])
    assert accumulator.nbytes == sum(weight.nbytes for weight in weights)
    accumulator.clear()
    assert accumulator.nbytes and not any(grad.asnumpy().any() for grad in accumulator.gradients())
    accumulator.clear(set_to_none=True)
    assert accumulator.nbytes == 0


@pytest.mark.parametrize("set_to_none", [False, True])
def test_steps_of_an_optimizer(set_to_none):
    """Weights after two steps, against steps with the gradients of value_and_grad."""
    ours, plain = Net(), Net()
    optimizers = [nn.Momentum(net.trainable_params()[::-1], learning_rate=0.01, momentum=0.9) for net in (ours, plain)]
    accumulator = GradientAccumulator(weights_of(ours))
    for _ in range(2):
        for grad_fn in flights(ours, weights_of(ours)):
            whole(accumulator, grad_fn)
        accumulator.step(optimizers[0], set_to_none=set_to_none)
        optimizers[1](whole_batch(plain, list(optimizers[1].parameters)))
    for one, two in zip(weights_of(ours), weights_of(plain)):
        np.testing.assert_allclose(one.asnumpy(), two.asnumpy(), rtol=1e-5, atol=1e-6)
    assert not np.allclose(ours.first.asnumpy(), Net().first.asnumpy())
    assert not any(grad.asnumpy().any() for grad in accumulator.gradients())


def test_one_weight_given_twice_counts_once():
    one = Parameter(tensor(3), name="one")
    assert GradientAccumulator([one, one]).weights == (one,)


def test_a_micro_batch_without_weights_is_let_go_of():
    _, grad_fn = forward_and_gradfn(ops.tanh, tensor(2, 2))
    grad_fn.compute_input_grad()
    accumulator = GradientAccumulator([])
    if grad_fn.state == "dx computed":
        accumulator.accumulate(grad_fn)
    assert grad_fn.state == "released" and accumulator.gradients() == ()


# --- errors -----------------------------------------------------------------------------------------------------------

def test_unknown_weights_before_anything_is_computed():
    net = Net()
    grad_fn = flights(net, weights_of(net))[0]
    accumulator = GradientAccumulator([net.first])
    with pytest.raises(ArgumentValueError, match="'(unread|second|frozen|shift)' is none of the weights"):
        accumulator.accumulate(grad_fn)
    assert grad_fn.state == "dx computed" and not any(group.done for group in grad_fn.weight_groups)
    with pytest.raises(ArgumentValueError, match="'second' is none of the weights"):
        accumulator.gradients_of([net.second])
    with pytest.raises(ArgumentValueError, match="none of the weights"):
        accumulator.step(nn.SGD([net.second], learning_rate=0.1))


def test_calls_in_the_wrong_order():
    net = Net()
    weights = weights_of(net)
    accumulator = GradientAccumulator(weights)
    _, grad_fn = forward_and_gradfn(net, MICRO_BATCHES[0], weights=weights)
    for source in (grad_fn, grad_fn.weight_groups[0]):
        with pytest.raises(StateError, match="needs compute_input_grad first"):
            accumulator.accumulate(source)
    grad_fn.compute_input_grad()
    group = grad_fn.weight_groups[0]
    accumulator.accumulate(group)
    with pytest.raises(StateError, match="already computed"):
        accumulator.accumulate(group)
    accumulator.accumulate(grad_fn)
    with pytest.raises(StateError, match="released"):
        accumulator.accumulate(grad_fn)
    assert_grads_close(accumulator.gradients(), reference(net, [MICRO_BATCHES[0]], weights)[1])  # each dw once


def test_an_addition_that_raises_halfway(monkeypatch):
    one, two = Parameter(tensor(3), name="one"), Parameter(tensor(3), name="two")
    accumulator = GradientAccumulator([one, two])
    accumulator.add([one, two], [tensor(3), tensor(3)])

    def fails(*_args):
        raise TypeError("no kernel")

    monkeypatch.setattr("mindspore_zb.accumulation.add_in_place", fails)
    with pytest.raises(TypeError, match="no kernel"):
        accumulator.add([one, two], [tensor(3), tensor(3)])
    with pytest.raises(StateError, match="halfway"):
        accumulator.gradients()


def test_a_dw_that_raises_halfway(monkeypatch):
    net = Net()
    weights = weights_of(net)
    accumulator = GradientAccumulator(weights)
    grad_fn = flights(net, weights)[0]
    accumulator.accumulate(grad_fn.weight_groups[0])

    def fails(*_args):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(grad_fn._recording, "weight_grads", fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        accumulator.accumulate(grad_fn)
    for call in (accumulator.gradients, lambda: accumulator.step(nn.SGD(weights[:1], learning_rate=0.1))):
        with pytest.raises(StateError, match="halfway"):
            call()
    accumulator.clear()
    assert not any(grad.asnumpy().any() for grad in accumulator.gradients())


@pytest.mark.parametrize("call, error, message", [
    (lambda net, sums: sums.accumulate(3), ArgumentTypeError, "not a int"),
    (lambda net, sums: sums.accumulate(tensor(3)), ArgumentTypeError, "add takes gradients"),
    (lambda net, sums: sums.add([net.first], []), ArgumentValueError, "1 weights, but 0 gradients"),
    (lambda net, sums: sums.add([net.first], [tensor(3)]), ArgumentValueError, r"'first' has shape \(3,\)"),
    (lambda net, sums: sums.add([net.first], [3.0]), ArgumentTypeError, "must be a tensor"),
    (lambda net, sums: GradientAccumulator(net), ArgumentTypeError, "not a Net"),
    (lambda net, sums: GradientAccumulator([tensor(3)]), ArgumentTypeError, r"weights\[0\] must be a Parameter")])
def test_refused(call, error, message):
    net = Net()
    accumulator = GradientAccumulator(weights_of(net))
    with pytest.raises(error, match=message):
        call(net, accumulator)
    assert not any(grad.asnumpy().any() for grad in accumulator.gradients())


def test_the_public_name():
    assert mindspore_zb.GradientAccumulator is GradientAccumulator and "GradientAccumulator" in mindspore_zb.__all__


def test_a_gradient_of_another_dtype_is_refused_before_anything_is_added():
    weight = Parameter(tensor(3), name="weight")
    accumulator = GradientAccumulator([weight])
    for _ in range(2):
        with pytest.raises(ArgumentTypeError, match="the gradient of 'weight' has dtype Float64, but the weight Float32"):
            accumulator.add([weight], [tensor(3, dtype=np.float64)])
        accumulator.add([weight], [tensor(3)])
    assert_grads_close(accumulator.gradients()[0], tensor(3) * 2)


def test_threads_add_whole_gradients():
    weight = Parameter(tensor(3), name="weight")
    accumulator = GradientAccumulator([weight])
    one = ops.ones(3)

    def work():
        for _ in range(50):
            accumulator.add([weight], [one])
            accumulator.gradients()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert accumulator.gradients()[0].asnumpy().tolist() == [200.0] * 3


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16, ms.float32, ms.float64])
def test_every_dtype_is_really_summed(dtype):
    """``assign_add`` of some dtypes does nothing, or raises."""
    w = Parameter(ops.ones((3,)).astype(dtype), name="w")
    accumulator = GradientAccumulator([w])
    for value in (1, 2, 4):
        accumulator.add([w], [(ops.ones((3,)) * value).astype(dtype)])
    found = accumulator.gradients()[0]
    assert found.dtype == dtype and found.astype(ms.float32).asnumpy().tolist() == [7, 7, 7]
