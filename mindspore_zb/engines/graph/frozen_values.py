"""Values as they were: the parts of :mod:`frozen_state` that know nothing of Cells.

Each ``Frozen...`` remembers one value. ``same(value)`` is fast and may be wrong in one direction only: it says False of
a new object that is equal. ``difference(value)`` is exact: None, or what happened to the value.
"""

import weakref
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor

DTYPE = next(base for base in type(ms.float32).__mro__ if base.__name__ == "Type")
"""The type of all dtypes of MindSpore."""

SIMPLE = (int, float, complex, str, bytes, type(None), Enum, range, slice, type(Ellipsis), np.generic, np.dtype, DTYPE)
LARGEST_ARRAY = 1 << 20
"""Arrays of more bytes are compared by identity alone: comparing contents would cost more than the forward."""

ABSENT = object()
"""In place of an attribute that is not there."""


class Held:
    """Weak references, one for each object; deaths are written to a list.

    Attributes:
        contents: whether tensors are compared by contents too.
    """

    def __init__(self, dead: List[str], contents: bool):
        self._dead = dead
        self.contents = contents
        self._references: Dict[int, Any] = {}

    def hold(self, value: Any, place: str) -> Callable[[], Any]:
        """A callable that returns ``value`` as long as it lives; for ever, if it cannot be referenced weakly."""
        known = self._references.get(id(value))
        if known is not None and known() is value:
            return known
        dead = self._dead
        try:
            reference = weakref.ref(value, lambda _: dead.append(place))
        except TypeError:
            reference = _Strong(value)
        self._references[id(value)] = reference
        return reference


class _Strong:
    """Stands in for a weak reference."""

    def __init__(self, value: Any):
        self._value = value

    def __call__(self) -> Any:
        return self._value


def freeze(value: Any, place: str, held: Held, path: FrozenSet[int] = frozenset()) -> "Frozen":
    """Remember ``value``; ``path`` are the containers it is in."""
    if isinstance(value, SIMPLE):
        return FrozenSimple(value)
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return Frozen() if id(value) in path else FrozenContainer(value, place, held, path | {id(value)})
    if isinstance(value, np.ndarray) and value.nbytes <= LARGEST_ARRAY and not value.dtype.hasobject:
        return FrozenArray(value)
    if isinstance(value, Tensor) and type(value) is Tensor:
        return FrozenTensor(value, place, held)
    return FrozenObject(value, place, held)


class Frozen:
    """A container inside itself: whoever holds it compares it already."""

    mutable = False
    """Whether the value can change and stay the same object."""
    empty = False

    def same(self, value: Any) -> bool:
        return True

    def difference(self, value: Any) -> Optional[str]:
        return None


class FrozenSimple(Frozen):
    """A value without parts, compared by type and value."""

    def __init__(self, value: Any):
        self._value = value
        self.empty = value is None

    def same(self, value: Any) -> bool:
        return value is self._value

    def difference(self, value: Any) -> Optional[str]:
        if value is self._value or (type(value) is type(self._value) and self._equals(value)):
            return None
        return f"changed from {_short(self._value)} to {_short(value)}"

    def _equals(self, value: Any) -> bool:
        if isinstance(value, (float, complex, np.generic)):
            return repr(value) == repr(self._value)  # tells 0.0 from -0.0, and knows that nan stayed nan
        return bool(value == self._value)


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, SIMPLE) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."


class FrozenObject(Frozen):
    """An object that is only asked whether it is still the same one."""

    def __init__(self, value: Any, place: str, held: Held):
        self._reference = held.hold(value, place)

    def same(self, value: Any) -> bool:
        return value is self._reference()

    def difference(self, value: Any) -> Optional[str]:
        return None if value is self._reference() else "was replaced"


class FrozenTensor(FrozenObject):
    """A tensor constant: identity, and if asked for its contents."""

    def __init__(self, value: Tensor, place: str, held: Held):
        super().__init__(value, place, held)
        self.mutable = held.contents
        self._bytes = bytes_of(value) if held.contents else b""

    def same(self, value: Any) -> bool:
        return self.difference(value) is None

    def difference(self, value: Any) -> Optional[str]:
        if value is not self._reference():
            return "was replaced"
        return "was changed in place" if self.mutable and bytes_of(value) != self._bytes else None


def bytes_of(tensor: Tensor) -> bytes:
    """The contents of a tensor."""
    return (tensor.astype(ms.float32) if tensor.dtype == ms.bfloat16 else tensor).asnumpy().tobytes()


class FrozenArray(Frozen):
    """An array of numpy, compared by type and contents."""

    mutable = True

    def __init__(self, value: np.ndarray):
        self._meta = value.shape, value.dtype
        self._bytes = value.tobytes()

    def same(self, value: Any) -> bool:
        return self.difference(value) is None

    def difference(self, value: Any) -> Optional[str]:
        if not isinstance(value, np.ndarray):
            return "was replaced"
        same = (value.shape, value.dtype) == self._meta and value.tobytes() == self._bytes
        return None if same else "changed"


