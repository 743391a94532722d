"""Nested values and the flat list of their leaves.

Tuples, named tuples, lists and dicts (and their subclasses) are containers; everything else is a leaf, dataclass
instances included: they are passed through as they are.
"""

import copy
import functools
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple


class Structure:
    """The shape of a nested value without its leaves.

    >>> leaves, structure = flatten({"a": (1, 2), "b": [3]})
    >>> leaves
    [1, 2, 3]
    >>> structure.unflatten("xyz")
    {'a': ('x', 'y'), 'b': ['z']}
    >>> list(structure.paths("out"))
    ["out['a'][0]", "out['a'][1]", "out['b'][0]"]
    """

    __slots__ = ("_kind", "_keys", "_children", "size", "container", "_signature")

    def __init__(self, kind: Any, keys: Optional[tuple], children: Tuple["Structure", ...], container: Any = None):
        self._kind = kind  # None for a leaf; else (build function, base container type)
        self.container = container  # the type of a container; None for a leaf
        self._keys = keys
        self._children = children
        self.size = 1 if kind is None else sum(child.size for child in children)
        self._signature: Any = None

    @property
    def is_leaf(self) -> bool:
        """Whether the value was no container."""
        return self._kind is None

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The nested value with these leaves in place of the original ones."""
        return self._build(iter(leaves))

    def _build(self, leaves: Iterator[Any]) -> Any:
        if self._kind is None:
            return next(leaves)
        return self._kind[0](self._keys, [child._build(leaves) for child in self._children])

    def paths(self, name: str) -> Iterator[str]:
        """The name of each leaf, in order: ``name``, ``name[0]``, ``name['key'][1]``."""
        if self._kind is None:
            yield name
        else:
            keys = self._keys if self._keys is not None else range(len(self._children))
            for key, child in zip(keys, self._children):
                yield from child.paths(f"{name}[{key!r}]")

    def matches(self, other: "Structure") -> bool:
        """Whether both nest in the same way; lists and tuples count as the same."""
        if self.is_leaf or other.is_leaf:
            return self.is_leaf and other.is_leaf
        return (self._kind[1] == other._kind[1] and self._keys == other._keys
                and len(self._children) == len(other._children)
                and all(one.matches(two) for one, two in zip(self._children, other._children)))

    def children(self) -> Tuple["Structure", ...]:
        """The structures of a container's items; empty for a leaf."""
        return self._children

    @property
    def keys(self) -> Optional[tuple]:
        """The keys of a dict, in order; None for sequences and leaves."""
        return self._keys

    def signature(self) -> tuple:
        """The same of values that nest alike in containers of the same types, and of no others."""
        if self._signature is None:
            self._signature = (self.container, self._keys and tuple(map(repr, self._keys)),
                               *(child.signature() for child in self._children))
        return self._signature

    def describe(self) -> str:
        """How the value nests, for messages: ``(*, [*, *])`` with ``*`` for a leaf."""
        if self._kind is None:
            return "*"
        items = [child.describe() for child in self._children]
        if self._keys is not None:
            return "{" + ", ".join(f"{key!r}: {item}" for key, item in zip(self._keys, items)) + "}"
        return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"


_LEAF = Structure(None, None, ())


def flatten(value: Any) -> Tuple[List[Any], Structure]:
    """The leaves of ``value`` in order, and its structure. Dicts keep their order of keys."""
    leaves: List[Any] = []
    return leaves, _flatten(value, leaves)


def _flatten(value: Any, leaves: List[Any]) -> Structure:
    kind = type(value)
    if kind is tuple or kind is list or (kind is dict and not value):
        return _plain(kind, tuple([_flatten(item, leaves) for item in value]))
    if isinstance(value, dict):
        children = tuple(_flatten(item, leaves) for item in value.values())
        return Structure((_dict_builder(value), dict), tuple(value), children, kind)
    if isinstance(value, (tuple, list)):
        children = tuple(_flatten(item, leaves) for item in value)
        return Structure((functools.partial(_rebuild_subclass, value), list), None, children, kind)
    leaves.append(value)
    return _LEAF


def _plain(kind: type, children: Tuple[Structure, ...]) -> Structure:
    """The structure of a tuple, a list or an empty dict. As every call has some, small ones that nest alike share one,
    up to so many."""
    key = (kind, children)
    known = _PLAIN.get(key)
    if known is None:
        if kind is dict:
            known = Structure((_dict_builder({}), dict), (), (), dict)
        else:
            known = Structure((lambda _, items: kind(items), list), None, children, kind)
        if len(_PLAIN) < _MOST_PLAIN and len(children) <= _MOST_ITEMS and all(map(_is_shared, children)):
            _PLAIN[key] = known
    return known


def _is_shared(structure: Structure) -> bool:
    return structure is _LEAF or _PLAIN.get((structure.container, structure.children())) is structure


_PLAIN: Dict[Tuple[type, Tuple[Structure, ...]], Structure] = {}
_MOST_PLAIN, _MOST_ITEMS = 1000, 32


def _dict_builder(value: dict) -> Callable[[tuple, list], dict]:
    if type(value) is dict:
        return lambda keys, items: dict(zip(keys, items))
    empty = copy.copy(value)  # keeps what a subclass carries, such as a default factory
    empty.clear()

    def build(keys: tuple, items: list) -> dict:
        result = copy.copy(empty)
        result.update(zip(keys, items))
        return result

    return build


def _rebuild_subclass(value: Any, _: None, items: list) -> Any:
    """A named tuple or other subclass with new items; its constructor may want something else than items."""
    if isinstance(value, list):
        result = copy.copy(value)
        result[:] = items
        return result
    result = tuple.__new__(type(value), items)
    if hasattr(value, "__dict__"):
        vars(result).update(vars(value))
    return result
