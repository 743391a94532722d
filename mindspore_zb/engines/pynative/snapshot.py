"""MindSpore's autograd graph as plain lists: the nodes, and a signature of how they hang together.

Micro-batches of one net have equal signatures, so a plan made for one is good for all (see ``planner.py``).
"""

import contextlib
import gc
import hashlib
from array import array
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from mindspore_zb.engines.pynative.native import is_python_node_type, node_id, redirect_edge
from mindspore_zb.engines.pynative.node_kinds import FUNCTION_PREFIX, JIT_GRAPH, function_prefix
from mindspore_zb.split import BackwardGraph

_NO_EDGE, _END_OF_NODE, _FIRST_SLOT = -1, -2, -2
_LEAF = ""  # leaves are known by their role, and are named after tensors


@dataclass(frozen=True)
class Snapshot:
    """The backward graph of one forward pass.

    Attributes:
        nodes: MindSpore's grad nodes; a node's place in this list is its number.
        flat: for each node its edges, ended by -2: the child, or -1 for none; where the edge leads to another slot of
            it than the first, ``-2 - slot`` follows.
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
        for value in self.flat:
            if value >= 0:
                row.append((value, 0))
            elif value == _NO_EDGE:
                row.append(None)
            elif value == _END_OF_NODE:
                edges.append(row)
                row = []
            else:
                row[-1] = (row[-1][0], _FIRST_SLOT - value)
        return BackwardGraph(edges, [root for root in self.roots if root is not None], self.inputs, self.weights,
                             self._rank())

    def _rank(self) -> List[int]:
        """MindSpore runs the youngest ready node first; leaves come last."""
        return [-node._sequence_nr() if name else 1 for node, name in zip(self.nodes, self.names)]


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
    with collector_paused():
        flat, names, foreign = _walk(nodes, index, since)
    return Snapshot(nodes, flat, names, tuple(places), tuple(map(index.get, inputs)), tuple(map(index.get, weights)),
                    foreign)


def cut_foreign_edges(snapshot: Snapshot, since: int) -> None:
    """Make sure that no backward run follows an edge to a node that was there before the forward."""
    for node in snapshot.foreign:
        for place, (child, _) in enumerate(node.next_functions):
            if child is not None and child._sequence_nr() <= since:
                redirect_edge(node, place, None)


def restore_edges(snapshot: Snapshot) -> None:
    """Put back the edges that a backward run took away.

    MindSpore drops each edge along which no gradient came, such as one to integers. A later run would not find its
    way along it, and would not run the nodes above it either, though they may be where dw starts. No edge can be made
    to lead to a ``_Function``.
    """
    for node, name, edges in zip(snapshot.nodes, snapshot.names, snapshot.graph().edges):
        if name == JIT_GRAPH:
            continue  # all it could lead to was asked for, and its edges must not be touched
        for index, (edge, (child, _)) in enumerate(zip(edges, node.next_functions)):
            if edge is not None and child is None and not snapshot.names[edge[0]].startswith(FUNCTION_PREFIX):
                redirect_edge(node, index, snapshot.nodes[edge[0]], edge[1])


def _walk(nodes: List[Any], index: Dict[int, int], since: int) -> Tuple[array, List[str], Tuple[Any, ...]]:
    """Append to ``nodes`` and ``index`` all that can be reached; returns the fields ``flat``, ``names``, ``foreign``.

    One plain loop with few calls: graphs have ten thousands of nodes, and this runs for every micro-batch.
    """
    flat: List[int] = []
    append, place_of, found = flat.append, index.setdefault, len(nodes)
    leaves = []
    foreign = []
    for number, node in enumerate(nodes):  # grows while it is read
        edges = node.next_functions
        if not edges:
            leaves.append(number)
        for child, slot in edges:
            if child is None:
                append(_NO_EDGE)
                continue
            identity = child._unique_id()
            place = place_of(identity, found)
            if place == found:
                if child._sequence_nr() <= since:
                    del index[identity]
                    foreign.append(node)
                    append(_NO_EDGE)
                    continue
                found += 1
                nodes.append(child)
            append(place)
            if slot:
                append(_FIRST_SLOT - slot)
        append(_END_OF_NODE)
    names = _names(nodes)
    for number in leaves:
        names[number] = _LEAF
    return array("q", flat), names, tuple(foreign)


def _names(nodes: Sequence[Any]) -> List[str]:
    """The operation of each node; all ``@jit`` graphs get one name, and users' classes, which may be called like an
    operation, are marked."""
    kinds = list(set(map(type, nodes)))
    names = list(map(kinds[0].name, nodes)) if len(kinds) == 1 else [node.name() for node in nodes]
    if any(JIT_GRAPH in name for name in set(names)):
        names = [JIT_GRAPH if JIT_GRAPH in name else name for name in names]
    if any(map(is_python_node_type, kinds)):
        names = [function_prefix(type(node)) + name if is_python_node_type(type(node)) else name
                 for name, node in zip(names, nodes)]
    return names


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Walking and planning make many tuples and no cycles; one full collection in between costs more than all of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
