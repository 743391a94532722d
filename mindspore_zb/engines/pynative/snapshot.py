"""MindSpore's autograd graph as plain lists: the nodes, and a signature of how they hang together.

Micro-batches of one net have equal signatures, so a plan made for one is good for all (see ``planner.py``).
"""

import contextlib
import gc
import hashlib
from array import array
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from mindspore_zb.engines.pynative.native import LEAF_SEQUENCE, is_python_node, node_id, redirect_edge
from mindspore_zb.engines.pynative.node_kinds import FUNCTION_PREFIX, JIT_GRAPH
from mindspore_zb.split import BackwardGraph

_NO_EDGE, _END_OF_NODE = -1, -2


@dataclass(frozen=True)
class Snapshot:
    """The backward graph of one forward pass.

    Attributes:
        nodes: MindSpore's grad nodes; a node's place in this list is its number.
        flat: for each node its edges as ``child, slot`` (or -1 for none), ended by -2.
        names: the operation of each node; ``@jit`` graphs all have one name, leaves that of their role.
        roots: number and slot of each output's node, None for an output without history.
        inputs, weights: number of each one's leaf node, None where the graph does not hold it.
        foreign: nodes with an edge to a node that is older than the forward.
    """

    nodes: List[Any]
    flat: array
    names: List[str]
    roots: Tuple[Optional[Tuple[int, int]], ...]
    inputs: Tuple[Optional[int], ...]
    weights: Tuple[Optional[int], ...]
    foreign: Tuple[Any, ...]

    def digest(self, extra: Sequence[Any] = ()) -> bytes:
        """Equal for equal graphs, whatever the addresses of their nodes."""
        seen = hashlib.blake2b(self.flat.tobytes(), digest_size=32)
        seen.update("\0".join(self.names).encode())
        seen.update(repr((self.roots, self.inputs, self.weights, tuple(extra))).encode())
        return seen.digest()

    def graph(self) -> BackwardGraph:
        """The same for :mod:`mindspore_zb.split`."""
        edges: List[list] = []
        row: List[Optional[Tuple[int, int]]] = []
        values = iter(self.flat)
        for value in values:
            if value == _END_OF_NODE:
                edges.append(row)
                row = []
            else:
                row.append(None if value == _NO_EDGE else (value, next(values)))
        return BackwardGraph(edges, [root for root in self.roots if root is not None], self.inputs, self.weights,
                             self._rank())

    def _rank(self) -> List[int]:
        """MindSpore runs the youngest ready node first; leaves come last."""
        sequences = (node._sequence_nr() for node in self.nodes)
        return [1 if sequence == LEAF_SEQUENCE else -sequence for sequence in sequences]


def take_snapshot(roots: Sequence[Optional[Tuple[Any, int]]], inputs: Sequence[Optional[int]],
                  weights: Sequence[Optional[int]], since: int) -> Snapshot:
    """Walk the graph from its roots, breadth first.

    Args:
        roots: ``(node, slot)`` of each output, None for one without history.
        inputs, weights: ids of their leaf nodes, None for those that ask for no gradient.
        since: nodes not younger than this sequence number were there before the forward; they are not followed.
    """
    index: Dict[int, int] = {}
    nodes: List[Any] = []
    places: List[Optional[Tuple[int, int]]] = []
    for root in roots:
        if root is None or root[0]._sequence_nr() <= since:
            places.append(None)
            continue
        place = index.setdefault(node_id(root[0]), len(nodes))
        if place == len(nodes):
            nodes.append(root[0])
        places.append((place, root[1]))
    with _collector_paused():
        flat, foreign = _walk(nodes, index, since)
        names = _names(nodes, flat)
    return Snapshot(nodes, flat, names, tuple(places), tuple(map(index.get, inputs)), tuple(map(index.get, weights)),
                    foreign)


def cut_foreign_edges(snapshot: Snapshot, since: int) -> None:
    """Make sure that no backward run follows an edge to a node that was there before the forward."""
    for node in snapshot.foreign:
        for place, (child, _) in enumerate(node.next_functions):
            if child is not None and child._sequence_nr() <= since:
                redirect_edge(node, place, None)


def _walk(nodes: List[Any], index: Dict[int, int], since: int) -> Tuple[array, Tuple[Any, ...]]:
    """Append to ``nodes`` and ``index`` all that can be reached; a plain loop, for graphs of ten thousands of nodes."""
    flat: List[int] = []
    append = flat.append
    foreign = []
    for node in nodes:  # grows while it is read
        for child, slot in node.next_functions:
            if child is None:
                append(_NO_EDGE)
                continue
            identity = child._unique_id()
            place = index.get(identity)
            if place is None:
                if child._sequence_nr() <= since:
                    foreign.append(node)
                    append(_NO_EDGE)
                    continue
                place = index[identity] = len(nodes)
                nodes.append(child)
            append(place)
            append(slot)
        append(_END_OF_NODE)
    return array("q", flat), tuple(foreign)


def _names(nodes: Sequence[Any], flat: array) -> List[str]:
    names = []
    for node in nodes:
        name = node.name()
        if node._sequence_nr() == LEAF_SEQUENCE:
            name = ""  # leaves are known by their role, and are named after tensors
        elif JIT_GRAPH in name:
            name = JIT_GRAPH
        elif is_python_node(node):
            name = FUNCTION_PREFIX + name
        names.append(name)
    return names


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """A walk makes many short-lived tuples and no cycles; a full collection in between costs more than the walk."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
