"""Named tensors as numpy arrays, and how far two lists of them are apart."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mindspore as ms
import numpy as np

from mindspore_zb.parity.report import BEYOND, ROUNDING, WITHIN, Difference
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import is_tensor

TOLERANCE = {"Float16": 5e-3, "BFloat16": 4e-2, "Float32": 1e-5, "Float64": 1e-12, "Complex64": 1e-5,
             "Complex128": 1e-12}
"""The largest relative difference that counts as equal, by dtype; other dtypes must be equal."""

ROUNDING_FACTOR = 8.0
"""How many times the effect of a small change still counts as rounding."""

Key = Tuple[str, str]


@dataclass(frozen=True)
class Value:
    """A tensor of one micro-batch; ``array`` is None where there is none."""

    kind: str
    name: str
    array: Optional[np.ndarray]
    dtype: str = ""

    @property
    def key(self) -> Key:
        return self.kind, self.name


def values_of(kind: str, name: str, nested: Any) -> List[Value]:
    """The leaves of a nested value that are tensors or None."""
    leaves, structure = flatten(nested)
    return [value_of(kind, path, leaf) for path, leaf in zip(structure.paths(name), leaves)
            if leaf is None or is_tensor(leaf)]


def value_of(kind: str, name: str, tensor: Any) -> Value:
    """A tensor, or None, with its name."""
    return Value(kind, name, None) if tensor is None else Value(kind, name, as_array(tensor), str(tensor.dtype))


def as_array(tensor: Any) -> np.ndarray:
    """Its values; small floats as doubles, which hold them exactly."""
    if str(tensor.dtype) in ("Float16", "BFloat16", "Float32"):
        return tensor.astype(ms.float32).asnumpy().astype(np.float64)
    return np.array(tensor.asnumpy())


@dataclass(frozen=True)
class Distance:
    """Of one tensor to that of the unsplit run, before it is judged."""

    relative: float
    absolute: float
    dtype: str
    note: str = ""


def distances(actual: Sequence[Value], expected: Sequence[Value]) -> Dict[Key, Distance]:
    """How far each value is from the one of the same name; in the order of ``expected``."""
    found: Dict[Key, Distance] = {}
    theirs = {value.key: value for value in actual}
    for value in expected:
        other = theirs.pop(value.key, None)
        found[value.key] = _missing(value, "missing") if other is None else _distance(other, value)
    for value in theirs.values():
        found[value.key] = _missing(value, "not in the unsplit run")
    return found


def _missing(value: Value, note: str) -> Distance:
    return Distance(np.inf, np.inf, value.dtype, note)


def _distance(actual: Value, expected: Value) -> Distance:
    one, two = actual.array, expected.array
    if one is None or two is None:
        return Distance(0.0, 0.0, "") if one is two else _missing(expected, "None" if one is None else "should be None")
    if actual.dtype != expected.dtype:
        return _missing(expected, f"dtype {actual.dtype}, not {expected.dtype}")
    if one.shape != two.shape:
        return _missing(expected, f"shape {one.shape}, not {two.shape}")
    if np.array_equal(one, two, equal_nan=one.dtype.kind in "fc"):
        return Distance(0.0, 0.0, expected.dtype)
    if one.dtype.kind == "b":
        return _missing(expected, "")
    finite = np.isfinite(two)
    if not np.array_equal(np.isfinite(one), finite) or \
            not np.array_equal(one[~finite], two[~finite], equal_nan=True):
        return _missing(expected, "not finite in other places")
    absolute = float(np.abs(one[finite].astype(np.result_type(one, np.float64)) - two[finite]).max())
    scale = float(np.abs(two[finite]).max())
    return Distance(absolute / scale if scale else np.inf, absolute, expected.dtype)


def worst_of(per_batch: Sequence[Dict[Key, Distance]]) -> Dict[Key, Distance]:
    """For each name the largest of all micro-batches."""
    worst: Dict[Key, Distance] = {}
    for found in per_batch:
        for key, distance in found.items():
            if key not in worst or distance.relative > worst[key].relative:
                worst[key] = distance
    return worst


def judge(found: Dict[Key, Distance], tolerance: Optional[float],
          sensitivity: Optional[Dict[Key, Distance]] = None) -> Tuple[Difference, ...]:
    """The verdict on each distance.

    Args:
        found: the distances.
        tolerance: the largest relative difference of floating values; None: by dtype, :data:`TOLERANCE`.
        sensitivity: by how much the unsplit run changes with a little change of what it is given.
    """
    judged = []
    for (kind, name), distance in found.items():
        allowed = TOLERANCE.get(distance.dtype, 0.0)
        if tolerance is not None and distance.dtype in TOLERANCE:
            allowed = tolerance
        verdict = WITHIN if distance.relative <= allowed else BEYOND
        if verdict == BEYOND and sensitivity and (kind, name) in sensitivity:
            rounding = ROUNDING_FACTOR * sensitivity[kind, name].absolute
            if np.isfinite(rounding) and distance.absolute <= rounding:
                verdict = ROUNDING
        judged.append(Difference(kind, name, distance.relative, allowed, verdict, distance.note))
    return tuple(judged)
