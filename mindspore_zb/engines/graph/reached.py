"""What a callable reaches: its Cells, its Python functions, and the objects, classes and modules it reads from.

A compiler turns all of this into constants; :mod:`frozen_state` compares it later, :mod:`refusals` judges it.

The walk follows what the code *names*: globals, closure variables, methods and attributes whose names occur in reached
code, wherever the owner is known. It over-approximates (a name that occurs only in a branch not taken counts) and is
blind to what is built at run time: ``getattr`` with a computed name, ``exec``, attributes made by ``__getattr__``.
MindSpore, numpy and the standard library are not entered.
"""

import argparse
import functools
import sys
import sysconfig
import types
from dataclasses import dataclass, field
from dis import get_instructions
from enum import Enum
from inspect import getattr_static
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Sequence, Tuple

from mindspore import Parameter, Tensor, nn

NOT_THE_USERS = ("", "mindspore", "numpy", "mindspore_zb", "pybind11_builtins")
CELL_BOOKKEEPING = frozenset(vars(nn.Cell()))
"""The attributes that every Cell has, none of which is the user's."""

PLAIN_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
"""Types that are not the user's, whose objects nevertheless hold the user's settings."""


@dataclass
class Reached:
    """Everything found, each thing once, by identity, with the place where it was met first."""

    cells: Dict[int, Tuple[str, nn.Cell]] = field(default_factory=dict)
    functions: Dict[int, Tuple[str, types.FunctionType]] = field(default_factory=dict)
    objects: Dict[int, Tuple[str, Any]] = field(default_factory=dict)
    classes: Dict[int, Tuple[str, type]] = field(default_factory=dict)
    modules: Dict[int, Tuple[str, types.ModuleType]] = field(default_factory=dict)
    parameters: Dict[int, Tuple[str, Parameter]] = field(default_factory=dict)
    foreign: Dict[int, Tuple[str, Any]] = field(default_factory=dict)
    """Modules, functions and objects of others, by which side effects and randomness are judged."""
    names: Dict[str, None] = field(default_factory=dict)
    """Every name that occurs in reached code."""


def reach(fn: Any, given: Sequence[Any] = ()) -> Reached:
    """All that ``fn`` reaches.

    Args:
        fn: a Cell, function, bound method, ``functools.partial`` or callable object, by ``@jit`` or not.
        given: what it is called with, and reaches in that way.

    Example:
        >>> from mindspore import nn
        >>> sorted(place for place, _ in reach(nn.SequentialCell(nn.Dense(2, 2), nn.ReLU())).cells.values())
        ['SequentialCell', 'SequentialCell.0', 'SequentialCell.1']
    """
    walk = _Walk()
    walk.meet(root_name(fn), fn)
    for place, value in enumerate(given):
        walk.meet(f"argument {place} of {root_name(fn)}", value)
    walk.finish()
    return walk.found


def root_name(fn: Any) -> str:
    """What messages call ``fn``."""
    if isinstance(fn, functools.partial):
        return f"partial of {root_name(fn.func)}"
    if isinstance(fn, types.MethodType) and not isinstance(fn.__self__, type):
        return type(fn.__self__).__name__
    return getattr(fn, "__qualname__", None) or type(fn).__name__


def original(function: Any) -> Any:
    """The Python function behind ``@jit``; a bound method stays one, or its object would be lost."""
    while not isinstance(function, types.MethodType) and hasattr(function, "__wrapped_by_jit__"):
        function = function.__wrapped__
    return function


def codes_of(function: types.FunctionType) -> Iterator[types.CodeType]:
    """The code of a function and of all functions, lambdas and comprehensions inside it."""
    pending = [function.__code__]
    for code in pending:  # grows while it is read
        yield code
        pending.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def names_in(function: types.FunctionType) -> List[str]:
    """The global and attribute names in a function's code, each once."""
    return list(dict.fromkeys(name for code in codes_of(function) for name in code.co_names))


