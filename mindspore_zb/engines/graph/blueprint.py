"""A call compiled to plain data: how its pieces fit together, and each piece as bytes that can be loaded."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple
from uuid import uuid4

from mindspore_zb.engines.graph.checking import check_model
from mindspore_zb.engines.graph.emit import emit_piece, plain_reads, written_by
from mindspore_zb.engines.graph.joint import Call, Joint, compile_joint
from mindspore_zb.engines.graph.kernels import with_quick_kernels
from mindspore_zb.engines.graph.mindir import JointGraph, Meta
from mindspore_zb.engines.graph.native import unique_names
from mindspore_zb.engines.graph.outputs import NestedResult
from mindspore_zb.engines.graph.partition import CutSettings, GroupLayout, Partition, Piece, cut_joint
from mindspore_zb.engines.graph.reading import ModelIndex, index_model
from mindspore_zb.engines.graph.runs import PieceRuns, plan_runs
from mindspore_zb.engines.graph.simplify import simplified
from mindspore_zb.errors import UnsupportedError


@dataclass(frozen=True)
class RunCode:
    """A run of a piece.

    Attributes:
        data: a serialised and checked ``ModelProto``.
        reads, metas: the values that it takes as arguments, and their shapes and dtypes.
        gives: the values that it returns.
        last: the values that no later run of the piece reads, nor anyone else.
    """

    data: bytes
    reads: Tuple[str, ...]
    metas: Tuple[Meta, ...]
    gives: Tuple[str, ...]
    last: Tuple[str, ...]


@dataclass(frozen=True)
class PieceCode:
    """A piece, ready to be loaded.

    Attributes:
        runs: what is run, one after the other; nothing if there is nothing to compute.
        reads: the values that it takes as arguments.
        readers: for each of ``reads`` the scope of the first node that reads it, as MindSpore writes scopes.
        gives: the values that it returns.
        writes: the Parameters that it reads and writes itself.
    """

    runs: Tuple[RunCode, ...]
    reads: Tuple[str, ...]
    readers: Tuple[str, ...]
    gives: Tuple[str, ...]
    writes: Tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """What goes in and out of the pieces of a call.

    Attributes:
        inputs: the values that are the call's tensors.
        sens: the values that are the gradients of the outputs, one for each of ``outs``.
        places: for each value that is a Parameter its place among all that the call may read.
        constants: results that are constants.
        outs, dxs, differentiable, main, aux: see :class:`~mindspore_zb.engines.graph.joint.Joint`.
        out_metas: shape and dtype of each output.
        groups: the pieces of dw.
        saved_bytes, unsaved_bytes: see :class:`~mindspore_zb.engines.graph.partition.Partition`.
    """

    inputs: Tuple[str, ...]
    sens: Tuple[str, ...]
    places: Dict[str, int]
    constants: Dict[str, Any]
    outs: Tuple[str, ...]
    out_metas: Tuple[Meta, ...]
    dxs: Tuple[str, ...]
    differentiable: Tuple[int, ...]
    main: NestedResult
    aux: Optional[NestedResult]
    groups: Tuple[GroupLayout, ...]
    saved_bytes: int
    unsaved_bytes: int


@dataclass(frozen=True)
class Blueprint:
    """A compiled call without anything that belongs to this process."""

    layout: Layout
    forward: PieceCode
    dx: PieceCode
    dw: Tuple[PieceCode, ...]


def compile_blueprint(call: Call, parameters: Sequence[Any], settings: CutSettings) -> Blueprint:
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
        places = _places(joint.graph, list(by_name))
    joint, partition = with_quick_kernels(*_cut(joint, settings))
    graph = joint.graph
    runs = plan_runs(joint, partition)
    original = index_model(runs.graph.model)
    count = len(call.tensors)
    layout = Layout(
        inputs=graph.inputs[:count], sens=graph.inputs[count:], places=places, constants=_constants(joint),
        outs=joint.outs, out_metas=tuple(graph.meta(value) for value in joint.outs), dxs=joint.dxs,
        differentiable=joint.differentiable, main=joint.main, aux=joint.aux,
        groups=runs.groups, saved_bytes=partition.saved_bytes, unsaved_bytes=partition.unsaved_bytes)
    forward, dx, *dw = (_code(runs.graph, piece, original) for piece in (runs.forward, runs.dx, *runs.dw))
    return Blueprint(layout, forward, dx, tuple(dw))


def _cut(joint: Joint, settings: CutSettings) -> Tuple[Joint, Partition]:
    """The graph in pieces, with as few operations as can be had without more bytes that cross."""
    partition = cut_joint(joint, settings)
    simple = simplified(joint)
    if simple is not joint:
        simple_partition = cut_joint(simple, settings)
        if simple_partition.saved_bytes <= partition.saved_bytes:
            return simple, simple_partition
    return joint, partition


def parameter_name(value: str) -> str:
    """The name of the Parameter behind the value of a graph, which has the graph's name before it."""
    return value.split(":", 1)[1]


