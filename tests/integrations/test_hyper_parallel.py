"""Each convention of hyper_parallel that its pipeline stages rely on."""

import gc
import weakref

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, nn, ops

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, StateError
from mindspore_zb.integrations.hyper_parallel import forward_and_gradfn
from tests.helpers import assert_grads_close, assert_same_bits, reference, tensor


class Net(nn.Cell):
    """Two layers and a weight that nothing reads."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(4, 5), nn.Dense(5, 3)
        self.unread = Parameter(tensor(2), name="unread")

    def construct(self, x):
        return self.second(ops.tanh(self.first(x)))


def stored(*tensors):
    return tuple(tensor._grad for tensor in tensors)


def doubled(grads):
    return tuple(grad * 2 for grad in grads)


def whole(grad_fn, sens):
    grad_fn(sens)


def halves(grad_fn, sens):
    grad_fn.compute_input_grad(sens)
    grad_fn.compute_weight_grad()


def accumulate(grad_fn, sens):
    grad_fn.accumulate_grad(sens=sens)


def dx_then_accumulate(grad_fn, sens):
    grad_fn.compute_input_grad(sens)
    assert grad_fn.accumulate_grad() == ()


@pytest.mark.parametrize("run", [whole, halves, accumulate, dx_then_accumulate])
def test_gradients_are_summed_into_the_tensors(run):
    net, x, sens = Net(), tensor(2, 4), tensor(2, 3, seed=1)
    weights = net.trainable_params()
    dx, dw = reference(net, [x], weights, sens=sens)
    assert stored(x, *weights) == (None,) * (1 + len(weights))
    for expected in ((dx, *dw), doubled((dx, *dw))):
        _, grad_fn = forward_and_gradfn(net, x, weights=tuple(weights), grad_position=0)
        run(grad_fn, sens)
        assert_grads_close(stored(x, *weights), expected)


def test_sums_share_no_memory_with_what_is_handed_out():
    net, x, sens = Net(), tensor(2, 4), tensor(2, 3, seed=1)
    weights = net.trainable_params()
    _, grad_fn = forward_and_gradfn(net, x, weights=weights)
    dx = grad_fn.compute_input_grad(sens)
    dw = grad_fn.compute_weight_grad()
    handed_out = {grad.data_ptr() for grad in (*dx, *dw, sens)}
    assert not handed_out & {grad.data_ptr() for grad in stored(x, *weights)}
    kept = [grad.asnumpy().copy() for grad in (*dx, *dw)]
    forward_and_gradfn(net, x, weights=weights)[1].accumulate_grad(sens)
    for grad, values in zip((*dx, *dw), kept):
        np.testing.assert_array_equal(grad.asnumpy(), values)


def test_one_tensor_given_twice_gets_both_gradients():
    x, y = tensor(2, 2), tensor(2, 2, seed=1)
    _, grad_fn = forward_and_gradfn(lambda a, b, c: a * 2 + b * 3 + c, x, x, y)
    ones = ops.ones((2, 2), ms.float32)
    assert_same_bits(grad_fn.compute_input_grad(), (ones * 2, ones * 3, ones))
    assert_same_bits(stored(x, y), (ones * 5, ones))


def test_all_inputs_by_default():
    def fn(x, pair, scale=None):
        return x * pair[0] + x * pair[1] + scale * x

    x, one, two, scale = (tensor(3, seed=seed) for seed in range(4))
    expected = ((one + two + scale), (x, x)), {"scale": x}
    _, grad_fn = forward_and_gradfn(fn, x, (one, two), scale=scale)
    assert_grads_close(grad_fn.compute_input_grad(), expected)
    assert_grads_close(stored(x, one, two, scale), (one + two + scale, x, x, x))
    _, grad_fn = forward_and_gradfn(fn, x, (one, two), scale=scale)
    assert_grads_close(grad_fn(), expected)
    _, grad_fn = forward_and_gradfn(lambda x, pair: fn(x, pair, scale=1.0), x, (one, two))
    assert_grads_close(grad_fn.compute_input_grad(), ((one + two + 1.0), (x, x)))


def test_keyword_gradients_of_a_call_with_weights_are_an_item_of_their_own():
    w = Parameter(tensor(3, seed=5), name="w")
    x, y = tensor(3), tensor(3, seed=1)
    _, grad_fn = forward_and_gradfn(lambda x, y: x * y * w, x, y=y, weights=(w,))
    assert_grads_close(grad_fn(), ((y * w,), {"y": x * w}, (x * y,)))
    _, grad_fn = forward_and_gradfn(lambda x: x * w, x, weights=(w,))
    assert_grads_close(grad_fn(), ((w * 1.0,), (x,)))
    _, grad_fn = forward_and_gradfn(lambda x, flag: x * w, x, flag={}, weights=(w,))
    assert_grads_close(grad_fn(), ((w * 1.0,), (x,)))


@pytest.mark.parametrize("position, bare", [(0, True), ((0,), True), ((1, 0), False)])
def test_shapes_of_dx(position, bare):
    x, y = tensor(3), tensor(3, seed=1)
    w = Parameter(tensor(3, seed=5), name="w")
    grads = {0: y * w, 1: x * w}
    places = (position,) if isinstance(position, int) else position
    expected = tuple(grads[place] for place in places)
    _, grad_fn = forward_and_gradfn(lambda x, y: x * y * w, x, y, weights=[w], grad_position=position)
    assert_grads_close(grad_fn.compute_input_grad(), expected[0] if bare else expected)
    _, grad_fn = forward_and_gradfn(lambda x, y: x * y * w, x, y, weights=[w], grad_position=position)
    assert_grads_close(grad_fn(), (expected, (x * y,)))
    _, grad_fn = forward_and_gradfn(lambda x, y: x * y * w, x, y, grad_position=position)
    assert_grads_close(grad_fn(), expected[0] if bare else expected)
    _, grad_fn = forward_and_gradfn(lambda x, y: x * y * w, x, y, weights=[w], grad_position=position)
    assert_grads_close(grad_fn.accumulate_grad(), expected[0] if bare else expected)


def test_dw_is_a_tuple_also_for_one_parameter():
    w, x = Parameter(tensor(3, seed=5), name="w"), tensor(3)
    for run in (lambda grad_fn: (grad_fn.compute_input_grad(), grad_fn.compute_weight_grad())[1],
                lambda grad_fn: grad_fn()[1]):
        _, grad_fn = forward_and_gradfn(lambda x: x * w, x, weights=w)
        assert_grads_close(run(grad_fn), (x,))
    _, grad_fn = forward_and_gradfn(lambda x: x * w, x, weights=w, grad_position=None)
    assert_grads_close(grad_fn(), (x,))
    _, grad_fn = forward_and_gradfn(lambda x: x * w, x)
    grad_fn.compute_input_grad()
    assert grad_fn.compute_weight_grad() == () and grad_fn.grad_function.state == "released"


@pytest.mark.parametrize("position", [(), None])
def test_a_first_stage(position):
    """No input is asked for; dx is nothing, and accumulate_grad runs it all."""
    net, ids = nn.SequentialCell(nn.Embedding(7, 4), nn.Dense(4, 3)), ms.Tensor([[1, 2], [3, 1]])
    weights = tuple(net.trainable_params())
    sens = tensor(2, 2, 3)
    _, dw = reference(net, [ids], weights, sens=sens, grad_position=None)
    _, grad_fn = forward_and_gradfn(net, ids, weights=weights, grad_position=position)
    if position is None:
        with pytest.raises(ArgumentValueError, match="grad_position is None"):
            grad_fn.compute_input_grad([sens])
    else:
        assert grad_fn.compute_input_grad([sens]) == ()
    assert not grad_fn._saved_intermediates
    with pytest.raises(StateError):
        grad_fn.compute_weight_grad()
    assert grad_fn.accumulate_grad(sens=[sens]) == ()
    assert_grads_close(stored(*weights), dw)
    assert stored(ids) == (None,)


def test_positions_without_tensors_do_not_count():
    w, x = Parameter(tensor(3, seed=5), name="w"), tensor(3)
    _, grad_fn = forward_and_gradfn(lambda x, mode: x * w, x, "mode", weights=[w], grad_position=(0, 1))
    assert_grads_close(grad_fn.compute_input_grad(), w * 1.0)
    _, grad_fn = forward_and_gradfn(lambda x, mode: x * w, x, "mode", weights=[w], grad_position=1)
    assert grad_fn.compute_input_grad() == ()
    assert_grads_close(grad_fn(), (x,))


@pytest.mark.parametrize("nest", [lambda one, two: [one, two], lambda one, two: (one, (two,)),
                                  lambda one, two: {"first": one, "second": two}])
def test_sens_is_read_leaf_by_leaf(nest):
    x, one, two = tensor(3), tensor(3, seed=1), tensor(3, seed=2)
    _, grad_fn = forward_and_gradfn(lambda x: {"a": x * 2, "b": [x * 3, "text"]}, x, grad_position=0)
    assert_grads_close(grad_fn.compute_input_grad(nest(one, two)), one * 2 + two * 3)
    _, grad_fn = forward_and_gradfn(lambda x: (x * 2, x * 3), x, grad_position=0)
    with pytest.raises(ArgumentValueError, match="sens has 1 tensors, but the outputs are 2"):
        grad_fn.compute_input_grad([one])
    assert_grads_close(grad_fn([None, two]), two * 3)


def test_padded_sens_of_an_integer_output():
    x = tensor(3)
    _, grad_fn = forward_and_gradfn(lambda x: (x * 2, ops.argmax(x)), x, grad_position=0)
    assert_grads_close(grad_fn.compute_input_grad([tensor(3, seed=1), ms.Tensor(0)]), tensor(3, seed=1) * 2)


def test_auxiliary_outputs():
    x, sens = tensor(3), tensor(3, seed=1)
    for given in (sens, [sens], (sens, tensor(3, seed=2))):
        out, grad_fn = forward_and_gradfn(lambda x: (x * 2, x * 5), x, has_aux=True, grad_position=0)
        assert_grads_close(grad_fn.compute_input_grad(given), sens * 2)
    assert len(out) == 2


def test_a_stage_can_ask_whether_dx_has_run():
    net, x = Net(), tensor(2, 4)
    _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params(), grad_position=(0,))
    assert not grad_fn._saved_intermediates
    with pytest.raises(RuntimeError, match="compute_input_grad"):
        grad_fn.compute_weight_grad()
    grad_fn.compute_input_grad()
    assert grad_fn._saved_intermediates
    with pytest.raises(StateError, match="without one"):
        grad_fn.accumulate_grad(tensor(2, 3))
    grad_fn.compute_weight_grad(keep_graph=True)
    assert grad_fn._saved_intermediates
    grad_fn.compute_weight_grad()
    assert not grad_fn._saved_intermediates
    _, dw = reference(net, [x], net.trainable_params())
    assert_grads_close(stored(*net.trainable_params()), doubled(dw))  # at each call


def test_nothing_changes_when_it_raises():
    net, x = Net(), tensor(2, 4)
    weights = net.trainable_params()
    _, grad_fn = forward_and_gradfn(net, x, weights=weights)
    with pytest.raises(ArgumentValueError, match="shape"):
        grad_fn.accumulate_grad(tensor(1, 3))
    with pytest.raises(ArgumentTypeError):
        forward_and_gradfn(net, x, weights=[ops.ones((3,))])
    with pytest.raises(ArgumentValueError, match="nothing to differentiate"):
        forward_and_gradfn(net, x, grad_position=())
    assert stored(x, *weights) == (None,) * (1 + len(weights))
    grad_fn.release()
    with pytest.raises(StateError, match="released"):
        grad_fn.accumulate_grad()


def test_inputs_are_let_go_of():
    net, x = Net(), tensor(2, 4)
    gone = weakref.ref(x)
    _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
    grad_fn.compute_input_grad()
    del x
    gc.collect()
    assert gone() is None
    grad_fn.compute_weight_grad()


def test_micro_batches_of_a_stage():
    """As a stage runs them: forwards of all, dx of each, then dw of each, read from _grad."""
    net = Net()
    weights = tuple(net.trainable_params())
    batches, sens = [tensor(2, 4, seed=seed) for seed in range(3)], [tensor(2, 3, seed=9 + seed) for seed in range(3)]
    expected = [reference(net, [batch], weights, sens=given) for batch, given in zip(batches, sens)]
    grad_fns = [forward_and_gradfn(net, batch, weights=weights, grad_position=(0,))[1] for batch in batches]
    for grad_fn, given in zip(grad_fns, sens):
        grad_fn.compute_input_grad(sens=[given])
    assert_grads_close(stored(*batches), tuple(dx for dx, _ in expected))
    for grad_fn in grad_fns[::-1]:
        grad_fn.compute_weight_grad()
    total = tuple(sum(parts[1:], parts[0]) for parts in zip(*(dw for _, dw in expected)))
    assert_grads_close(stored(*weights), total)
