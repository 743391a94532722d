"""Whether the Python values that a compiler made constants of are still what they were.

A compiled graph reads nothing from Python any more: an attribute, a global or a list that changes afterwards is
silently ignored. :func:`take_frozen_state` remembers all that a callable reaches; :meth:`FrozenState.difference` says
later what has changed. It runs for every micro-batch, so the ordinary answer, "nothing", must come fast.

How: identities are compared first, in C, a whole Cell or container at a time. Only where one differs are values
compared, and if they turn out equal (``net.k = 2`` again) the new identities are remembered. An identity is an
address, and an address can be used again; therefore each thing that is not a plain value is held by a weak reference,
and a death counts as a change.
"""

from functools import partial
from operator import attrgetter, is_, methodcaller
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mindspore import nn, ops

from mindspore_zb.engines.graph.frozen_values import ABSENT, SIMPLE, Frozen, FrozenContainer, Held, Watched, getter
from mindspore_zb.engines.graph.reached import (Reached, behind, closure_items, global_names, is_own_name,
                                                 own_attributes, reach, user_classes)

CELL_STATE = ("training", "mixed_precision_type", "_params", "_cells", "_buffers", "_recompute_cell", "_shard_fn")
"""Bookkeeping of ``nn.Cell`` that a compiled graph depends on. Missing ones are passed over."""

HOOKS = {"_lazy_forward_pre_hook": "forward pre-hooks", "_lazy_forward_hook": "forward hooks",
         "_lazy_backward_pre_hook": "backward pre-hooks", "_lazy_backward_hook": "backward hooks",
         "_saved_tensors_pack_hook": "saved-tensors hooks"}
"""Where a Cell keeps its hooks, and what to call them."""

FLAGS = "_func_graph_flags"
"""Where a Cell keeps the flags of ``add_flags``; absent until the first one."""

FLAT = ("_params", "_cells", "_buffers", FLAGS)
"""Dicts whose items are compared along with the attributes."""

NOTHING: Dict[str, Any] = {}
STATE_PHRASES = {"training": "training flag", "mixed_precision_type": "mixed precision", FLAGS: "compiler flags",
                 "_recompute_cell": "recompute", "_shard_fn": "shard function", **HOOKS}
PARTS = {"_params": "Parameter", "_cells": "the Cell", "_buffers": "the buffer"}

DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)


class FrozenState:
    """What a callable reached at one moment. Made by :func:`take_frozen_state`.

    It keeps neither the callable nor its Cells, Parameters or tensors alive: all are held weakly. Kept alive are plain
    values, and objects that cannot be referenced weakly (with ``__slots__`` and no ``__weakref__``): one of those that
    refers back to the callable keeps it alive as long as this state lives.
    """

    def __init__(self, found: Reached, contents: bool):
        self._dead: List[str] = []
        held = Held(self._dead, contents)
        self._parts: List[Watched] = []
        for place, cell in found.cells.values():
            self._parts.append(_CellWatched(cell, place, held))
        for place, function in found.functions.values():
            self._parts.append(_FunctionWatched(function, place, held))
        for place, value in found.objects.values():
            read = read_partial if isinstance(value, partial) else own_attributes
            self._parts.append(Watched(value, place, read, _attribute_phrase, held))
        for place, kind in found.classes.values():
            self._parts.append(_ClassWatched(kind, place, held))
        names = tuple(found.names)
        for place, module in found.modules.values():
            reader = NamesReader(tuple(name for name in names if name in vars(module)))
            self._parts.append(Watched(module, place, reader, _module_phrase, held))
        self._parameters = _Parameters(found, held)

    def difference(self) -> Optional[str]:
        """None if nothing has changed, else a phrase that says what has, such as
        ``"attribute 'scale' of Stage.block.0 changed from 2 to 3"``.

        Once something has changed, it stays so until the old value is back: after a recompile take a new state.
        """
        for part in self._parts:
            if not part.same():
                changed = part.difference()
                if changed:
                    return changed
        changed = self._parameters.difference()
        if changed is None and self._dead:
            return f"{self._dead[0]} was replaced"
        return changed


