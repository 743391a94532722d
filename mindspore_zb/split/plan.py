"""The whole split: a backward graph in, a plan for dx and dw out."""

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from mindspore_zb.split.closure import dx_closure
from mindspore_zb.split.graph import BackwardGraph, GraphError, reverse_edges
from mindspore_zb.split.groups import UnionFind, weight_side


@dataclass(frozen=True)
class Boundary:
    """A node that dx runs and dw starts from.

    Attributes:
        node: the boundary node.
        weight_edges: indices of its edges that lead to a weight of the group; dw keeps them.
        input_edges: indices of its edges that lead back into the closure; dw must not follow them.
    """

    node: int
    weight_edges: Tuple[int, ...]
    input_edges: Tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Weights whose gradients are computed together, and all that this takes.

    Attributes:
        weights: positions in ``BackwardGraph.weights``, ascending.
        boundaries: where dw starts, in execution order.
        roots: ``(node, slot)`` outside the closure that receive an output's gradient directly, without repetition.
        nodes: the nodes outside the closure that dw runs, leaves included, ascending.
    """

    weights: Tuple[int, ...]
    boundaries: Tuple[Boundary, ...]
    roots: Tuple[Tuple[int, int], ...]
    nodes: Tuple[int, ...]


@dataclass(frozen=True)
class SplitPlan:
    """What dx runs, and the groups of dw in execution order.

    Attributes:
        closure: the nodes dx runs, input leaves included, ascending.
        groups: see :class:`Group`; no node and no weight is in two of them.
        unreached_inputs: positions of inputs the outputs do not depend on: their gradient is zero.
        unreached_weights: the same for weights.
    """

    closure: Tuple[int, ...]
    groups: Tuple[Group, ...]
    unreached_inputs: Tuple[int, ...]
    unreached_weights: Tuple[int, ...]


def split_backward(graph: BackwardGraph) -> SplitPlan:
    """Split ``graph`` into dx and groups of dw.

    The result depends on the graph alone: not on the order of ``weights`` or ``inputs`` (beyond the positions that
    name them), nor on hashing. Linear in the number of edges.

    Raises:
        GraphError: a weight is left without a group, or has two.

    Source: the zero-bubble split of Qi et al., arXiv 2401.10241, section 2, here for arbitrary graphs.

    >>> # x @ w: one MatMul (0) with the input leaf (1) and the weight leaf (2)
    >>> graph = BackwardGraph(edges=[[(1, 0), (2, 0)], [], []], roots=[(0, 0)], inputs=[1], weights=[2])
    >>> plan = split_backward(graph)
    >>> plan.closure
    (0, 1)
    >>> plan.groups[0].boundaries
    (Boundary(node=0, weight_edges=(1,), input_edges=(0,)),)
    """
    parents, reached = reverse_edges(graph)
    inputs = [leaf for leaf in graph.inputs if leaf is not None and reached[leaf]]
    weights = [leaf for leaf in graph.weights if leaf is not None and reached[leaf]]
    inside = dx_closure(parents, inputs)
    nodes, boundaries, sets = weight_side(parents, inside, weights)
    groups = _groups(graph, inside, nodes, boundaries, sets)
    plan = SplitPlan(
        closure=tuple(node for node, is_inside in enumerate(inside) if is_inside),
        groups=groups,
        unreached_inputs=_unreached(graph.inputs, reached),
        unreached_weights=_unreached(graph.weights, reached))
    _check_weights(graph, plan)
    return plan


def _unreached(leaves: Sequence, reached: Sequence[bool]) -> Tuple[int, ...]:
    return tuple(position for position, leaf in enumerate(leaves) if leaf is None or not reached[leaf])


def _groups(graph: BackwardGraph, inside: Sequence[bool], nodes: Sequence[int],
            boundaries: Dict[int, List[int]], sets: UnionFind) -> Tuple[Group, ...]:
    """Gather nodes, boundaries and roots by set; order groups and boundaries by execution."""
    rank = graph.rank if graph.rank is not None else range(len(graph.edges))
    position = {leaf: place for place, leaf in enumerate(graph.weights) if leaf is not None}
    members: Dict[int, List[int]] = {}
    for node in nodes:
        members.setdefault(sets.find(node), []).append(node)
    starts: Dict[int, List[int]] = {}
    for node in boundaries:
        starts.setdefault(sets.find(node), []).append(node)
    on_weight_side = set(nodes)
    roots: Dict[int, List[Tuple[int, int]]] = {}
    for root in sorted(set(graph.roots)):
        if root[0] in on_weight_side:
            roots.setdefault(sets.find(root[0]), []).append(root)

    groups = []
    for name, group_nodes in members.items():
        first = sorted(starts.get(name, ()), key=lambda node: (rank[node], node))
        group_roots = roots.get(name, [])
        group = Group(
            weights=tuple(sorted(position[node] for node in group_nodes if node in position)),
            boundaries=tuple(_boundary(graph, inside, node, boundaries[node]) for node in first),
            roots=tuple(group_roots),
            nodes=tuple(sorted(group_nodes)))
        begin = min([rank[node] for node in first] + [rank[node] for node, _ in group_roots])
        groups.append((begin, name, group))
    return tuple(group for _, _, group in sorted(groups, key=lambda entry: entry[:2]))


def _boundary(graph: BackwardGraph, inside: Sequence[bool], node: int, weight_edges: List[int]) -> Boundary:
    return Boundary(node, tuple(weight_edges), tuple(
        index for index, edge in enumerate(graph.edges[node]) if edge is not None and inside[edge[0]]))


def _check_weights(graph: BackwardGraph, plan: SplitPlan) -> None:
    """Every weight has exactly one group or is proved unreachable."""
    count = [0] * len(graph.weights)
    for group in plan.groups:
        for place in group.weights:
            count[place] += 1
    for place in plan.unreached_weights:
        count[place] += 1
    for place, times in enumerate(count):
        if times != 1:
            raise GraphError(f"weight {place} is in {times} groups instead of one: the graph is malformed")
