"""The split backward on whole nets, on the device of the machine: equal to the unsplit one, in any order of use."""

import numpy as np
import pytest

from mindspore_zb import forward_and_gradfn
from tests.networks.compare import assert_same, unsplit_grads
from tests.networks.zoo import NAMES, build

NPU_TOLERANCE = 5e-3
"""On an NPU matrix products may be computed with fewer bits, and in another order each time."""

pytestmark = [pytest.mark.platform_ascend910b, pytest.mark.cpu_linux, pytest.mark.onecard]


@pytest.fixture(scope="module", autouse=True)
def tolerance():
    """Run on the NPU where there is one; the tolerance of comparisons there."""
    from st.conftest import has_ascend_npu

    if not has_ascend_npu():
        return None
    import mindspore as ms

    ms.set_device("Ascend")
    return NPU_TOLERANCE


def record(case, batch):
    """``(grad_fn, sens)`` of one micro-batch."""
    result, grad_fn = forward_and_gradfn(case.fn, *case.make_inputs(batch), weights=case.weights, has_aux=case.has_aux,
                                         grad_position=case.grad_position, **case.kwargs)
    return grad_fn, case.make_sens(result[0] if case.has_aux else result, batch)


def unsplit(case, batch, sens):
    """MindSpore's own gradients."""
    return unsplit_grads(case.fn, case.make_inputs(batch), case.weights, sens, kwargs=case.kwargs,
                         has_aux=case.has_aux, grad_position=case.grad_position)


def with_dx():
    """The nets that have a dx."""
    return [name for name in NAMES if build(name).grad_position is not None]


@pytest.mark.level0
@pytest.mark.parametrize("name", with_dx())
def test_split_equals_unsplit(name, tolerance):
    case = build(name)
    grad_fn, sens = record(case, 0)
    dx, dw = grad_fn.compute_input_grad(sens), grad_fn.compute_weight_grad()
    expected = unsplit(build(name), 0, sens)
    assert_same(dx, expected.dx, "dx", tolerance or case.tolerance)
    assert_same(dw, expected.dw, "dw", tolerance or case.tolerance)


@pytest.mark.level1
@pytest.mark.parametrize("name", with_dx())
def test_micro_batches_in_flight(name, tolerance):
    """Four forwards, then dx first in first out, then dw last in first out and group by group."""
    case, batches = build(name), range(4)
    flights = [record(case, batch) for batch in batches]
    dx = [grad_fn.compute_input_grad(sens) for grad_fn, sens in flights]
    dw = [None] * len(flights)
    for batch in reversed(batches):
        grads = [None] * len(case.weights)
        for group in reversed(flights[batch][0].weight_groups):
            for place, grad in zip(group.positions, group.compute()):
                grads[place] = grad
        dw[batch] = tuple(grads)
    other = build(name)
    for batch in batches:
        expected = unsplit(other, batch, flights[batch][1])
        assert_same(dx[batch], expected.dx, f"dx of micro-batch {batch}", tolerance or case.tolerance)
        assert_same(dw[batch], expected.dw, f"dw of micro-batch {batch}", tolerance or case.tolerance)


@pytest.mark.level1
@pytest.mark.slow
@pytest.mark.parametrize("split", [True, False])
def test_two_stages_train(split, tolerance):
    """dx of the second stage is sens of the first; with dw at the end of each step, or unsplit, the loss falls alike."""
    losses = train_two_stages(split=split)
    assert losses[-1] < 0.5 * losses[0]
    np.testing.assert_allclose(losses, train_two_stages(split=True), rtol=tolerance or 1e-6)


def train_two_stages(split, steps=40, batches=2, rate=0.4):
    """The losses of a regression over two stages, trained by gradient descent."""
    import mindspore as ms
    from mindspore import nn, ops

    ms.set_seed(0)
    rng = np.random.default_rng(0)

    def normal(*shape):
        return ms.Tensor(rng.standard_normal(shape).astype(np.float32))

    first = nn.SequentialCell(nn.Dense(8, 32), nn.Tanh())
    second = nn.Dense(32, 1)
    for parameter in (*first.trainable_params(), *second.trainable_params()):
        parameter.set_data(normal(*parameter.shape) * 0.2)
    data = [(normal(16, 8), normal(16, 1)) for _ in range(batches)]

    def loss_stage(hidden, target):
        return ops.mean(ops.square(second(hidden) - target))

    def step():
        flights, losses = [], []
        for x, target in data:
            hidden, back_first = forward_and_gradfn(first, x, weights=first.trainable_params())
            loss, back_second = forward_and_gradfn(loss_stage, hidden, target, weights=second.trainable_params())
            losses.append(float(loss.asnumpy()))
            flights.append((back_first, back_second))
        grads = [finish(*flight) for flight in flights]
        for parameters, place in ((first.trainable_params(), 0), (second.trainable_params(), 1)):
            for number, parameter in enumerate(parameters):
                total = sum((grad[place][number] for grad in grads[1:]), grads[0][place][number])
                parameter.set_data(parameter - rate / batches * total)
        return sum(losses) / batches

    def finish(back_first, back_second):
        if not split:
            dx, dw_second = back_second()
            return back_first(dx)[1], dw_second
        back_first.compute_input_grad(back_second.compute_input_grad())
        return back_first.compute_weight_grad(), back_second.compute_weight_grad()

    return [step() for _ in range(steps)]
