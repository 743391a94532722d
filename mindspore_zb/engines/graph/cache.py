"""Which compiled program serves which call, and the calls that are known not to compile."""

import weakref
from dataclasses import dataclass
from types import MethodType
from typing import Any, Dict, List, Optional, Tuple

from mindspore_zb.engines.graph.frozen_state import FrozenState, take_frozen_state
from mindspore_zb.engines.graph.joint import Call
from mindspore_zb.engines.graph.program import Program, compile_program
from mindspore_zb.engines.graph.reached import reach
from mindspore_zb.engines.graph.reasons import reason_of
from mindspore_zb.engines.graph.refusals import why_not_compiled
from mindspore_zb.engines.lock import SERIAL
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.tensors import is_tensor

PROGRAMS_PER_CALL = 8
"""How many programs are kept for calls that differ only in what Python state they were compiled with."""


@dataclass
class Entry:
    """What came of compiling a call.

    Attributes:
        state: the Python state it was compiled with.
        program: the program, or None.
        reason: why there is none.
    """

    state: FrozenState
    program: Optional[Program]
    reason: str = ""


def find_program(call: Call, pieces: Optional[int]) -> Entry:
    """The program for a call, compiled at the first such call; what cannot be compiled is remembered too."""
    owner, key = _identity(call, pieces)
    with _LOCK:
        entries = _PROGRAMS.setdefault(owner, {}).setdefault(key, [])
        for place, entry in enumerate(entries):
            if _fits(entry):
                entries.insert(0, entries.pop(place))
                return entry
        entry = _compile(call, pieces)
        entries.insert(0, entry)
        del entries[PROGRAMS_PER_CALL:]
        return entry


def clear_programs() -> None:
    """Forget all programs."""
    with _LOCK:
        _PROGRAMS.clear()


_PROGRAMS: "weakref.WeakKeyDictionary[Any, Dict[Any, List[Entry]]]" = weakref.WeakKeyDictionary()
_LOCK = SERIAL  # compiling and running exclude each other too


def _fits(entry: Entry) -> bool:
    if entry.state.difference() is not None:
        return False
    return entry.program is None or all((tuple(parameter.shape), parameter.dtype) == meta
                                        for parameter, meta in entry.program.metas)


def _compile(call: Call, pieces: Optional[int]) -> Entry:
    state = take_frozen_state(call.fn)
    refusal = why_not_compiled(call.fn)
    if refusal is not None:
        return Entry(state, None, refusal)
    try:
        program = compile_program(call, [parameter for _, parameter in reach(call.fn).parameters.values()], pieces)
    except Exception as error:  # whatever the compiler raises; the PyNative engine does the work then
        return Entry(state, None, reason_of(error))
    changed = state.difference()
    if changed is not None:
        return Entry(take_frozen_state(call.fn), None, f"compiling it changed its {changed}")
    return Entry(state, program)


def _identity(call: Call, pieces: Optional[int]) -> Tuple[Any, Tuple[Any, ...]]:
    """``(owner, key)``: the object whose life bounds that of the program, and what tells its calls apart."""
    fn = call.fn
    owner, part = (fn.__self__, fn.__func__) if isinstance(fn, MethodType) else (fn, None)
    try:
        weakref.ref(owner)
        hash(owner)
    except TypeError as error:
        raise UnsupportedError(f"a {type(owner).__name__} cannot be remembered") from error
    leaves = tuple(("tensor", tuple(leaf.shape), str(leaf.dtype)) if is_tensor(leaf) else _constant_key(leaf)
                   for leaf in call.leaves)
    return owner, (part, call.structure.describe(), _containers(call.structure), leaves, call.asked,
                   tuple(id(weight) for weight in call.weights), call.has_aux, pieces)


def _containers(structure: Any) -> Tuple[Any, ...]:
    return (structure.container, *map(_containers, structure.children()))


def _constant_key(value: Any) -> Tuple[Any, ...]:
    if isinstance(value, float):
        return float, value.hex()  # tells 0.0 from -0.0, and finds nan again
    try:
        hash(value)
    except TypeError:
        return type(value), _Identity(value)
    return type(value), value


class _Identity:
    """A key that is equal to itself only, for what cannot be hashed."""

    def __init__(self, value: Any):
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Identity) and other._value is self._value


