"""The abstract backward graph that both engines hand to the split."""

from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from mindspore_zb.errors import ZeroBubbleError

Edge = Optional[Tuple[int, int]]
"""``(child, slot)``, or None where the framework keeps a place for an input that gets no gradient."""


class GraphError(ZeroBubbleError, ValueError):
    """A graph, or a plan for it, that contradicts itself."""


@dataclass(frozen=True)
class BackwardGraph:
    """A backward graph with its roots and leaves. Nodes are the integers ``0 .. len(edges) - 1``.

    Attributes:
        edges: for each node its edges, in the framework's order; ``None`` marks a place without a gradient.
        roots: ``(node, slot)`` of each output, repetitions allowed.
        inputs: leaf node of each input whose gradient is asked for; None for one the outputs do not depend on.
        weights: leaf node of each weight; None as above.
        rank: execution order of the unsplit backward, lower first; only used to order groups. Default: node number.
    """

    edges: Sequence[Sequence[Edge]]
    roots: Sequence[Tuple[int, int]]
    inputs: Sequence[Optional[int]]
    weights: Sequence[Optional[int]]
    rank: Optional[Sequence[int]] = None

    def check(self) -> None:
        """Raise :class:`GraphError` naming the first edge, root, leaf or rank that cannot be."""
        size = len(self.edges)
        for node, edges in enumerate(self.edges):
            for index, edge in enumerate(edges):
                if edge is not None and not (0 <= edge[0] < size and edge[1] >= 0):
                    raise GraphError(f"edge {index} of node {node} leads to {edge}, which is no node of this graph")
        for node, slot in self.roots:
            if not (0 <= node < size and slot >= 0):
                raise GraphError(f"root ({node}, {slot}) is no node of this graph")
        for what, leaves in (("input", self.inputs), ("weight", self.weights)):
            first: Dict[int, int] = {}
            for position, leaf in enumerate(leaves):
                if leaf is None:
                    continue
                if not 0 <= leaf < size or any(edge is not None for edge in self.edges[leaf]):
                    raise GraphError(f"{what} leaf {leaf} is no leaf node of this graph")
                if first.setdefault(leaf, position) != position:
                    raise GraphError(f"{what}s {first[leaf]} and {position} share leaf {leaf}: each needs its own")
        shared = set(self.inputs) & set(self.weights) - {None}
        if shared:
            raise GraphError(f"leaf {min(shared)} is both an input and a weight")
        if self.rank is not None and len(self.rank) != size:
            raise GraphError(f"rank of {len(self.rank)} nodes for a graph of {size}")


def reverse_edges(graph: BackwardGraph) -> Tuple[List[List[Tuple[int, int]]], List[bool]]:
    """Reverse the part of the graph that the unsplit backward runs: step 1 of the split.

    Returns:
        ``(parents, reached)``: for each node its ``(parent, index of the parent's edge)``, and for each node whether
        some root leads to it. Nodes that no root leads to are nobody's parents.
    """
    edges = graph.edges
    parents: List[List[Tuple[int, int]]] = [[] for _ in edges]
    reached = [False] * len(edges)
    queue = []
    for node, _ in graph.roots:
        if not reached[node]:
            reached[node] = True
            queue.append(node)
    for node in queue:  # grows while it is read
        for index, edge in enumerate(edges[node]):
            if edge is not None:
                child = edge[0]
                parents[child].append((node, index))
                if not reached[child]:
                    reached[child] = True
                    queue.append(child)
    return parents, reached
