"""When two callables compile to the same graph but for their Parameters: equal blocks of a net, which share pieces.

What a callable reaches is described in the order in which it is met. Its own Cells, objects and Parameters are numbers
in that description, everything that both may share (functions, classes, modules) is itself, and values are compared as
values: so equal descriptions are read by a compiler in the same way, and the Parameters of one take the places of those
of the other.
"""

import hashlib
import weakref
from functools import partial
from types import MethodType
from typing import Any, Dict, FrozenSet, Hashable, Iterable, Optional, Tuple

import numpy as np
from mindspore import Tensor, ops

from mindspore_zb.engines.graph.frozen_state import (FunctionReader, NamesReader, read_cell, read_foreign_class,
                                                     read_partial, read_users_class)
from mindspore_zb.engines.graph.frozen_values import ABSENT, LARGEST_ARRAY, SIMPLE, bytes_of
from mindspore_zb.engines.graph.reached import Reached, original, own_attributes, user_classes

NAME_READERS = frozenset(("name", "param_prefix", "parameters_and_names", "parameters_dict", "trainable_params"))
"""Names in code that may make a difference between Parameters of different names."""


def likeness(fn: Any, found: Reached) -> Optional[Hashable]:
    """Equal for callables that compile to the same graph, with the Parameters in the order of ``found.parameters``.

    It keeps classes, functions and objects alive no longer than others do.

    Args:
        fn: the callable.
        found: what it reaches.

    Returns:
        None if it holds something that is like nothing else.

    Example:
        >>> from mindspore import nn
        >>> from mindspore_zb.engines.graph.reached import reach
        >>> one, two, three = nn.Dense(2, 3), nn.Dense(2, 3), nn.Dense(2, 3, has_bias=False)
        >>> likeness(one, reach(one)) == likeness(two, reach(two))
        True
        >>> likeness(one, reach(one)) == likeness(three, reach(three))
        False
    """
    try:
        return Describer(found).describe(fn)
    except TypeError:  # something can be neither hashed nor referenced weakly
        return None


class _Same:
    """Equal to another of the very same object, which it does not keep alive."""

    __slots__ = ("_reference", "_hash")

    def __init__(self, value: Any):
        self._reference = weakref.ref(value)
        self._hash = id(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: Any) -> bool:
        if self is other:
            return True
        value = self._reference()
        return isinstance(other, _Same) and value is not None and value is other._reference()


class Describer:
    """Describes what was reached, with numbers for what is its own, and as :meth:`same` says what may be shared."""

    def __init__(self, found: Reached):
        self._found = found
        self._numbers: Dict[int, Tuple[str, int]] = {}
        for kind, own in (("cell", found.cells), ("object", found.objects), ("parameter", found.parameters)):
            self._numbers.update((identity, (kind, number)) for number, identity in enumerate(own))

    def describe(self, fn: Any) -> Hashable:
        """The description of ``fn`` and of all it reaches."""
        found = self._found
        named = not NAME_READERS.isdisjoint(found.names)
        return (self.value(fn),
                tuple((self.same(type(cell)), self._items(read_cell(cell))) for _, cell in found.cells.values()),
                tuple((self.same(one), self._items(FunctionReader(one)(one))) for _, one in found.functions.values()),
                tuple((self.same(type(one)), self._items(read_partial(one) if isinstance(one, partial)
                                                     else own_attributes(one))) for _, one in found.objects.values()),
                tuple((self.same(one), self._items(read_users_class(one) if one in user_classes(one)
                                               else read_foreign_class(one))) for _, one in found.classes.values()),
                tuple((self.same(one), self._items(NamesReader(tuple(name for name in found.names
                                                                  if name in vars(one)))(one)))
                      for _, one in found.modules.values()),
                tuple(self._parameter(one, named) for _, one in found.parameters.values()))

    def same(self, value: Any) -> Hashable:
        """Equal for the very same function, class, module or other object."""
        return _Same(value)

    def many(self, items: Iterable[Any]) -> Hashable:
        """Equal for equal items in any order."""
        return frozenset(items)

    def _parameter(self, parameter: Any, named: bool) -> Hashable:
        return (self.same(type(parameter)), tuple(parameter.shape), str(parameter.dtype), parameter.requires_grad,
                parameter.name if named else parameter.name.rpartition(".")[2], bool(parameter.hooks()))

    def _items(self, items: Dict[str, Any], path: FrozenSet[int] = frozenset()) -> Hashable:
        return tuple((key, self.value(value, path)) for key, value in items.items())

    def value(self, value: Any, path: FrozenSet[int] = frozenset()) -> Hashable:
        """One value; ``path`` are the containers it is in."""
        number = self._numbers.get(id(value))
        if number is not None:
            return number
        if value is ABSENT:
            return "absent"
        if isinstance(value, SIMPLE):
            return self.same(type(value)), repr(value)
        if isinstance(value, (list, tuple, dict, set, frozenset)):
            return self._container(value, path)
        if isinstance(value, MethodType):
            return self.same(original(value.__func__)), self.value(value.__self__, path)
        if isinstance(value, np.ndarray) and value.nbytes <= LARGEST_ARRAY and not value.dtype.hasobject:
            return "array", value.shape, str(value.dtype), value.tobytes()
        if type(value) is Tensor and value.nbytes <= LARGEST_ARRAY:
            return "tensor", tuple(value.shape), str(value.dtype), hashlib.sha256(bytes_of(value)).digest()
        if isinstance(value, ops.Primitive):
            return self.same(type(value)), value.name, self._items(vars(value), path)
        return self.same(value)

    def _container(self, value: Any, path: FrozenSet[int]) -> Hashable:
        if id(value) in path:
            return "itself"
        path = path | {id(value)}
        if isinstance(value, dict):
            return self.same(type(value)), tuple((self.value(key, path), self.value(item, path))
                                             for key, item in value.items())
        items: Iterable[Any] = (self.value(item, path) for item in value)
        return self.same(type(value)), self.many(items) if isinstance(value, (set, frozenset)) else tuple(items)
