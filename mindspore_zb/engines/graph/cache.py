"""Which compiled program serves which call, and the calls that are known not to compile."""

import weakref
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any, Dict, List, Optional, Tuple

from mindspore_zb.engines.graph.blueprint import compile_blueprint
from mindspore_zb.engines.graph.fingerprint import fingerprint
from mindspore_zb.engines.graph.frozen_state import FrozenState, take_frozen_state
from mindspore_zb.engines.graph.joint import Call, is_argument, weights_key
from mindspore_zb.engines.graph.likeness import likeness
from mindspore_zb.engines.graph.partition import CutSettings
from mindspore_zb.engines.graph.patience import telling_that_it_goes_on
from mindspore_zb.engines.graph.program import Program, load_program
from mindspore_zb.engines.graph.reached import Reached, reach, root_name
from mindspore_zb.engines.graph.reasons import reason_of
from mindspore_zb.engines.graph.refusals import why_not_compiled
from mindspore_zb.engines.graph.store import keep_blueprint, stored_program
from mindspore_zb.engines.lock import SERIAL
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.tensors import is_parameter

PROGRAMS_PER_CALL = 8
"""How often calls that differ in nothing but the Python state of ``fn`` are compiled; then they fall back for good."""


@dataclass
class Entry:
    """What came of compiling a call.

    Attributes:
        state: the Python state it was compiled with; None if it holds for any.
        program: the program, or None.
        reason: why there is none.
        weights: the places in the call's weights of those that the program knows.
        shared: what it has in common with equal calls, which lives as long as one of them.
    """

    state: Optional[FrozenState]
    program: Optional[Program]
    reason: str = ""
    weights: Tuple[int, ...] = ()
    shared: Optional["_Shared"] = None


class _Shared:
    """What came of compiling the first of several equal calls."""

    def __init__(self, program: Optional[Program], reason: str):
        self.program = program
        self.reason = reason


def find_program(call: Call, settings: CutSettings) -> Entry:
    """The program for a call, compiled at the first such call; what cannot be compiled is remembered too."""
    owner, key = _identity(call, settings)
    with _LOCK:
        entries = _PROGRAMS.setdefault(owner, {}).setdefault(key, [])
        for place, entry in enumerate(entries):
            if _fits(entry):
                entries.insert(0, entries.pop(place))
                return entry
        if len(entries) < PROGRAMS_PER_CALL:
            entry = _compile(call, settings)
        else:  # it would be compiled again and again
            entry = Entry(None, None, f"its Python state changes too often: {entries[0].state.difference()}")
        entries.insert(0, entry)
        return entry


def clear_programs() -> None:
    """Forget all programs."""
    with _LOCK:
        _PROGRAMS.clear()
        _SHARED.clear()


_PROGRAMS: "weakref.WeakKeyDictionary[Any, Dict[Any, List[Entry]]]" = weakref.WeakKeyDictionary()
_SHARED: "weakref.WeakValueDictionary[Any, _Shared]" = weakref.WeakValueDictionary()
_LOCK = SERIAL  # compiling and running exclude each other too


def _fits(entry: Entry) -> bool:
    return entry.state is None or entry.state.difference() is None


def _compile(call: Call, settings: CutSettings) -> Entry:
    found = reach(call.fn, call.leaves)
    state = FrozenState(found, contents=False)
    weights = tuple(range(len(call.weights)))
    if call.is_part:
        known = {identity: number for number, identity in enumerate(found.parameters)}
        weights = tuple(sorted((place for place in weights if id(call.weights[place]) in known),
                               key=lambda place: known[id(call.weights[place])]))
        call = replace(call, weights=tuple(call.weights[place] for place in weights))
    parameters = {id(parameter): parameter for parameter in
                  (*(parameter for _, parameter in found.parameters.values()), *filter(is_parameter, call.leaves),
                   *call.weights)}
    every = tuple(parameters.values())
    places = {identity: place for place, identity in enumerate(parameters)}
    weight_places = tuple(places[id(weight)] for weight in call.weights)
    alike = likeness(call.fn, found)
    key = None if alike is None else (alike, _signature(call, settings), weight_places)
    shared = _SHARED.get(key)
    if shared is not None:
        return Entry(state, shared.program and shared.program.bound(every), shared.reason, weights, shared)
    name = fingerprint(call, found, weight_places, settings) if settings.directory else None
    program, refusal = _make_program(call, every, settings, name, found)
    changed = state.difference()
    if changed is not None:
        state = take_frozen_state(call.fn, call.leaves)
        return Entry(state, None, refusal or f"compiling it changed its {changed}")
    entry = Entry(state, program, refusal, weights)
    if key is not None and (program is None or not program.writes):
        entry.shared = _SHARED[key] = _Shared(program and program.unbound(), refusal)
    return entry


def _make_program(call: Call, parameters: Tuple[Any, ...], settings: CutSettings,
                  name: Optional[str], found: Reached) -> Tuple[Optional[Program], str]:
    """``(program, "")``, or ``(None, reason)``; ``name`` is that of the call in the directory of the settings."""
    if name:
        program = stored_program(settings.directory, name, parameters)
        if program is not None:
            return program, ""
    refusal = why_not_compiled(call.fn, call.leaves, found)
    if refusal is not None:
        return None, refusal
    try:
        with telling_that_it_goes_on(root_name(call.fn)):
            blueprint = compile_blueprint(call, parameters, settings)
            program = load_program(blueprint, parameters)
    except Exception as error:  # whatever the compiler raises; the PyNative engine does the work then
        return None, reason_of(error)
    if name:
        keep_blueprint(settings.directory, name, blueprint)
    return program, ""


def _identity(call: Call, settings: CutSettings) -> Tuple[Any, Tuple[Any, ...]]:
    """``(owner, key)``: the object whose life bounds that of the program, and what tells its calls apart."""
    fn = call.fn
    owner, part = (fn.__self__, fn.__func__) if isinstance(fn, MethodType) else (fn, None)
    try:
        weakref.ref(owner)
        hash(owner)
    except TypeError as error:
        raise UnsupportedError(f"a {type(owner).__name__} cannot be remembered") from error
    return owner, (part, _signature(call, settings), call.is_part, call.key or weights_key(call.weights))


def _signature(call: Call, settings: CutSettings) -> Tuple[Any, ...]:
    """What tells calls of equal callables apart."""
    leaves = tuple(("tensor", tuple(leaf.shape), str(leaf.dtype)) if is_argument(leaf) else _constant_key(leaf)
                   for leaf in call.leaves)
    return call.structure.signature(), leaves, call.asked, call.has_aux, settings


def _constant_key(value: Any) -> Tuple[Any, ...]:
    if isinstance(value, float):
        return float, value.hex()  # tells 0.0 from -0.0, and finds nan again
    if is_parameter(value):
        return _Identity(value), tuple(value.shape), str(value.dtype)
    try:
        hash(value)
    except TypeError:
        return type(value), _Identity(value)
    return type(value), value


class _Identity:
    """A key that is equal to itself only, for what cannot be hashed or compared."""

    def __init__(self, value: Any):
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Identity) and other._value is self._value


