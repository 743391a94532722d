"""The guard catches every way to change what a backward reads, names who saved it, and is silent else."""

import gc

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from mindspore_zb import forward_and_gradfn
from mindspore_zb.engines.pynative.native import leaf_id
from mindspore_zb.engines.pynative.observe import OPAQUE_CALLS
from mindspore_zb.errors import ArgumentTypeError, ChangedTensorError, StateError, UnsupportedError, ZeroBubbleError
from mindspore_zb.memory import guard

from tests.helpers import as_numpy, assert_same_bits, reference, tensor, weight
from tests.networks.compare import leaves_of
from tests.networks.zoo import NAMES, build

NOT_REPRODUCIBLE = {"prelu": 1e-6}
"""Networks whose gradients MindSpore itself does not give twice alike, to the last bit."""
SILENT = [name for name in NAMES if not any(word in name for word in ("lstm", "gru", "rnn"))][:54]


class Stage(nn.Cell):
    """A residual block of two linear layers."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Dense(4, 6), nn.Dense(6, 4)

    def construct(self, x):
        return x + self.down(ops.silu(self.up(x)))


CHANGES = {
    "setitem": lambda value: value.__setitem__(0, 5.0),
    "assign": lambda value: ops.assign(value, ops.full_like(value, 2.0)),
    "set_data": lambda value: value.set_data(ops.full_like(value, 3.0)),
    "assign_value": lambda value: value.assign_value(ops.full_like(value, 3.0)),
    "assign_add": lambda value: ops.assign_add(value, ops.ones_like(value)),
    "optimizer": lambda value: nn.SGD([value], learning_rate=0.1)((ops.ones_like(value),)),
    "copy_": lambda value: value.copy_(ops.full_like(value, 7.0)),
}
IN_PLACE = [name for name in CHANGES if name not in ("set_data", "assign_value", "optimizer")]


@pytest.mark.parametrize("exact", [True, False], ids=["copies", "checksums"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_weight(name, exact):
    net, x = Stage(), tensor(3, 4)
    with guard(exact):
        out, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        CHANGES[name](net.up.weight)
        with pytest.raises(ChangedTensorError, match=r"the weight up\.weight, saved for the backward of Stage\.up "
                                                     r"\(Dense\), MatMul at test_guard\.py:\d+, was changed"):
            grad_fn.compute_input_grad(ops.ones_like(out))
    assert grad_fn.state == "released"


@pytest.mark.parametrize("exact", [True, False], ids=["copies", "checksums"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_changed_input_after_the_block(name, exact):
    """It is dw that reads the input; the guard's block is over by then."""
    net, x = Stage(), tensor(3, 4)
    with guard(exact):
        _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
    grad_fn.compute_input_grad()
    CHANGES[name](x)
    with pytest.raises(ChangedTensorError, match=r"a tensor of shape \(3, 4\) and dtype Float32, saved for the "
                                                 r"backward of Stage\.up \(Dense\), MatMul"):
        grad_fn.compute_weight_grad()


def test_what_is_caught_is_wrong_without_a_guard():
    """The very changes above give wrong gradients in silence: else the guard would cry wolf."""
    for name in CHANGES:
        net, x = Stage(), tensor(3, 4)
        right = reference(net, (x,), net.trainable_params())[0]
        _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        CHANGES[name](net.up.weight)
        if name == "copy_":  # the only one that MindSpore notices
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                grad_fn.compute_input_grad()
        else:
            assert np.abs(as_numpy(grad_fn.compute_input_grad()) - as_numpy(right)).max() > 1e-3


@pytest.mark.parametrize("name", ["assign", "assign_value", "setitem", "optimizer", "assign_add"])
def test_mindspores_own_value_and_grad(name):
    net, x = Stage(), tensor(3, 4)

    def loss(value):
        result = net(value).sum()
        CHANGES[name](net.down.weight)
        return result

    with guard(), pytest.raises(ChangedTensorError, match=r"the weight down\.weight, .* Stage\.down \(Dense\), MatMul"):
        ms.value_and_grad(loss, 0, net.trainable_params())(x)


def test_an_input_exchanged_as_a_whole_is_no_change():
    """The forward's alias keeps the data, so gradients are right: silence is right."""
    net, x = Stage(), tensor(3, 4)
    expected = reference(net, (x,), net.trainable_params())
    with guard() as watch:
        _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        x.assign_value(ops.full_like(x, 3.0))
        found = grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()
    assert_same_bits(found, expected)
    assert watch.checked >= 4


