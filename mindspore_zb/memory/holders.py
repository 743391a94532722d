"""Who holds an object: the way from a variable, through attributes and containers, down to it.

Python's own books are asked (``gc.get_referrers``), which works with the collector off as well; they do not know the
variables of running functions, so these are looked through too.
"""

import gc
import os
import sys
import types
from collections import deque
from itertools import islice
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from mindspore_zb.memory.frames import frames_from, local_variables

DEPTH = 8
"""How many steps up from an object the search goes."""
WAYS = 16
"""How many ways to one object are told at most."""

_OWN = os.path.dirname(__file__) + os.sep
_NAMELESS = "something that no variable names"
_CYCLE = "a cycle of references, which only Python's garbage collector frees"


class _Link:
    """How one object refers to another.

    Attributes:
        owner: the object that refers; None where the way begins, at a variable.
        text: the variable, or what is written behind the owner's own text: ``.history``, ``[...]``.
        note: what it is in words.
    """

    __slots__ = ("owner", "text", "note")

    def __init__(self, owner: Any, text: str, note: str):
        self.owner, self.text, self.note = owner, text, note


Part = Tuple[Any, _Link]
"""An object, and how another one refers to it."""


def holders_of(objects: Sequence[Any]) -> List[Tuple[str, ...]]:
    """Who holds each of these objects, in words; the sequence that they are given in does not count.

    The way ends at a variable: of a module, of a running function, or of a closure; or at a class. What is held through
    more than :data:`DEPTH` objects has no name here.

    Example:
        >>> class Trainer:
        ...     pass
        >>> def train(losses):
        ...     trainer = Trainer()
        ...     trainer.history = [losses.pop()]
        ...     return holders_of([trainer.history[0]])
        >>> train([object()])
        [('trainer.history[...] (Trainer.history, a list; trainer is a local variable of train)',)]
    """
    search = _Search(objects)
    return [search.words(thing) for thing in objects]


def held_in_python(objects: Sequence[Any]) -> List[Any]:
    """Those that a Python object or a running function refers to; the sequence that they are given in does not count.

    >>> kept = object()
    >>> held_in_python([object(), kept]) == [kept]
    True
    """
    wanted = frozenset(map(id, objects))
    held = {id(thing) for thing, _ in _in_running_functions(wanted)}
    for referrer in gc.get_referrers(*objects) if objects else ():
        if referrer is not objects and not _is_own_code(referrer):
            held.update(wanted.intersection(map(id, gc.get_referents(referrer))))
    return [thing for thing in objects if id(thing) in held]


class _Search:
    """The objects above some objects, and how they refer to them.

    Args:
        objects: where the search begins.
    """

    def __init__(self, objects: Sequence[Any]):
        self._links: Dict[int, List[_Link]] = {}
        known = {id(thing) for thing in objects}
        level, self._alive = list(objects), [objects]  # what is alive keeps its address
        for _ in range(DEPTH):
            above: List[Any] = []
            for thing, link in self._referrers(level, {id(above), id(level), *map(id, self._alive)}):
                self._links.setdefault(id(thing), []).append(link)
                if link.owner is not None and id(link.owner) not in known:
                    known.add(id(link.owner))
                    above.append(link.owner)
            if not above:
                break
            self._alive.append(above)
            level = above

    @staticmethod
    def _referrers(level: List[Any], ours: "set[int]") -> List[Part]:
        """How the objects of a level are referred to, apart from the lists of ``ours``."""
        wanted = frozenset(map(id, level))
        found = list(_in_running_functions(wanted))
        for referrer in gc.get_referrers(*level):
            if id(referrer) not in ours and not isinstance(referrer, _Link) and not _is_own_code(referrer):
                found.extend(_parts_of(referrer, wanted))
        return found

    def words(self, thing: Any) -> Tuple[str, ...]:
        """Who holds the object, each way once."""
        ways = tuple(dict.fromkeys(islice(self._ways(thing, "", (), frozenset({id(thing)})), WAYS)))
        return ways or (_CYCLE if self._is_in_cycle(thing) else _NAMELESS,)

    def _ways(self, thing: Any, below: str, notes: Tuple[str, ...], passed: frozenset) -> Iterator[str]:
        for link in self._links.get(id(thing), ()):
            if link.owner is None:
                end = f"{link.text} is {link.note}" if notes else link.note
                yield f"{link.text}{below} ({'; '.join([*([', '.join(notes)] if notes else []), end])})"
            elif id(link.owner) not in passed:
                yield from self._ways(link.owner, link.text + below, (link.note, *notes), passed | {id(link.owner)})

    def _is_in_cycle(self, thing: Any) -> bool:
        """Whether all that leads to it is itself held by something found: without a variable, that is a cycle."""
        waiting, passed = [thing], {id(thing)}
        for held in waiting:
            links = self._links.get(id(held))
            if not links:
                return False
            for link in links:
                if id(link.owner) not in passed:
                    passed.add(id(link.owner))
                    waiting.append(link.owner)
        return True


