"""Cut a piece into runs that MindSpore can execute on one thread.

MindSpore times a compiled graph of at most 100 operations both ways, through its pool of threads and on the calling
thread alone, and stays with the faster one. A larger graph always goes through the pool, which costs more for each
small operation, and most where the threads share one core.
"""

from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple

from mindspore_zb.engines.graph.mindir import JointGraph
from mindspore_zb.engines.graph.partition import Piece, values_read

MOST_OPERATIONS = 100
"""Of a graph that MindSpore may execute on one thread."""

ROOM = 12
"""Operations that are left for those that pack and unpack what crosses between the runs."""

_COST_OF_A_RUN = 10
"""What a run costs beyond its operations, in tensors handed over."""


def segments(graph: JointGraph, piece: Piece, most: int) -> Tuple[Piece, ...]:
    """A piece as pieces of at most ``most`` nodes, one to be run after the other, cut where few tensors cross.

    A piece with effects, or one that cannot be cut so, stays as it is: what reads a Parameter before and after it is
    written must stay together.
    """
    if len(piece.nodes) <= most or piece.nodes & frozenset(graph.effects) or any(
            value in graph.written for value in piece.reads):
        return (piece,)
    order = [node for node in graph.order if node in piece.nodes]
    last = _last_readers(graph, order)
    cuts = cheapest_cuts(_crossing(graph, order, last), most)
    if cuts is None:
        return (piece,)
    run_of = {node: number for number, (start, end) in enumerate(zip(cuts, cuts[1:])) for node in order[start:end]}
    gives: List[Dict[str, None]] = [{} for _ in cuts[1:]]
    for value in piece.gives:
        gives[run_of[graph.node_of(value)]][value] = None
    for value, place in last.items():
        number = run_of[graph.node_of(value)]
        if place >= cuts[number + 1]:
            gives[number][value] = None
    return tuple(Piece(f"{piece.name}_{number}", frozenset(order[start:end]), values_read(graph, order[start:end]),
                       tuple(gives[number])) for number, (start, end) in enumerate(zip(cuts, cuts[1:])))


def cheapest_cuts(crossing: Sequence[Optional[int]], most: int) -> Optional[List[int]]:
    """Where to cut a row of nodes into parts of at most ``most``, both ends included; None if it cannot be done.

    Args:
        crossing: what crosses before each node and after the last; None where it must not be cut.
        most: nodes of a part.

    >>> cheapest_cuts([0, 5, 1, 5, 5, 0], 3)
    [0, 2, 5]
    >>> cheapest_cuts([0, None, None, 0], 2) is None
    True
    """
    count = len(crossing) - 1
    costs: List[Optional[int]] = [0] + [None] * count
    before = [0] * (count + 1)
    for end in range(1, count + 1):
        here = crossing[end]
        if here is None:
            continue
        found = [(cost, start) for start in range(max(0, end - most), end)
                 for cost in costs[start:start + 1] if cost is not None]
        if found:
            cost, before[end] = min(found)
            costs[end] = cost + here + _COST_OF_A_RUN
    if costs[count] is None:
        return None
    cuts = [count]
    while cuts[-1]:
        cuts.append(before[cuts[-1]])
    return cuts[::-1]


def _last_readers(graph: JointGraph, order: Sequence[str]) -> Dict[str, int]:
    """The place of the last of these nodes that reads a value, for each value that one of them computes."""
    inside: FrozenSet[str] = frozenset(order)
    return {value: place for place, node in enumerate(order) for value in graph.reads(node)
            if graph.node_of(value) in inside}


def _crossing(graph: JointGraph, order: Sequence[str], last: Dict[str, int]) -> List[Optional[int]]:
    """How many tensors cross before each node, and after the last; None if something crosses that is no tensor."""
    place = {node: number for number, node in enumerate(order)}
    tensors, others = [0] * (len(order) + 1), [0] * (len(order) + 1)  # how much more than before the node before
    for value, end in last.items():
        counts = tensors if graph.is_static_tensor(value) else others
        counts[place[graph.node_of(value)] + 1] += 1
        counts[end + 1] -= 1
    found: List[Optional[int]] = []
    count = forbidden = 0
    for more, more_others in zip(tensors, others):
        count += more
        forbidden += more_others
        found.append(None if forbidden else count)
    return found
