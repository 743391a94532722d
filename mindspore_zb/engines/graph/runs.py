"""What MindSpore runs of each piece: one graph or several, that hand each other and other pieces tensors in packs."""

from dataclasses import dataclass, replace
from typing import List, Mapping, Tuple

from mindspore_zb.engines.graph.joint import Joint
from mindspore_zb.engines.graph.mindir import JointGraph
from mindspore_zb.engines.graph.packing import in_packs, pack_small
from mindspore_zb.engines.graph.partition import GroupLayout, Partition, Piece
from mindspore_zb.engines.graph.segments import MOST_OPERATIONS, ROOM, segments

MOST_NODES = MOST_OPERATIONS - ROOM
"""Of a piece that is run as one graph."""


@dataclass(frozen=True)
class PieceRuns:
    """A piece as it is run.

    Attributes:
        whole: what it takes and gives as a whole; its nodes are those of all runs.
        runs: what is run, one after the other.
    """

    whole: Piece
    runs: Tuple[Piece, ...]


@dataclass(frozen=True)
class Runs:
    """A partition as it is run.

    Attributes:
        graph: the joint graph with what packs and unpacks.
        forward, dx, dw: the pieces.
        groups: what the pieces of dw hold, packs included.
    """

    graph: JointGraph
    forward: PieceRuns
    dx: PieceRuns
    dw: Tuple[PieceRuns, ...]
    groups: Tuple[GroupLayout, ...]


def plan_runs(joint: Joint, partition: Partition) -> Runs:
    """Cut the pieces into runs, and pack what crosses between those."""
    pieces = (partition.forward, partition.dx, *(part.piece for part in partition.dw))
    parts = [segments(joint.graph, piece, MOST_NODES) for piece in pieces]
    packed = pack_small(joint.graph, [run for runs in parts for run in runs], {*joint.outs, *joint.dxs, *joint.dws})
    found: List[PieceRuns] = []
    start = 0
    for piece, runs in zip(pieces, parts):
        found.append(_gathered(piece, packed.runs[start:start + len(runs)], packed.packs))
        start += len(runs)
    groups = tuple(replace(part.group, needs=in_packs(part.group.needs, packed.packs)) for part in partition.dw)
    forward, dx, *dw = found
    return Runs(packed.graph, forward, dx, tuple(dw), groups)


def _gathered(piece: Piece, runs: Tuple[Piece, ...], packs: Mapping[str, str]) -> PieceRuns:
    """The runs of a piece; what crosses between them only is not seen from outside."""
    nodes = piece.nodes.union(*(run.nodes for run in runs))
    return PieceRuns(replace(piece, nodes=nodes, reads=in_packs(piece.reads, packs),
                              gives=in_packs(piece.gives, packs)), runs)