def global_names(function: types.FunctionType) -> List[str]:
    """The globals that a function reads, builtins apart."""
    names: Dict[str, None] = {}
    for code in codes_of(function):
        try:
            names.update(dict.fromkeys(_globals_of(code)))
        except TypeError:  # a constant without a hash, which no compiler makes
            names.update(dict.fromkeys(_globals_of.__wrapped__(code)))
    return [name for name in names if name in function.__globals__]


@functools.lru_cache(maxsize=2 ** 12)
def _globals_of(code: types.CodeType) -> Tuple[str, ...]:
    """Kept, as equal blocks share their code, and to take it apart is most of what it takes to look at a block."""
    return tuple(dict.fromkeys(instruction.argval for instruction in get_instructions(code)
                               if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")))


def closure_items(function: types.FunctionType) -> List[Tuple[str, Any]]:
    """Name and value of each closure variable that has a value."""
    items = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            items.append((name, cell.cell_contents))
        except ValueError:  # not assigned yet
            pass
    return items


@functools.lru_cache(maxsize=None)
def is_foreign(module: Optional[str]) -> bool:
    """Whether a module belongs to MindSpore, numpy, this package or the standard library."""
    top = (module or "").partition(".")[0]
    if top in ("__main__", "__mp_main__"):
        return False
    if top in NOT_THE_USERS or top in sys.builtin_module_names:
        return True
    if hasattr(sys, "stdlib_module_names"):
        return top in sys.stdlib_module_names
    path = getattr(sys.modules.get(top), "__file__", None) or ""
    return path.startswith(sysconfig.get_paths()["stdlib"]) and "site-packages" not in path


def user_classes(kind: type) -> List[type]:
    """The classes of a type's resolution order that are the user's own."""
    return [base for base in kind.__mro__ if not is_foreign(base.__module__)]


def slots_of(value: Any) -> List[str]:
    """The ``__slots__`` of an object that have a value."""
    names = []
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__") and hasattr(value, name)]


def own_attributes(value: Any) -> Dict[str, Any]:
    """The instance attributes of an object, in ``__dict__`` or slots; of a Cell only those that are the user's."""
    attributes = dict(getattr(value, "__dict__", None) or {})
    if isinstance(value, nn.Cell):
        return {name: item for name, item in attributes.items() if is_own_name(name, type(value))}
    attributes.update((name, getattr(value, name)) for name in slots_of(value))
    return attributes


def is_own_name(name: str, kind: type = nn.Cell) -> bool:
    """Whether an attribute of a Cell is neither bookkeeping of ``nn.Cell`` nor scratch space of its own construct."""
    return name not in CELL_BOOKKEEPING and name not in ("_cell_init_args", "_func_graph_flags") \
        and name not in scratch_names(kind)


@functools.lru_cache(maxsize=None)
def scratch_names(kind: type) -> FrozenSet[str]:
    """Attributes that MindSpore's own Cells write in each call before they read them (MultiheadAttention does)."""
    functions = [vars(base).get(name) for base in kind.__mro__ if is_foreign(base.__module__)
                 for name in ("__call__", "construct")]
    return frozenset(instruction.argval for function in functions if isinstance(function, types.FunctionType)
                     for instruction in get_instructions(function) if instruction.opname == "STORE_ATTR")


class _Walk:
    """Breadth first: things met wait in line, and what they hold is met in turn."""

    def __init__(self):
        self.found = Reached()
        self._waiting: List[Tuple[str, Any]] = []
        self._containers: Dict[int, Any] = {}
        self._resolved = 0

    def meet(self, place: str, value: Any) -> None:
        """Put a value in line; simple values hold nothing."""
        if value is not None and not isinstance(value, (int, float, complex, str, bytes, Enum)):
            self._waiting.append((place, value))

    def finish(self) -> None:
        """Enter all that waits, until nothing new is met; then look up the names of the code in the owners."""
        while True:
            for place, value in self._waiting:  # grows while it is read
                self._enter(place, value)
            self._waiting = []
            self._look_names_up()
            if not self._waiting:
                return

    def _enter(self, place: str, value: Any) -> None:
        value = original(value)
        if isinstance(value, nn.Cell):
            self._enter_cell(place, value)
        elif isinstance(value, Parameter):
            self.found.parameters.setdefault(id(value), (value.name, value))
        elif isinstance(value, Tensor):
            return
        elif isinstance(value, functools.partial):
            if self._is_new(self.found.objects, place, value):
                self.meet(place, value.func)
                self._enter_container(place, value.args)
                self._enter_container(place, value.keywords)
        elif isinstance(value, types.MethodType):
            self.meet(place, value.__self__)
            self.meet(place, value.__func__)
        elif isinstance(value, types.FunctionType):
            self._enter_function(value)
        elif isinstance(value, types.ModuleType):
            self._is_new(self._of(value.__name__, self.found.modules), value.__name__, value)
        elif isinstance(value, type):
            self._is_new(self._of(value.__module__, self.found.classes), value.__qualname__, value)
        elif isinstance(value, (list, tuple, dict, set, frozenset)):
            self._enter_container(place, value)
        else:
            self._enter_object(place, value)

    def _of(self, module: Optional[str], ours: dict) -> dict:
        return self.found.foreign if is_foreign(module) else ours

    def _is_new(self, known: dict, place: str, value: Any) -> bool:
        new = id(value) not in known
        known.setdefault(id(value), (place, value))
        return new

    def _enter_cell(self, place: str, cell: nn.Cell) -> None:
        if not self._is_new(self.found.cells, place, cell):
            return
        self._is_new(self.found.classes, type(cell).__qualname__, type(cell))
        for name, parameter in cell._params.items():
            self.meet(f"{place}.{name}", parameter)
        for name, part in cell._cells.items():
            self.meet(f"{place}.{name}", part)
        for name, value in own_attributes(cell).items():
            self.meet(f"{place}.{name}", value)

    def _enter_function(self, function: types.FunctionType) -> None:
        module = function.__module__
        if not self._is_new(self._of(module, self.found.functions), function.__qualname__, function):
            return
        if is_foreign(module):
            return
        names = names_in(function)
        self.found.names.update(dict.fromkeys(names))
        for name in global_names(function):
            self.meet(name, function.__globals__[name])
        for name, value in closure_items(function):
            self.meet(name, value)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.meet(function.__qualname__, value)

    def _enter_container(self, place: str, value: Any) -> None:
        if id(value) in self._containers:
            return
        self._containers[id(value)] = value
        if isinstance(value, dict):
            for key, item in value.items():
                self.meet(f"{place}[{key!r}]", item)
        else:
            for index, item in enumerate(value):
                self.meet(f"{place}[{index}]", item)

    def _enter_object(self, place: str, value: Any) -> None:
        kind = type(value)
        if is_foreign(kind.__module__) and not isinstance(value, PLAIN_NAMESPACES):
            self._is_new(self.found.foreign, place, value)
        elif self._is_new(self.found.objects, place, value):
            self._is_new(self.found.classes, kind.__qualname__, kind)
            for name, item in own_attributes(value).items():
                self.meet(f"{place}.{name}", item)
            self.found.names.setdefault("__call__")

    def _look_names_up(self) -> None:
        """Methods, class attributes and names of modules that reached code may use, once per state of knowledge."""
        found = self.found
        state = len(found.names) + len(found.classes) + len(found.modules)
        if state == self._resolved:
            return
        self._resolved = state
        for _, kind in list(found.classes.values()):
            for base in user_classes(kind):
                self._is_new(found.classes, base.__qualname__, base)
                for name in (*found.names, "construct", "bprop"):
                    if name in vars(base):
                        self.meet(f"{base.__qualname__}.{name}", behind(vars(base)[name]))
        for _, module in list(found.modules.values()):
            for name in found.names:
                if name in vars(module):
                    self.meet(name, vars(module)[name])


def behind(value: Any) -> Any:
    """The function behind an entry of a class."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def construct_of(cell: nn.Cell) -> Any:
    """The function that a Cell runs, without binding it."""
    return original(getattr_static(cell, "construct"))