class FrozenContainer(Frozen):
    """A list, tuple, dict or set, with all that is in it."""

    def __init__(self, value: Any, place: str, held: Held, path: FrozenSet[int]):
        self._kind = type(value)
        self._keys = _keys_of(value, held, place)
        items = _items_of(value)
        self._ids = tuple(map(id, _contents(value)))
        self._items = [freeze(item, place, held, path) for item in items]
        self._nested = [(index, item) for index, item in enumerate(self._items) if item.mutable]
        self.mutable = bool(self._nested) or not isinstance(value, (tuple, frozenset))
        self.empty = not items

    def same(self, value: Any) -> bool:
        if type(value) is not self._kind or tuple(map(id, _contents(value))) != self._ids:
            return False
        if self._nested:
            items = _items_of(value)
            return all(frozen.same(items[index]) for index, frozen in self._nested)
        return True

    def difference(self, value: Any) -> Optional[str]:
        if type(value) is not self._kind:
            return "was replaced"
        return None if self.changed_key(value) is ABSENT else "changed"

    def has_key(self, key: Any) -> bool:
        """Whether there was an item of this key."""
        return key in self._keys

    def changed_key(self, value: Any) -> Any:
        """The first key whose item is another one, came or went; ABSENT if there is none."""
        keys = _keys_of(value)
        if isinstance(value, (set, frozenset)):
            return ABSENT if keys == self._keys else None
        for old, new, frozen, item in zip(self._keys, keys, self._items, _items_of(value)):
            if old != new or frozen.difference(item):
                return new
        if len(keys) != len(self._keys):
            return max(keys, self._keys, key=len)[min(len(keys), len(self._keys))]
        return ABSENT


def _contents(value: Any) -> tuple:
    return (*value, *value.values()) if isinstance(value, dict) else tuple(value)


def _items_of(value: Any) -> tuple:
    """What a container holds. Sets hold nothing that could change in place: what is hashable is frozen by its key."""
    if isinstance(value, dict):
        return tuple(value.values())
    return () if isinstance(value, (set, frozenset)) else tuple(value)


def _keys_of(value: Any, held: Optional[Held] = None, place: str = "") -> List[Any]:
    """What tells the items apart: places, keys, or for a set the sorted values themselves; objects by identity."""
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_key(item, held, place)) for item in value)
    return [_key(item, held, place) for item in value] if isinstance(value, dict) else list(range(len(value)))


def _key(item: Any, held: Optional[Held], place: str) -> Any:
    if isinstance(item, SIMPLE):
        return item if isinstance(item, str) else (type(item).__name__, repr(item))
    if held is not None:
        held.hold(item, place)
    return type(item).__name__, id(item)


class Watched:
    """The named items that ``read`` finds in an owner, as they were."""

    empty_is_absent: FrozenSet[str] = frozenset()
    """Names for which None, an empty container and a missing one mean the same."""

    def __init__(self, owner: Any, place: str, read: Callable[[Any], Dict[str, Any]],
                 phrase: Callable[[str, str, str], str], held: Held):
        self.owner = held.hold(owner, place)
        self._place, self._read, self._phrase, self._held = place, read, phrase, held
        self.remember(owner)

    def remember(self, owner: Any) -> None:
        """Take the items as they are now."""
        found = self._read(owner)
        self._frozen = {name: freeze(value, self._phrase(self._place, name, ""), self._held)
                        for name, value in found.items()}
        self._ids = tuple(map(id, found.values()))
        self._nested = [(index, frozen) for index, frozen in enumerate(self._frozen.values()) if frozen.mutable]

    def same(self) -> bool:
        """Whether nothing is another object; fast."""
        owner = self.owner()
        if owner is None:
            return False
        items = self.items(owner)
        if tuple(map(id, items)) != self._ids:
            return False
        for index, frozen in self._nested:
            if not frozen.same(items[index]):
                return False
        return True

    def items(self, owner: Any) -> Tuple[Any, ...]:
        """What ``read`` finds, without the names."""
        return tuple(self._read(owner).values())

    def difference(self) -> Optional[str]:
        """What has changed, exactly; None, and the new objects are remembered, if all are equal."""
        owner = self.owner()
        if owner is None:
            return f"{self._place} no longer exists"
        found = self._read(owner)
        for name in dict.fromkeys((*self._frozen, *found)):
            changed = self._difference_of(name, self._frozen.get(name), found.get(name, ABSENT))
            if changed:
                return changed
        self.remember(owner)
        return None

    def _difference_of(self, name: str, frozen: Optional[Frozen], value: Any) -> Optional[str]:
        if name in self.empty_is_absent and (frozen is None or frozen.empty) and (value is ABSENT or not value):
            return None
        if frozen is None:
            return self._phrase(self._place, name, "was added")
        if value is ABSENT:
            return self._phrase(self._place, name, "was removed")
        changed = frozen.difference(value)
        return self.describe(name, frozen, value, changed) if changed else None

    def describe(self, name: str, frozen: Frozen, value: Any, changed: str) -> str:
        """The phrase for one changed item."""
        return self._phrase(self._place, name, changed)


@lru_cache(maxsize=1024)
def getter(names: Tuple[str, ...]) -> Callable[[Dict[str, Any]], Tuple[Any, ...]]:
    """The values of these names in a dict, as a tuple, at the speed of C. One for all that have the same names, which
    stays in the processor's cache from Cell to Cell."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: tuple(values[name] for name in names)