def take_frozen_state(fn: Callable[..., Any], given: Sequence[Any] = (), contents: bool = False) -> FrozenState:
    """Remember the Python state that a compiled ``fn`` depends on.

    Args:
        fn: a Cell, function, bound method, ``functools.partial`` or callable object, by ``@jit`` or not. It must be
            alive for as long as the state is asked: of one that is not, the state says that it no longer exists.
        given: what it is called with.
        contents: compare tensor attributes and buffers by contents too. Each costs a transfer to the host at every
            call, which waits for all that was computed before.

    Noticed are changes of:

    * attributes of all Cells and of the user's objects that ``fn`` reaches, lists, dicts and sets in them included, at
      any depth, and arrays of numpy by their contents;
    * training flag, mixed precision, gradient and recompute flags, hooks; sub-cells and Parameters that were replaced,
      a Parameter's shape, dtype, ``requires_grad`` and hooks;
    * globals, closure variables and default arguments of reached functions; class attributes and methods, an instance's
      own ``construct``, names of the user's modules that reached code uses.

    Not noticed: the values of Parameters (a compiled graph reads those at each run); without ``contents``, a tensor
    attribute or buffer that was changed in place (MindSpore's own count of changes, ``_version``, stands still outside
    of a recorded forward); arrays of numpy beyond 1 MB that were changed in place; the insides of objects
    of MindSpore (Primitives) and of the standard library (a ``deque``) other than those named above; what code finds by
    a computed name, through ``exec`` or in the environment; settings of MindSpore.

    Raises:
        Nothing of its own.

    Example:
        >>> from mindspore import nn
        >>> net = nn.SequentialCell(nn.Dense(2, 2), nn.ReLU())
        >>> state = take_frozen_state(net)
        >>> state.difference()
        >>> _ = net.set_train()
        >>> state.difference()
        'training flag of SequentialCell changed from False to True'
    """
    return FrozenState(reach(fn, given), contents)


# --- Cells ------------------------------------------------------------------------------------------------------------

_WATCHED = frozenset((*CELL_STATE, *HOOKS, FLAGS))


def read_cell(cell: nn.Cell) -> Dict[str, Any]:
    """The attributes that matter, and the Cell's own dicts."""
    attributes = vars(cell)
    found = {name: attributes[name] for name in FLAT[:3]}
    found.update((name, value) for name, value in attributes.items()
                 if name in _WATCHED or is_own_name(name, type(cell)))
    return found


class _CellWatched(Watched):
    """A Cell's own attributes, and that part of its bookkeeping that matters."""

    empty_is_absent = frozenset((*HOOKS, FLAGS))

    def __init__(self, cell: nn.Cell, place: str, held: Held):
        super().__init__(cell, place, read_cell, _cell_phrase, held)

    def remember(self, owner: nn.Cell) -> None:
        super().remember(owner)
        attributes = vars(owner)
        self._count = len(attributes)
        plain = [name for name in self._frozen if _is_plain(attributes[name])]
        others = (*FLAT[:3], *(name for name in self._frozen if name not in (*plain, *FLAT)))
        names = list(self._frozen)
        flat = FLAT[:2] + FLAT[3:] if self._held.contents else FLAT  # buffers have contents
        nested = [(names[index], frozen) for index, frozen in self._nested if names[index] not in flat]
        empty = [name for name, frozen in nested if frozen.empty]  # hooks, mostly: four dicts in every Cell
        self._get = getter((*plain, *others, *empty))
        self._others_part = slice(len(plain), len(plain) + len(others))
        self._empty_part = slice(len(plain) + len(others), None)
        found = self._get(attributes)
        self._plain = found[:len(plain)]
        self._ids = _ids_in(found[self._others_part], attributes)
        self._empty_types = tuple(map(type, found[self._empty_part]))
        self._nested = [(name, frozen) for name, frozen in nested if name not in empty]

    def same(self) -> bool:
        cell = self.owner()
        if cell is None:
            return False
        attributes = cell.__dict__
        if len(attributes) != self._count:  # one was added, and may hide an attribute of the class
            return False
        try:
            found = self._get(attributes)
        except KeyError:
            return False
        if not all(map(is_, self._plain, found)) or _ids_in(found[self._others_part], attributes) != self._ids:
            return False
        empty = found[self._empty_part]
        if any(empty) or tuple(map(type, empty)) != self._empty_types:
            return False
        for name, frozen in self._nested:
            if not frozen.same(attributes[name]):
                return False
        return True

    def describe(self, name: str, frozen: Frozen, value: Any, changed: str) -> str:
        if name not in PARTS or not isinstance(frozen, FrozenContainer) or not isinstance(value, dict):
            return super().describe(name, frozen, value, changed)
        key = frozen.changed_key(value)
        changed = "was replaced" if key in value and frozen.has_key(key) else "was added or removed"
        return f"{PARTS[name]} {key!r} of {self._place} {changed}"


def _ids_in(others: Tuple[Any, ...], attributes: Dict[str, Any]) -> Tuple[int, ...]:
    """Identities of what must not be held: the Cell's own dicts, which come first, the rest, and the items of those."""
    return tuple(map(id, (*others, *others[0].values(), *others[1].values(), *others[2].values(),
                          *attributes.get(FLAGS, NOTHING).values())))


def _is_plain(value: Any) -> bool:
    """Whether a value may be held, as it refers to nothing: then it is compared without the detour of a number."""
    if isinstance(value, ops.Primitive):
        return not any(map(callable, vars(value).values()))
    return isinstance(value, SIMPLE)


def _cell_phrase(place: str, name: str, changed: str) -> str:
    if name in STATE_PHRASES:
        return f"{STATE_PHRASES[name]} of {place} {changed}"
    return _attribute_phrase(place, name, changed)


# --- everything else --------------------------------------------------------------------------------------------------

def _attribute_phrase(place: str, name: str, changed: str) -> str:
    return f"attribute {name!r} of {place} {changed}"