def test_the_same_values_written_again_are_no_change():
    net, x = Stage(), tensor(3, 4)
    with guard():
        _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        for parameter in net.trainable_params():
            parameter.set_data(parameter.copy())
        x[0] = x[0].copy()
        grad_fn()


def test_an_optimizer_step_while_another_micro_batch_is_in_flight():
    net = Stage()
    weights = net.trainable_params()
    optimizer = nn.SGD(weights, learning_rate=0.1)
    with guard():
        flights = [forward_and_gradfn(net, tensor(3, 4, seed=seed), weights=weights)[1] for seed in range(2)]
        flights[0].compute_input_grad()
        optimizer(flights[0].compute_weight_grad())
        with pytest.raises(ChangedTensorError, match=r"the weight (up|down)\.weight"):
            flights[1].compute_input_grad()


def test_a_group_may_be_stepped_before_the_next_one_is_computed():
    """What dw of the remaining groups reads is not touched by it."""
    net, x = Stage(), tensor(3, 4)
    weights = net.trainable_params()
    expected = reference(net, (x,), weights)[1]
    found = {}
    with guard() as watch:
        _, grad_fn = forward_and_gradfn(net, x, weights=weights)
        grad_fn.compute_input_grad()
        for group in grad_fn.weight_groups:
            found.update(zip(group.positions, group.compute()))
            for parameter in group.weights:
                ops.assign_add(parameter, ops.ones_like(parameter))
    assert_same_bits(tuple(found[place] for place in range(len(weights))), expected)
    assert watch.checked > 4


def in_place_and_wrong(x):
    doubled = x * 2
    result = doubled * doubled
    ops.assign_add(doubled, ops.ones_like(doubled))
    return result


def in_place_and_right(x):
    buffer = ops.zeros((2, 3))
    buffer[0], buffer[1] = x[0], x[1] * 2
    doubled = x * 2
    doubled[0] = 0.0
    exponential = ops.exp(x)
    exponential.copy_(x)
    return buffer * buffer + doubled * doubled + exponential.view(3, 2).view(2, 3) * exponential


def test_in_place_operations_inside_fn():
    x = tensor(2, 3)
    expected = reference(in_place_and_right, (x,))[0]
    with guard() as watch:
        _, grad_fn = forward_and_gradfn(in_place_and_right, x)
        assert_same_bits(grad_fn(), expected)
        assert watch.checked > 3
        _, grad_fn = forward_and_gradfn(in_place_and_wrong, x)
        with pytest.raises(ChangedTensorError,
                           match=r"function in_place_and_wrong, `.*doubled \* doubled` at test_guard"):
            grad_fn()


def test_statistics_of_a_batch_norm_and_dropout_in_training():
    net = nn.SequentialCell(nn.Dense(4, 6), nn.BatchNorm1d(6), nn.Dropout(p=0.5), nn.Dense(6, 3)).set_train()
    before = net[1].moving_mean.asnumpy().copy()
    with guard() as watch:
        flights = [forward_and_gradfn(net, tensor(5, 4, seed=seed), weights=net.trainable_params())[1]
                   for seed in range(3)]
        for grad_fn in flights:
            grad_fn.compute_input_grad()
            grad_fn.compute_weight_grad()
    assert np.abs(net[1].moving_mean.asnumpy() - before).max() > 0
    assert watch.checked > 20


def test_statistics_that_a_backward_does_read():
    net = nn.SequentialCell(nn.Dense(4, 6), nn.BatchNorm1d(6)).set_train(False)
    with guard():
        _, grad_fn = forward_and_gradfn(net, tensor(5, 4), weights=net.trainable_params())
        ops.assign(net[1].moving_variance, ops.full_like(net[1].moving_variance, 9.0))
        with pytest.raises(ChangedTensorError, match=r"moving_variance.* SequentialCell\.1 \(BatchNorm1d\), BatchNorm"):
            grad_fn()


def run_case(name):
    """Outputs, dx, dw group by group and the state of a network of the zoo, as arrays."""
    ms.set_seed(1)
    case = build(name)
    out, grad_fn = forward_and_gradfn(case.fn, *case.inputs, weights=case.weights, has_aux=case.has_aux,
                                      grad_position=case.grad_position, **case.kwargs)
    sens = case.make_sens(out[0] if case.has_aux else out, 0)
    if case.grad_position is None:
        found = (out, grad_fn(sens))
    else:
        found = (out, grad_fn.compute_input_grad(sens), [group.compute() for group in grad_fn.weight_groups])
    return [as_numpy(leaf) for leaf in leaves_of((found, case.state)) if isinstance(leaf, ms.Tensor)]


