"""Every network of the zoo: the split backward equals the unsplit one, however it is asked for."""

import functools

import numpy as np
import pytest

from mindspore import ops

from mindspore_zb import forward_and_gradfn

from tests.networks.compare import assert_same, is_floating, leaves_of, relative_difference, unsplit_grads
from tests.networks.zoo import NAMES, build

BATCHES = 3
RATE = 0.05


def forward(case, batch=0, weights=None):
    """``(out, grad_fn, sens)`` of a micro-batch."""
    result, grad_fn = forward_and_gradfn(case.fn, *case.make_inputs(batch), has_aux=case.has_aux,
                                         weights=case.weights if weights is None else weights,
                                         grad_position=case.grad_position, **case.kwargs)
    return result, grad_fn, sens_of(case.name, batch)


@functools.lru_cache(maxsize=None)
def sens_of(name, batch):
    """Gradients that fit the output for a micro-batch."""
    case = build(name)
    result = case.fn(*case.make_inputs(batch), **case.kwargs)
    return case.make_sens(result[0] if case.has_aux else result, batch)


def unsplit(case, batch):
    """MindSpore's own gradients; like any forward it may change the state of the case."""
    return unsplit_grads(case.fn, case.make_inputs(batch), case.weights, sens_of(case.name, batch),
                         kwargs=case.kwargs, has_aux=case.has_aux, grad_position=case.grad_position)


@functools.lru_cache(maxsize=None)
def expected(name):
    """The first batches of a fresh case, one after the other, and its state afterwards."""
    case = build(name)
    return [unsplit(case, batch) for batch in range(BATCHES)], tuple(value.asnumpy() for value in case.state)


def split_names():
    """The networks that have a dx."""
    return [name for name in NAMES if name != "only_weights_asked_for"]


@pytest.mark.parametrize("name", NAMES)
def test_unsplit_call(name):
    case = build(name)
    out, grad_fn, sens = forward(case)
    right = expected(name)[0][0]
    assert_same(out, right.out, "out", case.tolerance)
    grads = grad_fn(sens)
    if case.grad_position is None:
        grads = (None, grads)
    assert_same(grads, (right.dx, right.dw), "gradients", case.tolerance)


@pytest.mark.parametrize("name", split_names())
def test_dx_then_dw(name):
    case = build(name)
    out, grad_fn, sens = forward(case)
    right = expected(name)[0][0]
    assert_same(out, right.out, "out", case.tolerance)
    assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx", case.tolerance)
    assert_same(grad_fn.compute_weight_grad(keep_graph=True), right.dw, "dw", case.tolerance)
    assert_same(grad_fn.compute_weight_grad(), right.dw, "dw again", case.tolerance)


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
@pytest.mark.parametrize("name", split_names())
def test_groups_alone(name, order):
    """Each group by itself; with the weights in another order as well."""
    case = build(name)
    rng = np.random.default_rng(len(name))
    places = rng.permutation(len(case.weights)) if order == "shuffled" else np.arange(len(case.weights))
    _, grad_fn, sens = forward(case, weights=[case.weights[place] for place in places])
    right = expected(name)[0][0]
    assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx", case.tolerance)
    groups = list(grad_fn.weight_groups)
    numbers = rng.permutation(len(groups)) if order == "shuffled" else range(len(groups))[::-1]
    grads = [None] * len(places)
    for number in numbers:
        for position, grad in zip(groups[number].positions, groups[number].compute()):
            assert grads[places[position]] is None, "a weight of two groups"
            grads[places[position]] = grad
    assert_same(tuple(grads), right.dw, "dw", case.tolerance)
    assert grad_fn.state == "released"


@pytest.mark.parametrize("name", split_names())
def test_micro_batches_in_flight(name):
    """Several forwards first, then dx in one order and dw in another; statistics as in an unsplit run."""
    case = build(name)
    right, state = expected(name)
    flight = [forward(case, batch) for batch in range(BATCHES)]
    for batch in (1, 2, 0):
        assert_same(flight[batch][1].compute_input_grad(flight[batch][2]), right[batch].dx, f"dx of {batch}",
                    case.tolerance)
    for batch in (2, 0, 1):
        assert_same(flight[batch][1].compute_weight_grad(), right[batch].dw, f"dw of {batch}", case.tolerance)
    for value, wanted in zip(case.state, state):
        np.testing.assert_allclose(value.asnumpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", split_names())
def test_training_steps(name):
    """Two steps on two micro-batches each end at the weights of unsplit training."""
    one, two = build(name), build(name)
    for step in range(2):
        _train_split(one, step)
        _train_unsplit(two, step)
    tolerance = None if one.tolerance is None else 2 * one.tolerance
    assert_same(tuple(weight.asnumpy().tolist() for weight in one.weights if not weight.requires_grad),
                tuple(weight.asnumpy().tolist() for weight in two.weights if not weight.requires_grad), "frozen")
    for first, second in zip(one.weights, two.weights):
        assert_same(first.value(), second.value(), first.name, tolerance)
    for first, second in zip(one.state, two.state):
        assert_same(first.value(), second.value(), first.name, tolerance)


def _train_split(case, step):
    flight = [forward(case, 2 * step + batch) for batch in range(2)]
    for _, grad_fn, sens in flight:
        grad_fn.compute_input_grad(sens)
    _update(case, [grad_fn.compute_weight_grad() for _, grad_fn, _ in flight])


def _train_unsplit(case, step):
    _update(case, [unsplit(case, 2 * step + batch).dw for batch in range(2)])


def _update(case, grads):
    """Plain gradient descent."""
    for weight, *parts in zip(case.weights, *grads):
        if weight.requires_grad:
            ops.assign_sub(weight, (RATE * sum(parts)).astype(weight.dtype))


@pytest.mark.parametrize("name", [name for name in split_names() if not build(name).shares])
def test_dx_is_bit_identical(name):
    """Where no value is used twice, dx has the bits of the unsplit run.

    A few CPU kernels round differently at other addresses, so one of some runs must agree, and all nearly.
    """
    differences = []
    for _ in range(4):
        case = build(name)
        _, grad_fn, sens = forward(case)
        grads = grad_fn(sens, keep_graph=True)
        whole = grads[0] if case.weights else grads
        halves = grad_fn.compute_input_grad(sens)
        grad_fn.release()
        differences.append(max([relative_difference(one, two) for one, two in zip(leaves_of(halves), leaves_of(whole))
                                if is_floating(two)], default=0.0))
        if not differences[-1]:
            return
    assert min(differences) == 0, differences


def test_batchnorm_statistics_change_once():
    """The moving mean moves by one step of its momentum per forward, and by none in dx and dw."""
    case = build("conv_batchnorm")
    mean = case.state[0]
    before = mean.asnumpy().copy()
    _, grad_fn, sens = forward(case)
    after = mean.asnumpy().copy()
    assert np.abs(after - before).max() > 0
    grad_fn.compute_input_grad(sens)
    grad_fn.compute_weight_grad()
    np.testing.assert_array_equal(mean.asnumpy(), after)
    other = build("conv_batchnorm")
    other.fn(*other.inputs)
    np.testing.assert_allclose(other.state[0].asnumpy(), after, rtol=1e-6)


def test_the_zoo_is_reproducible():
    """Two builds of a name have equal weights and inputs; the other tests rely on it."""
    for name in NAMES:
        one, two = build(name), build(name)
        assert_same(tuple(weight.value() for weight in one.weights), tuple(weight.value() for weight in two.weights),
                    name, tolerance=0)
        assert_same(one.make_inputs(1), two.make_inputs(1), name, tolerance=0)