def read_partial(value: partial) -> Dict[str, Any]:
    """What a ``functools.partial`` holds."""
    return {"func": value.func, "args": value.args, "keywords": value.keywords}


class FunctionReader:
    """The code, defaults, closure variables and globals of one function."""

    def __init__(self, function: Any):
        self._globals = tuple(global_names(function))

    def __call__(self, function: Any) -> Dict[str, Any]:
        names = ("code", "default arguments", "default keyword arguments",
                 *(f"closure variable {name!r}" for name, _ in closure_items(function)),
                 *(f"global {name!r} of module {function.__module__}" for name in self._globals))
        return dict(zip(names, self.items(function)))

    def items(self, function: Any) -> Tuple[Any, ...]:
        """The same without the names."""
        module = function.__globals__
        return (function.__code__, function.__defaults__, function.__kwdefaults__,
                *(value for _, value in closure_items(function)), *[module.get(name, ABSENT) for name in self._globals])


class _FunctionWatched(Watched):
    """The code of a function and what it refers to by name."""

    def __init__(self, function: Any, place: str, held: Held):
        super().__init__(function, place, FunctionReader(function), _function_phrase, held)

    def items(self, owner: Any) -> Tuple[Any, ...]:
        return self._read.items(owner)


def _function_phrase(place: str, name: str, changed: str) -> str:
    return f"{name} {changed}" if name.startswith("global ") else f"{name} of {place} {changed}"


def read_users_class(kind: type) -> Dict[str, Any]:
    """Methods and attributes."""
    return {name: behind(value) for name, value in vars(kind).items()
            if (not name.startswith("__") or name == "__call__") and not isinstance(value, DESCRIPTORS)}


def read_foreign_class(kind: type) -> Dict[str, Any]:
    """What a Cell runs."""
    return {"construct": getattr(kind, "construct", None)}


class _ClassWatched(Watched):
    """The methods and attributes of a user's class, base classes apart; of another's what its Cells run."""

    def __init__(self, kind: type, place: str, held: Held):
        self._users = kind in user_classes(kind)
        super().__init__(kind, place, read_users_class if self._users else read_foreign_class, _class_phrase, held)

    def remember(self, owner: type) -> None:
        super().remember(owner)
        names = list(self._frozen)
        self._mutable = [(names[index], frozen) for index, frozen in self._nested]
        self._entries = self._entries_of(owner)

    def _entries_of(self, kind: type) -> Tuple[int, ...]:
        """All entries as they are, those that do not matter too: that is faster than to choose."""
        return tuple(map(id, vars(kind).values())) if self._users else (id(getattr(kind, "construct", None)),)

    def same(self) -> bool:
        kind = self.owner()
        if kind is None or self._entries_of(kind) != self._entries:
            return False
        entries = vars(kind)
        return all(frozen.same(entries[name]) for name, frozen in self._mutable)


def _class_phrase(place: str, name: str, changed: str) -> str:
    return f"{name!r} of class {place} {changed}"


class NamesReader:
    """These names of a module, as far as it has them."""

    def __init__(self, names: Tuple[str, ...]):
        self._names = names

    def __call__(self, module: ModuleType) -> Dict[str, Any]:
        return {name: vars(module).get(name, ABSENT) for name in self._names}


def _module_phrase(place: str, name: str, changed: str) -> str:
    return f"global {name!r} of module {place} {changed}"


class _Parameters:
    """Shape, dtype, ``requires_grad`` and hooks of Parameters; the values are free to change."""

    def __init__(self, found: Reached, held: Held):
        parameters = [parameter for _, parameter in found.parameters.values()]
        self._names = [name for name, _ in found.parameters.values()]
        self._references = [held.hold(parameter, f"Parameter {name!r}")
                            for parameter, name in zip(parameters, self._names)]
        self._states = list(map(_parameter_state, parameters))
        self._hooks = list(map(_hooks_of, parameters))

    def difference(self) -> Optional[str]:
        """The first Parameter that is not as it was, and what about it."""
        parameters = [reference() for reference in self._references]
        try:
            states, hooks = list(map(_parameter_state, parameters)), list(map(_hooks_of, parameters))
        except AttributeError:  # of None
            gone = next(name for name, parameter in zip(self._names, parameters) if parameter is None)
            return f"Parameter {gone!r} no longer exists"
        if states == self._states and hooks == self._hooks:
            return None
        for name, old, new, hooks_before, hooks_now in zip(self._names, self._states, states, self._hooks, hooks):
            if hooks_before != hooks_now:
                return f"hooks of Parameter {name!r} changed"
            if old != new:
                what = next(what for what, one, two in zip(("shape", "dtype", "requires_grad"), old, new) if one != two)
                return f"Parameter {name!r} has another {what}"
        return None


_parameter_state = attrgetter("shape", "dtype", "_param_info.requires_grad")
"""With the property ``requires_grad`` taken apart, which as Python code would cost as much as all the rest."""

_hooks_of = methodcaller("hooks")
