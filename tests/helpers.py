"""The oracle of these tests: MindSpore's own unsplit backward, and a strict comparison with it.

Nothing here uses the package under test but :func:`forward_and_gradfn` itself in the ``split`` functions.
"""

import random
from itertools import permutations

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, ops

from mindspore_zb import forward_and_gradfn
from mindspore_zb.engines.pynative import native

RELATIVE_ERROR = {"Float16": 2e-3, "BFloat16": 2e-2, "Float32": 1e-5, "Float64": 1e-13}
"""Largest error of a gradient, as a part of its largest entry; by dtype."""


def tensor(*shape, seed=0, dtype=np.float32):
    """A tensor of normally distributed values."""
    return Tensor(np.asarray(np.random.RandomState(seed).randn(*shape), dtype))


def weight(*shape, seed=100, name=None, dtype=np.float32, **kwargs):
    """A Parameter of normally distributed values."""
    return Parameter(tensor(*shape, seed=seed, dtype=dtype), name=name or f"weight{seed}", **kwargs)


# --- nested values ----------------------------------------------------------------------------------------------------

def leaves_of(value):
    """The leaves of nested tuples, lists and dicts, in order."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves_of(item)]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


def map_leaves(function, value):
    """The nested value with ``function`` applied to each leaf."""
    if isinstance(value, dict):
        return {key: map_leaves(function, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[map_leaves(function, item) for item in value])
    if isinstance(value, (tuple, list)):
        return type(value)([map_leaves(function, item) for item in value])
    return function(value)


def is_float_tensor(value):
    """Whether ``value`` is a tensor that can have a gradient."""
    return isinstance(value, Tensor) and str(value.dtype) in RELATIVE_ERROR


# --- the reference ----------------------------------------------------------------------------------------------------

def reference(fn, inputs, weights=None, sens=None, grad_position=0, kwargs=None, has_aux=False):
    """``(dx, dw)`` of the unsplit backward, by ``mindspore.value_and_grad``, in the shapes that the package promises.

    The gradient of ``sum((out * sens).sum())`` is the backward of ``out`` with ``sens``. Each input tensor is copied
    first, so that one tensor given twice counts as two. dx is None for ``grad_position=None``, dw is ``()`` without
    weights.
    """
    kwargs = kwargs or {}
    single = isinstance(weights, Parameter)
    parameters = [weights] if single else list(weights or ())
    places = _asked_places(grad_position, len(inputs))
    asked = [inputs[place] for place in places] + ([kwargs] if grad_position == -1 else [])
    floats = [leaf.copy() for leaf in leaves_of(asked) if is_float_tensor(leaf)]

    def loss(*flat):
        waiting = iter(flat)
        new = map_leaves(lambda leaf: next(waiting) if is_float_tensor(leaf) else leaf, asked)
        args = list(inputs)
        for place, value in zip(places, new):
            args[place] = value
        result = fn(*args, **(new[-1] if grad_position == -1 else kwargs))
        return _weighted_sum(result[0] if has_aux else result, sens)

    grads_of_inputs, grads_of_weights = _native_grads(loss, floats, parameters)
    dw = tuple(grads_of_weights)
    waiting = iter(grads_of_inputs)
    shaped = map_leaves(lambda leaf: next(waiting) if is_float_tensor(leaf) else None, asked)
    return _shape_dx(shaped, grad_position, kwargs), dw[0] if single else dw


def _asked_places(grad_position, count):
    if grad_position is None:
        return []
    if grad_position == -1:
        return list(range(count))
    return [grad_position] if isinstance(grad_position, int) else list(grad_position)


def _shape_dx(shaped, grad_position, kwargs):
    if grad_position is None:
        return None
    if grad_position == -1:
        has_tensors = any(isinstance(leaf, Tensor) for leaf in leaves_of(kwargs))
        return (tuple(shaped[:-1]), shaped[-1]) if has_tensors else tuple(shaped[:-1])
    return shaped[0] if isinstance(grad_position, int) else tuple(shaped)


def _weighted_sum(out, sens):
    """A scalar whose gradient is that of ``out`` with ``sens``; zero entries where ``sens`` is None."""
    outputs = leaves_of(out)
    entries = [None if is_float_tensor(leaf) else 0 for leaf in outputs] if sens is None else leaves_of(sens)
    total = Tensor(0.0, ms.float32)
    for leaf, entry in zip(outputs, entries):
        if not is_float_tensor(leaf) or (sens is not None and entry is None):
            continue
        weighted = leaf if sens is None else leaf * entry
        total = total + (weighted.astype(ms.float32) if leaf.dtype == ms.bfloat16 else weighted).sum()
    return total


def _native_grads(loss, floats, parameters):
    positions = tuple(range(len(floats))) if floats else None
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not floats and not trainable:
        return [], [ops.zeros_like(parameter) for parameter in parameters]
    grad = ms.value_and_grad(loss, positions, trainable or None)
    _, grads = grad(*floats)
    dx, dw = grads if positions is not None and trainable else (grads, ()) if positions is not None else ((), grads)
    dx = dx if isinstance(dx, (tuple, list)) else (dx,)
    dw = dw if isinstance(dw, (tuple, list)) else (dw,)
    found = {id(parameter): value for parameter, value in zip(trainable, dw)}
    return list(dx), [found[id(parameter)] if id(parameter) in found else ops.zeros_like(parameter)
                      for parameter in parameters]


# --- comparison -------------------------------------------------------------------------------------------------------

def assert_grads_close(got, expected, name="grad"):
    """Fail unless both nest alike and each gradient has the expected shape, dtype and values.

    Values may differ by :data:`RELATIVE_ERROR` of the largest expected entry; where zero is expected, zero it must be.
    """
    if expected is None or got is None:
        assert got is None and expected is None, f"{name}: {got} instead of {expected}"
    elif isinstance(expected, dict):
        assert type(got) is dict and list(got) == list(expected), f"{name}: {got} instead of {expected}"
        for key in expected:
            assert_grads_close(got[key], expected[key], f"{name}[{key!r}]")
    elif isinstance(expected, (tuple, list)):
        assert type(got) is type(expected) and len(got) == len(expected), f"{name}: {got} instead of {expected}"
        for place, (one, two) in enumerate(zip(got, expected)):
            assert_grads_close(one, two, f"{name}[{place}]")
    else:
        _assert_tensor_close(got, expected, name)


def _assert_tensor_close(got, expected, name):
    assert isinstance(got, Tensor), f"{name}: a {type(got).__name__} instead of a tensor"
    assert got.shape == expected.shape, f"{name}: shape {got.shape} instead of {expected.shape}"
    assert got.dtype == expected.dtype, f"{name}: {got.dtype} instead of {expected.dtype}"
    one, two = as_numpy(got), as_numpy(expected)
    assert np.isfinite(one).all() and np.isfinite(two).all(), f"{name}: not finite"
    if not two.size:
        return
    zeros = two == 0
    assert not one[zeros].any(), f"{name}: not zero where zero is expected"
    error, size = np.abs(one - two).max(), np.abs(two).max()
    assert error <= RELATIVE_ERROR[str(expected.dtype)] * size, f"{name}: off by {error} of {size}"


def assert_same_bits(got, expected):
    """Fail unless both nest alike and all values are equal to the last bit."""
    assert_grads_close(got, expected)
    for one, two in zip(leaves_of(got), leaves_of(expected)):
        assert one is None or as_numpy(one).tobytes() == as_numpy(two).tobytes()


def as_numpy(value):
    """The values of a tensor; bfloat16, which numpy does not know, as float32."""
    return (value.astype(ms.float32) if value.dtype == ms.bfloat16 else value).asnumpy()


# --- the package ------------------------------------------------------------------------------------------------------

def split(fn, inputs, weights=None, sens=None, grad_position=0, kwargs=None, has_aux=False):
    """``(dx, dw)`` by dx, then all of dw."""
    _, grad_fn = forward_and_gradfn(fn, *inputs, weights=weights, grad_position=grad_position, has_aux=has_aux,
                                    **(kwargs or {}))
    return grad_fn.compute_input_grad(sens), grad_fn.compute_weight_grad()


def split_by_groups(fn, inputs, weights, sens=None, grad_position=0, kwargs=None, order="given"):
    """``(dx, dw)`` by dx, then each group alone, in the ``order`` "given", "reversed" or of a random seed."""
    _, grad_fn = forward_and_gradfn(fn, *inputs, weights=weights, grad_position=grad_position, **(kwargs or {}))
    dx = grad_fn.compute_input_grad(sens)
    return dx, dw_by_groups(grad_fn, order)


def dw_by_groups(grad_fn, order="given"):
    """dw as a tuple, each group computed alone, in the ``order`` "given", "reversed" or of a random seed."""
    groups = list(grad_fn.weight_groups)
    if order == "reversed":
        groups.reverse()
    elif order != "given":
        random.Random(order).shuffle(groups)
    grads = {}
    for group in groups:
        for place, grad in zip(group.positions, group.compute()):
            assert place not in grads, f"weight {place} is in two groups"
            grads[place] = grad
    return tuple(grads[place] for place in range(len(grads)))


def unsplit(fn, inputs, weights=None, sens=None, grad_position=0, kwargs=None, has_aux=False):
    """The result of calling the GradFunction itself."""
    _, grad_fn = forward_and_gradfn(fn, *inputs, weights=weights, grad_position=grad_position, has_aux=has_aux,
                                    **(kwargs or {}))
    return grad_fn(sens)


def check(fn, inputs, weights=None, sens=None, grad_position=0, kwargs=None, vanishing=False):
    """Compare the package with :func:`reference`: unsplit, split, and split with groups alone; in each order.

    Orders are those of the weights (all of up to three weights, else some) and of the groups. A reference gradient of
    zeros would compare nothing, so there must be none unless ``vanishing``.

    Returns:
        The reference ``(dx, dw)``.
    """
    if weights is not None and not isinstance(weights, Parameter):
        weights = list(weights)
    arguments = dict(sens=sens, grad_position=grad_position, kwargs=kwargs)
    dx, dw = reference(fn, inputs, weights, **arguments)
    for grad in leaves_of((dx, dw)):
        assert vanishing or grad is None or as_numpy(grad).any() or not grad.size, "the reference gradient is zero"
    if grad_position is None:
        assert_grads_close(unsplit(fn, inputs, weights, **arguments), dw)
    elif isinstance(weights, Parameter):
        assert_grads_close(split(fn, inputs, weights, **arguments), (dx, dw))
        assert_grads_close(unsplit(fn, inputs, weights, **arguments), (dx, dw))
    else:
        assert_grads_close(unsplit(fn, inputs, weights, **arguments), (dx, dw) if weights else dx)
        for number, order in enumerate(orders_of(len(dw))):
            expected = dx, tuple(dw[place] for place in order)
            reordered = [weights[place] for place in order]
            assert_grads_close(split(fn, inputs, reordered, **arguments), expected)
            for group_order in ("given", "reversed", 1) if number == 0 else (number,):
                assert_grads_close(split_by_groups(fn, inputs, reordered, order=group_order, **arguments), expected)
    return dx, dw


def orders_of(count):
    """Orders of ``count`` things, as tuples of places: all for up to three, else forwards, backwards and three more."""
    if count <= 3:
        return list(permutations(range(count)))
    return [tuple(range(count)), tuple(range(count))[::-1],
            *[tuple(random.Random(seed).sample(range(count), count)) for seed in range(3)]]


def is_pipeline_off():
    """Whether MindSpore's pipeline is off; leaves it as it is."""
    executor = native._pynative_executor
    off = executor.disable_frontend_and_bprop_pipeline()
    if not off:
        executor.enable_frontend_and_bprop_pipeline()
    return off