def _places(graph: JointGraph, names: Sequence[str]) -> Dict[str, int]:
    """The place of the Parameter behind each value.

    Raises:
        UnsupportedError: one is not known.
    """
    places = {name: place for place, name in enumerate(names)}
    for value in graph.parameters:
        if parameter_name(value) not in places:
            raise UnsupportedError(f"it reads a Parameter {parameter_name(value)!r} that is in none of its Cells")
    return {value: places[parameter_name(value)] for value in graph.parameters}


def _constants(joint: Joint) -> Dict[str, Any]:
    graph = joint.graph
    values = (*joint.outs, *joint.dxs)
    found: Dict[str, Any] = {value: graph.constant(value) for value in values if graph.is_constant(value)}
    for value in joint.dws:
        if graph.is_constant(value) and graph.constant(value).asnumpy().any():
            raise UnsupportedError("a weight has a gradient that does not depend on sens")
    return found


def _code(graph: JointGraph, piece: PieceRuns, original: ModelIndex) -> PieceCode:
    """Write a piece; ``original`` is the index of the graph, against which it is checked."""
    reads, written = plain_reads(graph, piece.whole), written_by(graph, piece.whole)
    computes = piece.whole.nodes and (piece.whole.gives or set(graph.effects) & piece.whole.nodes)
    last = _last_reads(piece)
    runs = tuple(_run_code(graph, run, last[number], original) for number, run in enumerate(piece.runs)) \
        if computes else ()
    return PieceCode(runs, reads, _readers(graph, piece, reads), piece.whole.gives, written)


def _last_reads(piece: PieceRuns) -> List[Tuple[str, ...]]:
    """For each run of a piece what only the piece itself needs, and no later run."""
    last = {value: number for number, run in enumerate(piece.runs) for value in run.reads}
    for value in (*piece.whole.reads, *piece.whole.gives):
        last.pop(value, None)
    found: List[List[str]] = [[] for _ in piece.runs]
    for value, number in last.items():
        found[number].append(value)
    return list(map(tuple, found))


def _run_code(graph: JointGraph, run: Piece, last: Tuple[str, ...], original: ModelIndex) -> RunCode:
    reads = plain_reads(graph, run)
    model = emit_piece(graph, run, f"zero_bubble_{uuid4().hex}_{run.name}")
    check_model(model, original)
    return RunCode(model.SerializeToString(), reads, tuple(graph.meta(value) for value in reads), run.gives, last)


def _readers(graph: JointGraph, piece: PieceRuns, reads: Sequence[str]) -> Tuple[str, ...]:
    pack_of = {value: graph.reads(graph.node_of(entry))[0] for run in piece.runs
               for value, entry in run.unpacked.items()}
    scopes: Dict[str, str] = {}
    for node in graph.order:
        if node in piece.whole.nodes:
            for value in graph.reads(node):
                scopes.setdefault(pack_of.get(value, value), graph.proto(node).domain)
    return tuple(scopes.get(value, "") for value in reads)