def _in_running_functions(wanted: frozenset) -> Iterator[Part]:
    for last in sys._current_frames().values():
        for frame in frames_from(last):
            if not _is_own_code(frame):
                yield from _parts_of_frame(frame, wanted)


def _parts_of_frame(frame: types.FrameType, wanted: frozenset) -> List[Part]:
    if frame.f_locals is frame.f_globals:
        return []  # found as a module
    with local_variables(frame) as variables:
        return [(value, _Link(None, name, f"a local variable of {frame.f_code.co_name}"))
                for name, value in variables.items() if id(value) in wanted]


def _is_own_code(thing: Any) -> bool:
    """Whether it is a frame or generator of these tools."""
    frame = getattr(thing, "gi_frame", None) if isinstance(thing, types.GeneratorType) else thing
    return isinstance(frame, types.FrameType) and frame.f_code.co_filename.startswith(_OWN)


def _parts_of(referrer: Any, wanted: frozenset) -> List[Part]:
    """How an object refers to those wanted."""
    if isinstance(referrer, dict):
        return _parts_of_dict(referrer, wanted)
    if isinstance(referrer, types.CellType):
        return _parts_of_closure(referrer)
    frame = getattr(referrer, "gi_frame", getattr(referrer, "cr_frame", referrer))
    if isinstance(frame, types.FrameType):
        return [] if frame is referrer else _parts_of_frame(frame, wanted)
    if isinstance(referrer, (list, tuple, set, frozenset, deque)):
        note = f"a {type(referrer).__name__}"
        return [(value, _Link(referrer, "[...]", note)) for value in referrer if id(value) in wanted]
    attributes = _attributes(referrer)
    named = [(value, _Link(referrer, f".{name}", f"{type(referrer).__name__}.{name}"))
             for name, value in attributes.items() if id(value) in wanted]
    if named:
        return named
    return [(value, _Link(referrer, "", f"a {type(referrer).__name__}"))
            for value in gc.get_referents(referrer) if id(value) in wanted and value is not attributes]


def _attributes(thing: Any) -> Dict[str, Any]:
    """The attributes of an object itself, those in slots included."""
    found = dict(thing.__dict__) if isinstance(getattr(thing, "__dict__", None), dict) else {}
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            descriptor = vars(kind).get(name)
            if isinstance(descriptor, types.MemberDescriptorType):
                try:
                    found[name] = descriptor.__get__(thing, type(thing))
                except AttributeError:  # never set
                    continue
    return found


def _parts_of_dict(referrer: dict, wanted: frozenset) -> List[Part]:
    items = [(key, value) for key, value in list(referrer.items()) if id(value) in wanted]
    if "__name__" in referrer and "__builtins__" in referrer:
        return [(value, _Link(None, key, f"a variable of module {referrer['__name__']}")) for key, value in items]
    owners = [owner for owner in gc.get_referrers(referrer) if _has_attributes(owner, referrer)]
    if not owners:
        return [(value, _Link(referrer, "[...]", f"a {type(referrer).__name__}")) for _, value in items]
    return [(value, _Link(None, f"{owner.__qualname__}.{key}", "a class attribute") if isinstance(owner, type) else
             _Link(owner, f".{key}", f"{type(owner).__name__}.{key}")) for key, value in items for owner in owners]


def _has_attributes(owner: Any, attributes: dict) -> bool:
    """Whether ``attributes`` is the ``__dict__`` of ``owner``; that of a class is only seen through a proxy."""
    if isinstance(owner, type):
        return any(found is attributes for found in gc.get_referents(owner))
    return not isinstance(owner, (dict, list, tuple)) and getattr(owner, "__dict__", None) is attributes


def _parts_of_closure(cell: types.CellType) -> List[Part]:
    parts = []
    for cells in gc.get_referrers(cell):
        if isinstance(cells, tuple):
            for function in gc.get_referrers(cells):
                if isinstance(function, types.FunctionType) and function.__closure__ is cells:
                    name = function.__code__.co_freevars[[entry is cell for entry in cells].index(True)]
                    parts.append((cell.cell_contents, _Link(None, name, f"a variable that {function.__qualname__} "
                                                                        "encloses")))
    return parts
