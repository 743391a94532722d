"""Whether a plan covers a backward exactly: the invariants of the split, checked without repeating the split."""

from typing import Dict, List, Sequence, Tuple, Union

from mindspore_zb.split.closure import dx_closure
from mindspore_zb.split.graph import BackwardGraph, GraphError, reverse_edges
from mindspore_zb.split.groups import UnionFind
from mindspore_zb.split.plan import Group, SplitPlan

Owner = Union[str, int]
"""Who runs a node: "dx" or the number of a group."""


def check_plan(graph: BackwardGraph, plan: SplitPlan) -> None:
    """Raise :class:`GraphError` unless ``plan`` covers the backward of ``graph`` exactly.

    Checked, in this order:

    * dx and dw together run every node that a requested gradient needs, each once, and nothing else;
    * dx runs only what some input's gradient passes through;
    * every weight is in exactly the group that runs its leaf, or is unreached, and every input is in dx or unreached;
    * every edge that leaves dx for a group is declared by that group's boundaries, no other edge is, and no two groups
      share a boundary;
    * each group has exactly the roots among its nodes, and holds together.

    The order of groups and boundaries is not checked: any order gives the same gradients. Linear in the number of
    edges.

    >>> from dataclasses import replace
    >>> from mindspore_zb.split import split_backward
    >>> graph = BackwardGraph(edges=[[(1, 0), (2, 0)], [], []], roots=[(0, 0)], inputs=[1], weights=[2])
    >>> plan = split_backward(graph)
    >>> check_plan(graph, plan)
    >>> check_plan(graph, replace(plan, groups=()))
    Traceback (most recent call last):
        ...
    mindspore_zb.split.graph.GraphError: node 2 is needed by a gradient but run by neither dx nor a group
    """
    owner = _owners(plan)
    _check_coverage(graph, owner)
    _check_closure(graph, plan, owner)
    _check_leaves("weight", graph.weights, owner, plan.unreached_weights,
                  [(number, group.weights) for number, group in enumerate(plan.groups)])
    _check_leaves("input", graph.inputs, owner, plan.unreached_inputs, [("dx", [
        position for position, leaf in enumerate(graph.inputs) if owner.get(leaf) == "dx"])])
    _check_boundaries(graph, plan, owner)
    _check_roots(graph, plan, owner)
    for number, group in enumerate(plan.groups):
        _check_connected(graph, number, group)


def _name(owner: Owner) -> str:
    return "dx" if owner == "dx" else f"group {owner}"


def _owners(plan: SplitPlan) -> Dict[int, Owner]:
    """Who runs each node."""
    owner: Dict[int, Owner] = {}
    for who, nodes in (("dx", plan.closure), *((number, group.nodes) for number, group in enumerate(plan.groups))):
        for node in nodes:
            if node in owner:
                raise GraphError(f"node {node} is run by {_name(owner[node])} and again by {_name(who)}")
            owner[node] = who
    return owner


def _check_coverage(graph: BackwardGraph, owner: Dict[int, Owner]) -> None:
    """The nodes that are run are those between some root and some requested leaf."""
    parents, reached = reverse_edges(graph)
    leaves = [leaf for leaf in (*graph.inputs, *graph.weights) if leaf is not None and reached[leaf]]
    needed = {node for node, is_needed in enumerate(dx_closure(parents, leaves)) if is_needed}
    missing = needed - set(owner)
    if missing:
        raise GraphError(f"node {min(missing)} is needed by a gradient but run by neither dx nor a group")
    idle = set(owner) - needed
    if idle:
        raise GraphError(f"node {min(idle)} is run by {_name(owner[min(idle)])} though no requested gradient needs it")


def _check_closure(graph: BackwardGraph, plan: SplitPlan, owner: Dict[int, Owner]) -> None:
    """From every node of dx an edge leads on in dx, until an input."""
    inputs = set(graph.inputs)
    for node in plan.closure:
        if node not in inputs and all(edge is None or owner.get(edge[0]) != "dx" for edge in graph.edges[node]):
            raise GraphError(f"node {node} is run by dx though no input's gradient passes through it")


