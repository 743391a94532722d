"""Give every run the same start: parameters, random numbers, and inputs of its own."""

import contextlib
import os
from collections import Counter
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mindspore_zb.engines.graph.reached import reach
from mindspore_zb.parity.values import Value, as_array, value_of
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import is_differentiable, is_parameter, is_tensor


class SavedState:
    """The parameters that ``fn`` reaches and the default random generator, as they are now.

    Names are state too: the first call of a Cell may rename the parameters of a SequentialCell in it, and equal names
    do not compile. What a forward changes in other Python objects is not seen.

    Args:
        fn: a Cell, function or other callable.
        weights: more parameters.
    """

    def __init__(self, fn: Callable[..., Any], weights: Sequence[Any]):
        self._weights = {id(weight) for weight in weights}
        parameters: Dict[int, Any] = {id(weight): weight for weight in weights}
        for _, parameter in reach(fn).parameters.values():
            parameters.setdefault(id(parameter), parameter)
        self._saved: List[Tuple[Any, np.ndarray, Any]] = [
            (parameter, np.array(parameter.asnumpy()), parameter.dtype) for parameter in parameters.values()]
        self._own_names = [parameter.name for parameter in parameters.values()]
        self._names = unique_names(self._own_names)
        self.weight_names = self._names[:len(self._weights)]
        self._random = ms.get_rng_state() if hasattr(ms, "get_rng_state") else None

    def restore(self, random: bool = True) -> None:
        """Write back what has changed; ``random``: the generator too."""
        for name, (parameter, array, dtype) in zip(self._own_names, self._saved):
            if parameter.name != name:
                parameter.name = name
            if not _same(parameter, array):
                _write(parameter, Tensor(array.copy(), dtype))
        if random and self._random is not None:
            ms.set_rng_state(self._random)

    def written(self) -> List[Value]:
        """The parameters that are no weights and have changed since."""
        return [value_of("state", name, parameter) for name, (parameter, array, _) in zip(self._names, self._saved)
                if id(parameter) not in self._weights and not _same(parameter, array)]

    def disturb(self, seed: int, part: float) -> None:
        """Change all floating parameters by this part of their values, or by nothing, at random."""
        for place, (parameter, array, dtype) in enumerate(self._saved):
            if is_differentiable(parameter):
                _write(parameter, disturbed(Tensor(array.copy(), dtype), (seed, place), part))


def unique_names(names: Sequence[str]) -> List[str]:
    """The names; those that come several times with their place.

    >>> unique_names(["a", "b", "a"])
    ['a [0]', 'b', 'a [2]']
    """
    counts = Counter(names)
    return [f"{name} [{place}]" if counts[name] > 1 else name for place, name in enumerate(names)]


def fresh(value: Any) -> Any:
    """The same nested value with a copy of every tensor, so that no run sees what another did to it."""
    leaves, structure = flatten(value)
    return structure.unflatten([Tensor(np.array(leaf.asnumpy()), leaf.dtype)
                                if is_tensor(leaf) and not is_parameter(leaf) else leaf for leaf in leaves])


def disturbed_inputs(value: Any, seed: int, part: float) -> Any:
    """The same nested value with every floating tensor changed by this part of its values, or by nothing."""
    leaves, structure = flatten(value)
    return structure.unflatten([disturbed(leaf, (seed, 1000 + place), part)
                                if is_differentiable(leaf) and not is_parameter(leaf) else leaf
                                for place, leaf in enumerate(leaves)])


def disturbed(tensor: Any, seed: Tuple[int, int], part: float) -> Any:
    """The tensor with each value a little higher, a little lower, or as it is."""
    factor = 1.0 + np.random.default_rng(seed).integers(-1, 2, tuple(tensor.shape)) * part
    if str(tensor.dtype) in ("Float64", "Complex64", "Complex128"):
        array = tensor.asnumpy()
        return Tensor((array * factor).astype(array.dtype), tensor.dtype)
    return Tensor((as_array(tensor) * factor).astype(np.float32)).astype(tensor.dtype)


@contextlib.contextmanager
def without_jit() -> Iterator[None]:
    """``@jit`` functions run as the Python they are."""
    before = os.environ.get("MS_JIT")
    os.environ["MS_JIT"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["MS_JIT"]
        else:
            os.environ["MS_JIT"] = before


def _same(parameter: Any, array: np.ndarray) -> bool:
    now = np.asarray(parameter.asnumpy())
    return now.shape == array.shape and now.dtype == array.dtype and now.tobytes() == array.tobytes()


def _write(parameter: Any, value: Any) -> None:
    """In place, as others may hold the storage; in a new storage where there is no kernel for that."""
    try:
        ops.assign(parameter, value)
    except (TypeError, RuntimeError, ValueError):
        parameter.set_data(value)
