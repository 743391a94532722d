"""Run a forward through the graph engine, or say why not."""

from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

from mindspore_zb.engines.graph.cache import find_program
from mindspore_zb.engines.graph.callables import plain_call
from mindspore_zb.engines.graph.joint import Call
from mindspore_zb.engines.graph.native import contiguous
from mindspore_zb.engines.graph.partition import CutSettings
from mindspore_zb.engines.graph.program import Program, Values
from mindspore_zb.engines.graph.recording import GraphRecording
from mindspore_zb.engines.lock import SERIAL
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import detached, is_parameter, is_tensor


@dataclass(frozen=True)
class Recorded:
    """A forward that ran: the result of ``fn``, ``(out, *aux)`` with has_aux, and its recording."""

    result: Any
    recording: GraphRecording


def record_compiled(fn: Callable[..., Any], args: tuple, kwargs: dict, inputs: Sequence[Any], weights: Sequence[Any],
                    has_aux: bool, settings: CutSettings, is_part: bool = False) -> Union[Recorded, str]:
    """Run ``fn(*args, **kwargs)`` once, compiled, and return what came of it; a str says why it cannot be compiled.

    Args:
        fn: what to run.
        args, kwargs: its arguments.
        inputs: those among them whose gradients are asked for, by identity.
        weights: the weights.
        has_aux: whether ``fn`` returns ``(out, *aux)``.
        settings: how the graph is cut.
        is_part: whether ``fn`` is part of a net, and may know only some of its ``weights``.
    """
    fn, args, kwargs = plain_call(fn, args, kwargs)
    leaves, structure = flatten((args, kwargs))
    if any(is_parameter(leaf) for leaf in leaves):
        return "an input is a Parameter"
    places = {id(leaf): place for place, leaf in enumerate(filter(is_tensor, leaves))}
    live = [weight for weight in weights if weight.requires_grad]
    call = Call(fn, structure, leaves, tuple(places[id(leaf)] for leaf in inputs), tuple(live), has_aux,
                is_part)
    try:
        entry = find_program(call, settings)
    except UnsupportedError as error:
        return str(error)
    if entry.program is None:
        return entry.reason
    program = entry.program
    with SERIAL:
        values = _run_forward(program, call)
    place_of: Dict[int, int] = {id(live[known]): place for place, known in enumerate(entry.weights)}
    has_grads = bool(program.dxs) or bool(program.groups)
    recording = GraphRecording(program, values, [place if has_grads else None for place in range(len(inputs))],
                               [place_of.get(id(weight)) for weight in weights])
    return Recorded(_result(program, values), recording)


def _run_forward(program: Program, call: Call) -> Values:
    values: Values = dict(program.parameters)
    values.update(program.constants)
    values.update(zip(program.inputs, (contiguous(detached(leaf)) for leaf in call.tensors)))
    program.forward.run(values)
    return values


def _result(program: Program, values: Values) -> Any:
    tensors = [values[name] for name in program.outs]
    main = program.main.nested(tensors[:program.main.count])
    if program.aux is None:
        return main
    aux: Tuple[Any, ...] = program.aux.nested(tensors[program.main.count:])
    return (main, *aux)
