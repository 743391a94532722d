"""Run a forward through the graph engine, or say why not."""

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from mindspore_zb.engines.graph.cache import find_program
from mindspore_zb.engines.graph.callables import plain_call
from mindspore_zb.engines.graph.joint import Call, is_argument
from mindspore_zb.engines.graph.native import contiguous
from mindspore_zb.engines.graph.partition import CutSettings
from mindspore_zb.engines.graph.program import Program, Values
from mindspore_zb.engines.graph.recording import GraphRecording
from mindspore_zb.engines.lock import SERIAL
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import detached


@dataclass(frozen=True)
class Recorded:
    """A forward that ran.

    Attributes:
        result: the result of ``fn``, ``(out, *aux)`` with has_aux.
        recording: its recording, for :attr:`weights`.
        weights: the places among the weights given of those that it knows.
    """

    result: Any
    recording: GraphRecording
    weights: Tuple[int, ...]


def record_compiled(fn: Callable[..., Any], args: tuple, kwargs: dict, inputs: Sequence[Any], weights: Sequence[Any],
                    has_aux: bool, settings: CutSettings) -> Union[Recorded, str]:
    """Run ``fn(*args, **kwargs)`` once, compiled, and return what came of it; a str says why it cannot be compiled.

    Args:
        fn: what to run.
        args, kwargs: its arguments.
        inputs: those among them whose gradients are asked for, by identity.
        weights: the weights.
        has_aux: whether ``fn`` returns ``(out, *aux)``.
        settings: how the graph is cut.
    """
    places = tuple(place for place, weight in enumerate(weights) if weight.requires_grad)
    recorded = _record(fn, args, kwargs, inputs, tuple(weights[place] for place in places), has_aux, settings)
    if isinstance(recorded, str):
        return recorded
    program, values, has_grads, known = recorded
    place_of: Dict[int, int] = {places[place]: number for number, place in enumerate(known)}
    recording = GraphRecording(program, values, _wanted(inputs, has_grads),
                               [place_of.get(place) for place in range(len(weights))])
    return Recorded(_result(program, values), recording, tuple(range(len(weights))))


def record_part(fn: Callable[..., Any], args: tuple, kwargs: dict, inputs: Sequence[Any], weights: Tuple[Any, ...],
                key: Any, settings: CutSettings) -> Union[Recorded, str]:
    """The same of a part of a net, which may know only some of the net's ``weights``, that all ask for a gradient;
    ``key`` is the :func:`~mindspore_zb.engines.graph.joint.weights_key` of the weights."""
    recorded = _record(fn, args, kwargs, inputs, weights, False, settings, is_part=True, key=key)
    if isinstance(recorded, str):
        return recorded
    program, values, has_grads, known = recorded
    recording = GraphRecording(program, values, _wanted(inputs, has_grads), range(len(known)))
    return Recorded(_result(program, values), recording, known)


def _wanted(inputs: Sequence[Any], has_grads: bool) -> List[Optional[int]]:
    return [place if has_grads else None for place in range(len(inputs))]


def _record(fn: Callable[..., Any], args: tuple, kwargs: dict, inputs: Sequence[Any], weights: Tuple[Any, ...],
            has_aux: bool, settings: CutSettings, is_part: bool = False, key: Any = None) -> Any:
    """``(program, values, whether it has gradients, places of the weights it knows)``, or why there is none."""
    fn, args, kwargs = plain_call(fn, args, kwargs)
    leaves, structure = flatten((args, kwargs))
    places = {id(leaf): place for place, leaf in enumerate(filter(is_argument, leaves))}
    call = Call(fn, structure, leaves, tuple(places[id(leaf)] for leaf in inputs), weights, has_aux, is_part, key)
    try:
        entry = find_program(call, settings)
    except UnsupportedError as error:
        return str(error)
    if entry.program is None:
        return entry.reason
    program = entry.program
    with SERIAL:
        values = _run_forward(program, call)
    return program, values, bool(program.layout.dxs) or bool(program.layout.groups), entry.weights


def _run_forward(program: Program, call: Call) -> Values:
    values: Values = dict(program.parameters)
    values.update(program.layout.constants)
    values.update(zip(program.layout.inputs, (contiguous(detached(leaf)) for leaf in call.tensors)))
    program.forward.run(values)
    return values


def _result(program: Program, values: Values) -> Any:
    tensors = [values[name] for name in program.layout.outs]
    main = program.layout.main.nested(tensors[:program.layout.main.count])
    if program.layout.aux is None:
        return main
    aux: Tuple[Any, ...] = program.layout.aux.nested(tensors[program.layout.main.count:])
    return (main, *aux)