@pytest.mark.parametrize("name", SILENT)
def test_silent_and_without_effect_on_clean_networks(name):
    without = run_case(name)
    with guard() as watch:
        found = run_case(name)
    assert watch.checked
    for one, two in zip(found, without):
        if name in NOT_REPRODUCIBLE:
            assert np.abs(one - two).max() <= NOT_REPRODUCIBLE[name]
        else:
            assert one.tobytes() == two.tobytes()


def test_at_least_fifty_networks():
    assert len(SILENT) >= 50


def fails(x):
    raise KeyError(f"no {x.shape}")


@pytest.mark.parametrize("raises", [False, True])
def test_nothing_is_left_behind(raises):
    places = [(owner, name) for owner, name, _ in OPAQUE_CALLS] + [(ms.saved_tensors_hooks, "__enter__"),
                                                                   (ms.saved_tensors_hooks, "__exit__")]
    before = [vars(owner)[name] for owner, name in places]
    net, x = Stage(), tensor(3, 4)
    net(x)  # MindSpore itself writes on Cells at their first call
    attributes = {cell: dict(vars(cell)) for _, cell in net.cells_and_names()}
    if raises:
        with pytest.raises(KeyError), guard():
            forward_and_gradfn(fails, x)
    else:
        with guard():
            forward_and_gradfn(net, x, weights=net.trainable_params())[1]()
    assert [vars(owner)[name] for owner, name in places] == before
    seen = []
    with ms.saved_tensors_hooks(lambda value: seen.append(value.shape) or value.data, lambda value: value):
        grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())[1]
    assert len(seen) == 5  # the guard's hooks are gone, and others work
    x[0] = 9.0
    grad_fn()
    if not raises:
        assert attributes == {cell: {key: vars(cell)[key] for key in found} for cell, found in attributes.items()}
    assert leaf_id(x) is None


def test_copies_are_freed_with_what_they_are_of(without_collector):
    net, x = Stage(), tensor(3, 4)
    with guard() as watch:
        _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        assert watch.nbytes == 4 * (3 * 4 + 6 * 4 + 3 * 6 + 3 * 6 + 4 * 6)  # x, two weights, silu's input and output
        grad_fn.compute_input_grad()
        assert watch.nbytes == 4 * (3 * 4 + 6 * 4 + 3 * 6 + 4 * 6)
        grad_fn.compute_weight_grad()
        assert watch.nbytes == 0
        forward_and_gradfn(net, x, weights=net.trainable_params())
        assert watch.nbytes == 0


def test_what_gets_a_history_later_is_let_go(without_collector):
    """A constant that becomes part of the graph that saved it, held by what stands for it, would be a cycle."""
    x = tensor(2, 3)

    def fn(value):
        constant = ops.ones((2, 3))
        result = value * constant
        constant[0] = result[0]
        return result + constant

    with guard() as watch:
        _, grad_fn = forward_and_gradfn(fn, x)
        del grad_fn
    assert watch.saved and watch.nbytes == 0


@pytest.fixture(name="without_collector")
def fixture_without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_what_cannot_be_watched_together_is_refused():
    hooks = ms.saved_tensors_hooks(lambda value: value.data, lambda value: value)
    with hooks, pytest.raises(StateError, match="active already"):
        with guard():
            pass
    with guard(), pytest.raises(StateError, match="active already"):
        with guard():
            pass
    with guard(), pytest.raises(UnsupportedError, match="would hide from it"):
        with hooks:
            pass
    with pytest.raises(ArgumentTypeError, match="exact must be True or False, not 1"):
        with guard(1):
            pass
    assert issubclass(ChangedTensorError, ZeroBubbleError) and issubclass(ChangedTensorError, RuntimeError)


def test_many_dtypes_and_odd_tensors():
    """nan is equal to itself; bfloat16, scalars, views and empty tensors are compared too."""
    for dtype in (ms.float16, ms.bfloat16, ms.float32, ms.float64):
        x = ms.Tensor(np.array([[1, 2, 3], [4, 5, np.nan]], np.float32)).astype(dtype)
        with guard() as watch:
            _, grad_fn = forward_and_gradfn(lambda value: value.T * value.T, x)
            grad_fn()
            assert watch.checked
            _, grad_fn = forward_and_gradfn(lambda value: value * value, x)
            x.copy_(x + 9)
            with pytest.raises(ChangedTensorError, match=f"dtype {x.dtype}.*values differ"):
                grad_fn()
    empty, scalar = ops.zeros((0, 3)), weight(1, name="scalar")
    with guard():
        forward_and_gradfn(lambda value: value * value * scalar, empty, weights=scalar)[1]()
