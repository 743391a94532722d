"""The reference that split gradients are held against, and the comparison itself.

The reference is MindSpore's own ``GradOperation`` (what ``value_and_grad`` is made of) on the whole, unsplit backward.
It shares no code with the package: nesting, picking of inputs and None entries are written anew here.
"""

from typing import Any, Callable, Iterator, List, NamedTuple, Sequence, Tuple

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, ops

TOLERANCE = {"Float16": 5e-3, "BFloat16": 4e-2, "Float32": 1e-5, "Float64": 1e-12, "Complex64": 1e-5,
             "Complex128": 1e-12}
"""The largest difference allowed, relative to the largest magnitude in the expected tensor."""

_FLOATING = frozenset(TOLERANCE)


class Expected(NamedTuple):
    """What an unsplit run gives: the result of ``fn``, and dx and dw in the shape that the package promises."""

    out: Any
    dx: Any
    dw: Any


def is_floating(value: Any) -> bool:
    """Whether ``value`` is a tensor that can have a gradient."""
    return isinstance(value, Tensor) and str(value.dtype) in _FLOATING


def leaves_of(value: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists and dicts, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """The same nesting with ``change(leaf)`` in place of each leaf."""
    if isinstance(value, dict):
        return type(value)((key, map_leaves(change, item)) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        items = [map_leaves(change, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return change(value)


def random_sens(out: Any, seed: int = 0) -> Any:
    """Random gradients that fit ``out``; None in the places of integers and non-tensors."""
    rng = np.random.default_rng(1000 + seed)

    def entry(leaf: Any) -> Any:
        if not is_floating(leaf):
            return None
        return Tensor(rng.standard_normal(leaf.shape).astype(np.float32)).astype(leaf.dtype)

    return map_leaves(entry, out)


def copied(value: Any) -> Any:
    """The same values in tensors of their own."""
    return map_leaves(lambda leaf: Tensor(leaf.asnumpy().copy()).astype(leaf.dtype)
                      if isinstance(leaf, Tensor) and not isinstance(leaf, ms.Parameter) else leaf, value)


def unsplit_grads(fn: Callable[..., Any], inputs: tuple, weights: Sequence[Any] = (), sens: Any = None, *,
                  kwargs: Any = None, has_aux: bool = False, grad_position: Any = 0) -> Expected:
    """Run ``fn`` and its whole backward by MindSpore alone; arguments as for ``forward_and_gradfn``.

    ``weights`` must be a sequence, dw is a tuple.
    """
    inputs, kwargs = copied(inputs), copied(kwargs or {})
    asked = _asked_values(inputs, kwargs, grad_position)
    tensors = [leaf for leaf in leaves_of(asked) if is_floating(leaf)]
    live = [weight for weight in weights if weight.requires_grad]
    results = []

    def flat(*fresh: Any) -> Tuple[Any, ...]:
        results.append(fn(*_replaced(inputs, tensors, fresh), **_replaced(kwargs, tensors, fresh)))
        return tuple(leaf for leaf, _ in _pairs(results[0][0] if has_aux else results[0], sens))

    wanted = sens is None or any(is_floating(entry) for entry in leaves_of(sens))
    if wanted and (tensors or live):
        input_grads, weight_grads = _run(flat, tensors, live, sens)
    else:
        flat(*tensors)
        input_grads, weight_grads = _zeros(tensors), _zeros(live)
    if len(results) != 1:
        raise AssertionError(f"the reference ran fn {len(results)} times")
    found = {id(weight): grad for weight, grad in zip(live, weight_grads)}
    dw = tuple(found[id(weight)] if id(weight) in found else _zeros([weight])[0] for weight in weights)
    return Expected(results[0], _shaped(asked, input_grads, kwargs, grad_position), dw)


def _asked_values(inputs: tuple, kwargs: dict, grad_position: Any) -> Tuple[Any, ...]:
    """The arguments whose gradients are asked for, nested as given."""
    if grad_position is None:
        return ()
    if grad_position == -1:
        return (*inputs, kwargs)
    places = (grad_position,) if isinstance(grad_position, int) else grad_position
    return tuple(inputs[place] for place in places)


def _replaced(value: Any, tensors: Sequence[Any], fresh: Sequence[Any]) -> Any:
    """``value`` with the traced tensors in place of ours; copies made every tensor a distinct object."""
    place = {id(tensor): new for tensor, new in zip(tensors, fresh)}
    return map_leaves(lambda leaf: place.get(id(leaf), leaf), value)


def _pairs(out: Any, sens: Any) -> List[Tuple[Any, Any]]:
    """Each output that gets a gradient, with this gradient; None for ones."""
    pairs: List[Tuple[Any, Any]] = []

    def collect(value: Any, entry: Any) -> None:
        if isinstance(value, (tuple, list, dict)):
            for key in value if isinstance(value, dict) else range(len(value)):
                collect(value[key], None if entry is None else entry[key])
        elif is_floating(value) and (sens is None or entry is not None):
            pairs.append((value, entry))

    collect(out, sens)
    return pairs


def _run(flat: Callable[..., Any], tensors: Sequence[Any], weights: Sequence[Any],
         sens: Any) -> Tuple[Sequence[Any], Sequence[Any]]:
    """The gradients of ``tensors`` and ``weights``."""
    operation = ops.GradOperation(get_all=bool(tensors), get_by_list=bool(weights), sens_param=sens is not None)
    # the constructor of ParameterTuple refuses equal names, which Cells give their parameters at their first call
    call = operation(flat, tuple.__new__(ParameterTuple, weights)) if weights else operation(flat)
    entries = () if sens is None else (tuple(entry for entry in leaves_of(sens) if is_floating(entry)),)
    grads = call(*tensors, *entries)
    if not weights:
        return grads, ()
    return grads if tensors else ((), grads)


def _zeros(tensors: Sequence[Any]) -> List[Any]:
    return [ops.zeros(tensor.shape, tensor.dtype) for tensor in tensors]


def _shaped(asked: Tuple[Any, ...], grads: Sequence[Any], kwargs: dict, grad_position: Any) -> Any:
    """The gradients in the shape that the package promises for ``grad_position``."""
    waiting = iter(grads)
    shaped = tuple(map_leaves(lambda leaf: next(waiting) if is_floating(leaf) else None, value) for value in asked)
    if grad_position is None:
        return None
    if grad_position == -1:
        has_tensors = any(isinstance(leaf, Tensor) for leaf in leaves_of(kwargs))
        return (shaped[:-1], shaped[-1]) if has_tensors else shaped[:-1]
    return shaped[0] if isinstance(grad_position, int) else shaped


def relative_difference(actual: Any, expected: Any) -> float:
    """The largest difference of two tensors over the largest magnitude in the expected one.

    Infinite where something was expected to be zero or finite and is not, or the other way round.
    """
    one, two = (_as_numpy(tensor) for tensor in (actual, expected))
    if not two.size or np.array_equal(one, two, equal_nan=True):
        return 0.0
    if not (np.isfinite(one).all() and np.isfinite(two).all()):
        return float("inf")
    scale = np.abs(two).max()
    return float(np.abs(one - two).max() / scale) if scale else float("inf")


def _as_numpy(tensor: Any) -> np.ndarray:
    name = str(tensor.dtype)
    if name in ("Float16", "BFloat16", "Float32"):
        return tensor.astype(ms.float32).asnumpy().astype(np.float64)
    return tensor.asnumpy()


def assert_same(actual: Any, expected: Any, what: str = "gradient", tolerance: Any = None, overall: float = 0) -> None:
    """``actual`` equals ``expected``: nesting, None entries, shapes, dtypes, and values within a tolerance.

    Args:
        actual, expected: nested tensors.
        what: a name for the message.
        tolerance: relative to the largest magnitude of the expected tensor; None: :data:`TOLERANCE` by dtype, 0:
            bit for bit.
        overall: largest magnitude of all that is compared together. A gradient that is zero but for rounding, as that
            of a bias before a norm, is held against a hundredth of it.
    """
    if not overall:
        overall = max((_magnitude(leaf) for leaf in leaves_of(expected) if is_floating(leaf)), default=0.0)
    if isinstance(expected, (tuple, list)):
        assert isinstance(actual, (tuple, list)), f"{what}: {type(actual).__name__} instead of a sequence"
        assert len(actual) == len(expected), f"{what}: {len(actual)} entries instead of {len(expected)}"
        for place, (one, two) in enumerate(zip(actual, expected)):
            assert_same(one, two, f"{what}[{place}]", tolerance, overall)
    elif isinstance(expected, dict):
        assert isinstance(actual, dict) and list(actual) == list(expected), f"{what}: other keys, {actual!r}"
        for key in expected:
            assert_same(actual[key], expected[key], f"{what}[{key!r}]", tolerance, overall)
    elif isinstance(expected, Tensor):
        _assert_same_tensor(actual, expected, what, tolerance, overall)
    else:
        assert actual is expected or actual == expected, f"{what}: {actual!r} instead of {expected!r}"


def _magnitude(tensor: Any) -> float:
    values = np.abs(_as_numpy(tensor))
    return float(values[np.isfinite(values)].max(initial=0))


def _assert_same_tensor(actual: Any, expected: Any, what: str, tolerance: Any, overall: float) -> None:
    assert isinstance(actual, Tensor), f"{what}: {actual!r} instead of a tensor"
    assert tuple(actual.shape) == tuple(expected.shape), f"{what}: shape {actual.shape} instead of {expected.shape}"
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype} instead of {expected.dtype}"
    allowed = TOLERANCE.get(str(expected.dtype), 0) if tolerance is None else tolerance
    found = relative_difference(actual, expected)
    if np.isfinite(found) and 0 < _magnitude(expected) < overall / 100:
        found *= _magnitude(expected) / (overall / 100)
    assert found <= allowed, f"{what}: differs by {found:.3g} of the expected magnitude, allowed is {allowed:.3g}"
