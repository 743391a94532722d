"""Cut a joint graph into the forward, dx and groups of dw, and find what crosses from one piece to another."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import AbstractSet, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from mindspore_zb.engines.graph.joint import Joint
from mindspore_zb.engines.graph.mindir import JointGraph
from mindspore_zb.engines.graph.recompute import PRODUCTS, RECOMPUTE_LEVELS, choose_saved
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.split import BackwardGraph, Group, SplitPlan, split_backward


@dataclass(frozen=True)
class Piece:
    """Nodes that run together.

    Attributes:
        name: ``"forward"``, ``"dx"``, ``"dw0"``, ...
        nodes: its nodes.
        reads: the values it is given.
        gives: the values that others want of it.
        unpacked: for each value that it is given in a pack the value that takes its place.
    """

    name: str
    nodes: FrozenSet[str]
    reads: Tuple[str, ...]
    gives: Tuple[str, ...]
    unpacked: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupLayout:
    """What dw of one or several groups gives and holds.

    Attributes:
        weights: positions of the weights, ascending.
        values: the gradient of each.
        needs: all values that it holds from dx on.
        boundaries: the operations of dx whose results it starts from.
    """

    weights: Tuple[int, ...]
    values: Tuple[str, ...]
    needs: Tuple[str, ...]
    boundaries: Tuple[str, ...]


@dataclass(frozen=True)
class WeightPiece:
    """dw of one or several groups.

    Attributes:
        piece: what runs; without nodes if the gradients are there after dx.
        group: what it gives and holds.
    """

    piece: Piece
    group: GroupLayout


@dataclass(frozen=True)
class Partition:
    """A joint graph in pieces: the forward with all its outputs, dx, and dw in execution order.

    Attributes:
        saved_bytes: bytes that cross from the forward to dx and dw, inputs included, parameters left out.
        unsaved_bytes: the same if nothing were computed again.
    """

    forward: Piece
    dx: Piece
    dw: Tuple[WeightPiece, ...]
    saved_bytes: int = 0
    unsaved_bytes: int = 0


MOST_PIECES = 4
"""Four pieces of dw free most of what single ones would, at a fraction of the time."""

WORTH_A_PIECE = 2 ** 20
"""Bytes read and given from which on a piece of dw is worth a run, which costs some tenths of a millisecond."""


@dataclass(frozen=True)
class CutSettings:
    """How a joint graph is cut.

    Attributes:
        pieces: into how many balanced pieces the groups of dw are gathered; None for one piece per group, ``"auto"``
            for at most :data:`MOST_PIECES` that are worth a run of their own.
        recompute: what the backward computes again rather than to save it; a key of
            :data:`~mindspore_zb.engines.graph.recompute.RECOMPUTE_LEVELS`.
        directory: where pieces are kept for other processes, which makes no difference to what they are; "" for
            nowhere.
    """

    pieces: Union[int, str, None] = "auto"
    recompute: str = "none"
    directory: str = field(default="", compare=False)


def cut_joint(joint: Joint, settings: CutSettings) -> Partition:
    """Cut a joint graph.

    Raises:
        UnsupportedError: the backward has effects, or something crosses from piece to piece that is no tensor.
    """
    graph = joint.graph
    _refuse_effects_of_backward(joint)
    _refuse_repeated_writes(graph)
    forward = frozenset(graph.ancestors([*joint.outs, *graph.effects]))
    backward = graph.ancestors([*joint.dxs, *joint.dws], forward)
    loads = frozenset(node for node in backward if graph.kind(node) == "Load")  # of written parameters: read them now
    forward |= loads
    order = [node for node in graph.order if node in backward and node not in loads]
    split = _split(joint, order)
    closure = frozenset(order[node] for node in split.closure if node < len(order))
    gathered = _gather(joint, order, split.groups, settings.pieces)
    partition = _cross(joint, forward, closure, gathered, settings.recompute)
    _refuse_overwritten(graph, partition.forward)
    return partition


@dataclass(frozen=True)
class _Gathered:
    """Some groups of weights: their positions and the nodes outside of dx."""

    weights: Tuple[int, ...]
    nodes: FrozenSet[str]
    boundaries: Tuple[str, ...]


def _refuse_effects_of_backward(joint: Joint) -> None:
    graph = joint.graph
    sens = set(graph.inputs[len(joint.forward.inputs):])
    depends = set()
    for node in graph.order:
        if any(value in sens or graph.node_of(value) in depends for value in graph.reads(node)):
            depends.add(node)
    for node in graph.effects:
        if node in depends:
            raise UnsupportedError(f"its backward has an effect ({graph.kind(node)}), which would come at another time")


def _refuse_repeated_writes(graph: JointGraph) -> None:
    """A piece reads a parameter that it writes twice now before and now after the first time."""
    writes = Counter(value for node in graph.effects if graph.kind(node).startswith("Assign")
                     for value in graph.proto(node).input[:1])
    for value, count in writes.items():
        if count > 1:
            raise UnsupportedError(f"it writes a Parameter {count} times ({value.rpartition('.')[2]})")


def _refuse_overwritten(graph: JointGraph, forward: Piece) -> None:
    """Nobody may read later what is written meanwhile."""
    for value in forward.gives:
        parameter = _overwritten(graph, value)
        if parameter:
            raise UnsupportedError("a Parameter that it writes is needed afterwards as it was before "
                                   f"({parameter.rpartition('.')[2]})")


def _overwritten(graph: JointGraph, value: str) -> str:
    """The Parameter that a value is, if it is written after this value was read; "" of any other value.

    What a Load gives, or a view of it, is the Parameter itself: who reads it later reads what was written.
    """
    node = graph.node_of(value)
    while node is not None and graph.kind(node) in RECOMPUTE_LEVELS["views"] and graph.reads(node):
        node = graph.node_of(graph.reads(node)[0])
    if node is None or graph.kind(node) != "Load":
        return ""
    parameter, moment = graph.proto(node).input
    done = graph.done_before(moment)
    is_written = any(parameter in graph.proto(effect).input and effect not in done for effect in graph.effects)
    return parameter if is_written else ""


def _split(joint: Joint, order: Sequence[str]) -> SplitPlan:
    """The split of the backward part: its nodes in order, then a leaf for each gradient."""
    graph = joint.graph
    number = {node: place for place, node in enumerate(order)}
    edges: List[List[Tuple[int, int]]] = [[] for _ in order]
    is_root = [True] * len(order)
    for place, node in enumerate(order):
        for value in graph.reads(node):
            source = number.get(graph.node_of(value))
            if source is not None:
                edges[source].append((place, 0))
                is_root[place] = False

    def leaves(values: Sequence[str]) -> List[Optional[int]]:
        found: List[Optional[int]] = []
        for value in values:
            source = number.get(graph.node_of(value))
            if source is None:
                found.append(None)
                continue
            edges[source].append((len(edges), 0))
            found.append(len(edges))
            edges.append([])
        return found

    return split_backward(BackwardGraph(edges, [(place, 0) for place, root in enumerate(is_root) if root],
                                        leaves(joint.dxs), leaves(joint.dws)))


def _gather(joint: Joint, order: Sequence[str], groups: Sequence[Group],
            pieces: Union[int, str, None]) -> List[_Gathered]:
    """Gather neighbouring groups into pieces of about equal bytes, plus what needs no work at all."""
    graph = joint.graph
    found = [_Gathered(group.weights, frozenset(order[node] for node in group.nodes if node < len(order)),
                       tuple(graph.kind(order[boundary.node]) for boundary in group.boundaries)) for group in groups]
    cost = [sum(graph.nbytes(value) for node in group.nodes for value in (*graph.reads(node), node))
            + sum(graph.nbytes(joint.dws[place]) for place in group.weights) for group in found]
    if pieces == "auto":
        pieces = max(1, min(MOST_PIECES, sum(cost) // WORTH_A_PIECE))
    if pieces is not None and len(found) > pieces:
        found = [_merged(found[start:end]) for start, end in balanced(cost, pieces)]
    inside = {place for group in groups for place in group.weights}
    loose = tuple(place for place, value in enumerate(joint.dws)
                  if place not in inside and not graph.is_constant(value))
    return [*found, _Gathered(loose, frozenset(), ())] if loose else found


def _merged(groups: Sequence[_Gathered]) -> _Gathered:
    return _Gathered(tuple(sorted(place for group in groups for place in group.weights)),
                     frozenset().union(*(group.nodes for group in groups)),
                     tuple(name for group in groups for name in group.boundaries))


def balanced(costs: Sequence[float], parts: int) -> List[Tuple[int, int]]:
    """Cut a row of costs into at most ``parts`` ranges of about equal sums.

    >>> balanced([1, 1, 1, 1, 4], 2)
    [(0, 4), (4, 5)]
    """
    total, done, start, ranges = sum(costs), 0.0, 0, []
    for place, cost in enumerate(costs):
        done += cost
        left = len(costs) - place - 1
        if done >= total * (len(ranges) + 1) / parts or left < parts - len(ranges) - 1:
            ranges.append((start, place + 1))
            start = place + 1
    if start < len(costs):
        ranges.append((start, len(costs)))
    return ranges


def _cross(joint: Joint, forward: FrozenSet[str], closure: FrozenSet[str], gathered: Sequence[_Gathered],
           recompute: str) -> Partition:
    """Find what each piece reads and gives."""
    graph = joint.graph
    before = _crossing_bytes(joint, forward, [closure, *(group.nodes for group in gathered)])
    again = _computed_again(graph, forward, [closure, *(group.nodes for group in gathered)], recompute)
    closure = _with_computed_again(graph, closure, again)
    gathered = [replace(group, nodes=_with_computed_again(graph, group.nodes, again)) for group in gathered]
    after = _crossing_bytes(joint, forward, [closure, *(group.nodes for group in gathered)])
    dw = []
    wanted: Dict[str, None] = dict.fromkeys(joint.dxs)
    for number, group in enumerate(gathered):
        values = tuple(joint.dws[place] for place in group.weights)
        reads = _reads(graph, group.nodes)
        gives = _distinct(value for value in values if graph.node_of(value) in group.nodes)
        ready = _distinct(value for value in values if graph.node_of(value) not in group.nodes)
        needs = _distinct([*reads, *ready])
        wanted.update(dict.fromkeys(needs))
        dw.append(WeightPiece(Piece(f"dw{number}", group.nodes, reads, gives),
                              GroupLayout(group.weights, values, needs, group.boundaries)))
    dx = Piece("dx", closure, _reads(graph, closure), tuple(v for v in wanted if graph.node_of(v) in closure))
    wanted.update(dict.fromkeys(dx.reads))
    outs = dict.fromkeys((*joint.outs, *wanted))
    piece = Piece("forward", forward, _reads(graph, forward), tuple(v for v in outs if graph.node_of(v) in forward))
    for part in (piece, dx, *(group.piece for group in dw)):
        for value in (*part.gives, *part.reads):
            graph.meta(value)  # raises if it is no tensor
    return Partition(piece, dx, tuple(dw), after, before)


def _computed_again(graph: JointGraph, forward: FrozenSet[str], pieces: Sequence[FrozenSet[str]],
                    recompute: str) -> FrozenSet[str]:
    """The nodes of the forward that the backward computes again, so that the fewest bytes cross."""
    if not RECOMPUTE_LEVELS[recompute]:
        return frozenset()
    is_computed_again = _computing_again(graph, recompute)
    needed = _distinct(value for nodes in pieces for value in _reads(graph, nodes))
    wanted = frozenset(needed)
    inputs: Dict[str, Tuple[str, ...]] = {}
    nbytes: Dict[str, Optional[int]] = {}
    recomputable: Dict[str, bool] = {}
    effects = frozenset(graph.effects)
    waiting = list(needed)
    for value in waiting:  # grows while it is read
        if value in nbytes:
            continue
        can_be_kept = graph.tensor_proto(value) is not None and (value in wanted or not _overwritten(graph, value))
        nbytes[value] = graph.nbytes(value) if can_be_kept else None
        node = graph.node_of(value)
        if node in forward and node not in effects:
            recomputable[value] = is_computed_again(node)
            inputs[value] = graph.reads(node)
            waiting.extend(inputs[value])
    choice = choose_saved(inputs, needed, nbytes, recomputable, graph.parameters)
    return frozenset(graph.node_of(value) for value in choice.recomputed)


def _computing_again(graph: JointGraph, recompute: str) -> Callable[[str], bool]:
    """Which nodes a policy computes again where that saves bytes."""
    kinds = RECOMPUTE_LEVELS[recompute]
    if recompute != "selective":
        return lambda node: graph.kind(node) in kinds
    activations = set(graph.inputs)  # what is computed from weights alone is a weight too

    def is_activation(value: str) -> bool:
        return value in activations or graph.node_of(value) in activations

    for node in graph.order:
        if any(is_activation(value) for value in graph.reads(node)):
            activations.add(node)

    def multiplies_activations(node: str) -> bool:
        values = graph.reads(node)
        return graph.kind(node) in PRODUCTS and len(values) == 2 and all(
            is_activation(value) and graph.is_static_tensor(value) and len(graph.meta(value)[0]) > 2
            for value in values)

    return lambda node: graph.kind(node) in kinds or multiplies_activations(node)


def _with_computed_again(graph: JointGraph, nodes: FrozenSet[str], again: FrozenSet[str]) -> FrozenSet[str]:
    """A piece with what it computes again."""
    found = set(nodes)
    waiting = [graph.node_of(value) for value in _reads(graph, nodes)]
    while waiting:
        node = waiting.pop()
        if node in again and node not in found:
            found.add(node)
            waiting.extend(graph.node_of(value) for value in graph.reads(node))
    return frozenset(found)


def _crossing_bytes(joint: Joint, forward: FrozenSet[str], pieces: Sequence[FrozenSet[str]]) -> int:
    graph = joint.graph
    inputs = frozenset(graph.inputs[:len(joint.forward.inputs)])  # those behind are sens, which comes with dx
    values = _distinct(value for nodes in pieces for value in _reads(graph, nodes))
    return sum(graph.nbytes(value) for value in values if graph.node_of(value) in forward or value in inputs)


def _reads(graph: JointGraph, nodes: AbstractSet[str]) -> Tuple[str, ...]:
    return values_read(graph, [node for node in graph.order if node in nodes])


def values_read(graph: JointGraph, nodes: Sequence[str]) -> Tuple[str, ...]:
    """The values that these nodes read and none of them computes, in their order."""
    inside = frozenset(nodes)
    return _distinct(value for node in nodes for value in graph.reads(node) if graph.node_of(value) not in inside)


def _distinct(values: Iterable[str]) -> Tuple[str, ...]:
    return tuple(dict.fromkeys(values))
