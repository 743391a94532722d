"""A compiled call: its pieces, ready to run, and what goes in and out of each."""

import itertools
from dataclasses import dataclass, replace
from typing import Any, Dict, Optional, Sequence, Tuple

from mindspore_zb.engines.graph.checking import check_model
from mindspore_zb.engines.graph.emit import emit_piece, plain_reads, written_by
from mindspore_zb.engines.graph.joint import Call, Joint, compile_joint
from mindspore_zb.engines.graph.mindir import JointGraph, Meta
from mindspore_zb.engines.graph.native import LoadedGraph, unique_names
from mindspore_zb.engines.graph.outputs import NestedResult
from mindspore_zb.engines.graph.partition import CutSettings, Partition, Piece, WeightPiece, cut_joint
from mindspore_zb.engines.graph.reading import ModelIndex, index_model
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.tensors import zeros

_NAMES = itertools.count()

Values = Dict[str, Any]
"""The tensors of one micro-batch by the names of their values."""


class CompiledPiece:
    """A piece that can be run.

    Args:
        graph: the joint graph that it is part of.
        piece: the piece.
        parameters: all Parameters by the names of their values.
        original: the index of the joint graph, for the check of the piece.

    Attributes:
        reads: the values that it is given; Parameters that some piece writes are bound to it and not among them.
        gives: the values that it computes for others.
        written: the Parameters that it writes.
        readers: for each value of ``reads`` the scope of the first node that reads it, as MindSpore writes scopes.
    """

    def __init__(self, graph: JointGraph, piece: Piece, parameters: Dict[str, Any], original: ModelIndex):
        self.reads = plain_reads(graph, piece)
        self.gives = piece.gives
        self.written = written_by(graph, piece)
        self.readers: Dict[str, str] = {}
        for node in (node for node in graph.order if node in piece.nodes):
            for value in graph.reads(node):
                self.readers.setdefault(value, graph.proto(node).domain)
        self._run: Optional[LoadedGraph] = None
        if piece.nodes and (piece.gives or set(graph.effects) & piece.nodes):
            model = emit_piece(graph, piece, f"zero_bubble{next(_NAMES)}_{piece.name}")
            check_model(model, original)
            written = {parameter_name(value): parameters[value] for value in self.written}
            arguments = [zeros(*graph.meta(value)) for value in self.reads]
            self._run = LoadedGraph(model.SerializeToString(), arguments, written)

    def run(self, values: Values) -> None:
        """Compute what it gives from ``values``, and add it there."""
        if self._run is not None:
            values.update(zip(self.gives, self._run(tuple([values[name] for name in self.reads]))))


@dataclass(frozen=True)
class Program:
    """A compiled call.

    Attributes:
        inputs: the values that are the call's tensors.
        sens: the values that are the gradients of the outputs, one for each of ``outs``.
        parameters: the Parameters that the pieces read, by value.
        constants: results that are constants.
        outs, dxs, differentiable, main, aux: see :class:`~mindspore_zb.engines.graph.joint.Joint`.
        out_metas: shape and dtype of each output.
        forward, dx, dw: the pieces.
        partition: which nodes and values they have.
    """

    inputs: Tuple[str, ...]
    sens: Tuple[str, ...]
    parameters: Dict[str, Any]
    constants: Dict[str, Any]
    outs: Tuple[str, ...]
    out_metas: Tuple[Meta, ...]
    dxs: Tuple[str, ...]
    differentiable: Tuple[int, ...]
    main: NestedResult
    aux: Optional[NestedResult]
    forward: CompiledPiece
    dx: CompiledPiece
    dw: Tuple[CompiledPiece, ...]
    partition: Partition

    @property
    def groups(self) -> Tuple[WeightPiece, ...]:
        """What each piece of dw holds and gives."""
        return self.partition.dw

    @property
    def writes(self) -> bool:
        """Whether a piece writes Parameters: those are bound to it once and for all."""
        return any(piece.written for piece in (self.forward, self.dx, *self.dw))


@dataclass(frozen=True)
class Template:
    """A program without its Parameters, which serves every equal call with other ones.

    Attributes:
        program: the program.
        places: for each value that is a Parameter its place among all that the call may read.
    """

    program: Program
    places: Tuple[Tuple[str, int], ...]

    @staticmethod
    def of(program: Program, parameters: Sequence[Any]) -> "Template":
        """The template of a program that was compiled with these Parameters."""
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        return Template(replace(program, parameters={}),
                        tuple((value, places[id(parameter)]) for value, parameter in program.parameters.items()))

    def bound(self, parameters: Sequence[Any]) -> Program:
        """The program with other Parameters in the places of the first ones."""
        return replace(self.program, parameters={value: parameters[place] for value, place in self.places})


def compile_program(call: Call, parameters: Sequence[Any], settings: CutSettings) -> Program:
    """Compile a call and cut it.

    Args:
        call: the call.
        parameters: every Parameter that ``fn`` may read, the weights included.
        settings: how it is cut.

    Raises:
        UnsupportedError: the graph cannot be cut.
        Exception: whatever MindSpore raises if it cannot compile ``fn``.
    """
    with unique_names(parameters) as by_name:
        joint = compile_joint(call)
    graph = joint.graph
    found = _find_parameters(graph, by_name)
    partition = cut_joint(joint, settings)
    original = index_model(graph.model)
    forward, dx, *dw = (CompiledPiece(graph, piece, found, original) for piece in
                        (partition.forward, partition.dx, *(group.piece for group in partition.dw)))
    count = len(call.tensors)
    return Program(
        inputs=graph.inputs[:count], sens=graph.inputs[count:], parameters=found,
        constants=_constants(joint), outs=joint.outs, out_metas=tuple(graph.meta(value) for value in joint.outs),
        dxs=joint.dxs, differentiable=joint.differentiable, main=joint.main, aux=joint.aux,
        forward=forward, dx=dx, dw=tuple(dw), partition=partition)


def parameter_name(value: str) -> str:
    """The name of the Parameter behind the value of a graph, which has the graph's name before it."""
    return value.split(":", 1)[1]


def _find_parameters(graph: JointGraph, by_name: Dict[str, Any]) -> Dict[str, Any]:
    """The Parameter behind each value.

    Raises:
        UnsupportedError: one is not known.
    """
    for value in graph.parameters:
        if parameter_name(value) not in by_name:
            raise UnsupportedError(f"it reads a Parameter {parameter_name(value)!r} that is in none of its Cells")
    return {value: by_name[parameter_name(value)] for value in graph.parameters}


def _constants(joint: Joint) -> Dict[str, Any]:
    graph = joint.graph
    values = (*joint.outs, *joint.dxs)
    found: Dict[str, Any] = {value: graph.constant(value) for value in values if graph.is_constant(value)}
    for value in joint.dws:
        if graph.is_constant(value) and graph.constant(value).asnumpy().any():
            raise UnsupportedError("a weight has a gradient that does not depend on sens")
    return found
