"""Cut dx into passes, so that memory only dx needs is freed while dx runs.

A backward run either keeps what all its nodes saved or frees it all. Boundary nodes must keep theirs for dw. The nodes
right below them must not: a boundary node keeps a reference to them (it saved their output), so they would stay, and
what they saved with them. So dx runs in passes: one kind keeps, the other, with only such *freed* nodes, does not.

Where a gradient crosses from one pass to a later one, or from an *eager* boundary (one whose single kernel computes dx
and dw together) to dw, it is caught at a *target* ``(node, slot)`` and handed to the later run.
"""

from dataclasses import dataclass
from typing import Collection, Dict, List, Sequence, Tuple

from mindspore_zb.split.graph import BackwardGraph, GraphError
from mindspore_zb.split.plan import SplitPlan

Target = Tuple[int, int]
"""``(node, slot)`` that a gradient is meant for."""


@dataclass(frozen=True)
class Cut:
    """An edge whose gradient is caught instead of followed."""

    node: int
    index: int
    target: Target


@dataclass(frozen=True)
class DxPass:
    """One backward run of dx.

    Attributes:
        frees: whether the nodes of this pass give up what they saved while it runs.
        entries: targets whose caught gradient (or output gradient) starts this pass, in execution order.
        exits: targets that receive a gradient from this pass, cut edges' targets and input leaves, in execution order.
        cuts: the edges to catch before this pass runs.
    """

    frees: bool
    entries: Tuple[Target, ...]
    exits: Tuple[Target, ...]
    cuts: Tuple[Cut, ...]


def plan_passes(graph: BackwardGraph, plan: SplitPlan, freed: Collection[int] = (),
                eager: Collection[int] = ()) -> Tuple[DxPass, ...]:
    """The passes of dx, in the order to run them.

    Args:
        graph: the backward graph.
        plan: its split.
        freed: closure nodes that must free what they saved; none of them may be a boundary that dw starts from, unless
            it is in ``eager``.
        eager: boundary nodes whose weight gradients are caught during dx.

    Raises:
        GraphError: a node of ``freed`` is needed by dw.

    >>> # silu (1) under x @ w (0): the matmul keeps what it saved, silu gives it up
    >>> from mindspore_zb.split import split_backward
    >>> graph = BackwardGraph(edges=[[(1, 0), (2, 0)], [(3, 0)], [], []], roots=[(0, 0)], inputs=[3], weights=[2])
    >>> [(p.frees, p.entries, p.exits) for p in plan_passes(graph, split_backward(graph), freed=[1])]
    [(False, ((0, 0),), ((1, 0),)), (True, ((1, 0),), ((3, 0),))]
    """
    freed, eager = frozenset(freed), frozenset(eager)
    kept = {boundary.node for group in plan.groups for boundary in group.boundaries} - eager
    wrong = kept & freed
    if wrong:
        raise GraphError(f"node {min(wrong)} is where dw starts: dx must not free what it saved")
    level = _levels(graph, plan.closure, freed)
    caught = {(boundary.node, index) for group in plan.groups for boundary in group.boundaries
              if boundary.node in eager for index in boundary.weight_edges}
    return _cut_levels(graph, plan.closure, level, caught)


def _levels(graph: BackwardGraph, closure: Sequence[int], freed: Collection[int]) -> Dict[int, int]:
    """For each closure node the number of its pass: odd for freed nodes, even for the others.

    A node comes in the first pass of its kind that is not before any of its parents', so that branches side by side
    share passes and their number is that of the changes of kind along the longest path.
    """
    if not freed:
        return dict.fromkeys(closure, 0)
    waiting = dict.fromkeys(closure, 0)
    for node in closure:
        for edge in graph.edges[node]:
            if edge is not None and edge[0] in waiting:
                waiting[edge[0]] += 1
    level = {node: int(node in freed) for node in closure}
    ready = [node for node in closure if not waiting[node]]
    for node in ready:  # grows while it is read
        for edge in graph.edges[node]:
            if edge is None or edge[0] not in waiting:
                continue
            child = edge[0]
            least = level[node] + (level[node] + (child in freed)) % 2
            if least > level[child]:
                level[child] = least
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    if len(ready) != len(closure):
        raise GraphError("the backward graph has a cycle")
    return level


def _cut_levels(graph: BackwardGraph, closure: Sequence[int], level: Dict[int, int],
                caught: Collection[Tuple[int, int]]) -> Tuple[DxPass, ...]:
    """Collect for each level where gradients enter, leave and are caught."""
    leaves = {leaf for leaf in graph.inputs if leaf is not None}
    levels = len(set(level.values()))  # most graphs have one, and then only leaves and caught edges matter
    entries: Dict[int, set] = {}
    exits: Dict[int, set] = {}
    cuts: Dict[int, List[Cut]] = {}
    for root in graph.roots:
        if root[0] in level and root[0] not in leaves:
            entries.setdefault(level[root[0]], set()).add(root)
    for node in closure:
        here = level[node]
        for index, edge in enumerate(graph.edges[node]):
            if edge is None:
                continue
            if edge[0] in leaves:
                exits.setdefault(here, set()).add(edge)
            elif (caught and (node, index) in caught) or (levels > 1 and level.get(edge[0], here) != here):
                exits.setdefault(here, set()).add(edge)
                cuts.setdefault(here, []).append(Cut(node, index, edge))
                if edge[0] in level:
                    entries.setdefault(level[edge[0]], set()).add(edge)
    rank = graph.rank if graph.rank is not None else range(len(graph.edges))

    def in_order(targets) -> Tuple[Target, ...]:
        return tuple(sorted(targets, key=lambda target: (rank[target[0]], target)))

    return tuple(DxPass(here % 2 == 1, in_order(entries[here]), in_order(exits.get(here, ())),
                        tuple(cuts.get(here, ()))) for here in sorted(entries))