def _check_leaves(what: str, leaves: Sequence, owner: Dict[int, Owner], unreached: Sequence[int],
                  placed: Sequence[Tuple[Owner, Sequence[int]]]) -> None:
    """Each position is placed once: with the owner of its leaf, or among the unreached if nobody runs it."""
    told: Dict[int, str] = {}
    for place, positions in (*((_name(who), positions) for who, positions in placed), ("the unreached", unreached)):
        for position in positions:
            if position in told:
                raise GraphError(f"{what} {position} is in {told[position]} and again in {place}")
            told[position] = place
    for position, leaf in enumerate(leaves):
        right = _name(owner[leaf]) if leaf in owner else "the unreached"
        if told.pop(position, None) != right:
            raise GraphError(f"{what} {position} belongs in {right}, which does not list it")
    if told:
        raise GraphError(f"{told[min(told)]} lists {what} {min(told)}, but there are only {len(leaves)}")


def _check_boundaries(graph: BackwardGraph, plan: SplitPlan, owner: Dict[int, Owner]) -> None:
    """The declared boundary edges are those that cross from dx to the declaring group."""
    starts: Dict[int, int] = {}
    declared: Dict[Tuple[int, int], int] = {}
    for number, group in enumerate(plan.groups):
        for boundary in group.boundaries:
            node = boundary.node
            if owner.get(node) != "dx":
                raise GraphError(f"boundary {node} of group {number} is no node of dx")
            if node in starts:
                raise GraphError(f"boundary {node} is declared by group {starts[node]} and again by group {number}")
            starts[node] = number
            back = tuple(index for index, edge in enumerate(graph.edges[node])
                         if edge is not None and owner.get(edge[0]) == "dx")
            if boundary.input_edges != back:
                raise GraphError(f"edges {back} of boundary {node} lead back into dx, not {boundary.input_edges}")
            declared.update(((node, index), number) for index in boundary.weight_edges)
    for node in owner:
        for index, edge in enumerate(graph.edges[node]):
            if edge is None or edge[0] not in owner or owner[edge[0]] == owner[node]:
                continue
            if declared.pop((node, index), None) != owner[edge[0]]:
                raise GraphError(f"edge {index} of node {node} crosses from {_name(owner[node])} to "
                                 f"{_name(owner[edge[0]])} without being a declared boundary")
    if declared:
        node, index = min(declared)
        raise GraphError(f"edge {index} of boundary {node} leads to no weight of group {declared[node, index]}")


def _check_roots(graph: BackwardGraph, plan: SplitPlan, owner: Dict[int, Owner]) -> None:
    """Each group starts from each root among its nodes once."""
    right = {root: owner[root[0]] for root in graph.roots if owner.get(root[0], "dx") != "dx"}
    for number, group in enumerate(plan.groups):
        for root in group.roots:
            if right.pop(root, None) != number:
                raise GraphError(f"group {number} lists {root}, which is no root among its nodes, or lists it twice")
    if right:
        raise GraphError(f"root {min(right)} is missing from group {right[min(right)]}")


def _check_connected(graph: BackwardGraph, number: int, group: Group) -> None:
    """All nodes of the group hang together, by their own edges or by its boundaries."""
    place = {node: index for index, node in enumerate([*group.nodes, *(start.node for start in group.boundaries)])}
    sets = UnionFind(len(place))
    links: List[Tuple[int, int]] = [(node, edge[0]) for node in group.nodes for edge in graph.edges[node]
                                    if edge is not None and edge[0] in place]
    links += [(start.node, graph.edges[start.node][index][0]) for start in group.boundaries
              for index in start.weight_edges]
    for one, other in links:
        sets.union(place[one], place[other])
    apart = [node for node in place if sets.find(place[node])]
    if apart:
        raise GraphError(f"group {number} is more than one: nothing joins node {min(apart)} to the rest")
