"""From a snapshot to what dx and dw must do, in positions that hold for every micro-batch of the same structure."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Dict, FrozenSet, List, Sequence, Tuple

from mindspore_zb.engines.pynative.compiled import leaves_beside
from mindspore_zb.engines.pynative.node_kinds import (FUNCTION_PREFIX, JIT_GRAPH, SAVES_NO_INPUT, SPLITS_BY_EDGE, VIEW,
                                                       runs_users_code, saves_nothing)
from mindspore_zb.engines.pynative.saved import saved_outputs
from mindspore_zb.engines.pynative.snapshot import Snapshot, collector_paused
from mindspore_zb.split import BackwardGraph, DxPass, Group, SplitPlan, plan_passes, split_backward

CACHED_PLANS = 64
"""How many plans are kept, the least recently used is dropped. A training run has one per stage and shape of loop."""


@dataclass(frozen=True)
class GroupPlan:
    """How dw of one group starts.

    Attributes:
        group: the group, as the split of the whole graph found it.
        ready: whether its weights' gradients are computed whole during dx, as if they were inputs.
        kept: its boundary nodes that run again in dw, from the gradients captured in dx, in execution order.
        targets: ``(node, slot)`` whose gradient was caught during dx (from eager boundaries) or is an output's own.
        saved: ``(node, slot)`` whose outputs were saved for what dw runs; see ``saved.py``.
        beside: leaves that dw asks for besides its weights; see ``compiled.py``.
    """

    group: Group
    ready: bool = False
    kept: Tuple[int, ...] = ()
    targets: Tuple[Tuple[int, int], ...] = ()
    saved: Tuple[Tuple[int, int], ...] = ()
    beside: Tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)  # what is made of a plan is kept by its identity
class Plan:
    """Everything that is the same for all micro-batches; all numbers are places in :attr:`Snapshot.nodes`.

    Attributes:
        graph: the backward graph that is split: weights whose gradients are ready after dx count as inputs.
        split: its split.
        names: the operation of each node.
        eager: boundary nodes whose weight gradients are caught during dx.
        passes: the runs of dx.
        groups: the groups of weights, in the order in which dw runs best.
        kept: all boundary nodes that run again in dw.
        trims: edges ``(node, index)`` of these that dw does not follow; they are cut after dx.
        below: nodes that stay alive as long as a kept node does; all their edges are cut after dx.
        needs_grad_inside: nodes whose backward itself records gradients.
        fitted: targets of nodes that make each gradient fit its target; what catches it there must look like it.
        beside: leaves that dx asks for besides the inputs; see ``compiled.py``.
        keeps: whether nodes keep what they saved when dx has run them: dw runs some of them again, or none saved
            anything. MindSpore lets go of it in a queue of its own, and each compiled block of the net would wait for
            that of the one before.
    """

    graph: BackwardGraph
    split: SplitPlan
    names: Tuple[str, ...]
    eager: Tuple[int, ...]
    passes: Tuple[DxPass, ...]
    groups: Tuple[GroupPlan, ...]
    kept: Tuple[int, ...]
    trims: Tuple[Tuple[int, int], ...]
    below: Tuple[int, ...]
    needs_grad_inside: Tuple[int, ...]
    fitted: FrozenSet[Tuple[int, int]]
    beside: Tuple[int, ...]
    keeps: bool


@dataclass(frozen=True)
class Circumstances:
    """What a plan depends on besides the graph.

    Attributes:
        hooked: nodes whose activation has a hook; they must run once only.
        all_ready: whether all weight gradients must be computed during dx.
        free_early: whether dx runs in passes to free memory that cutting edges alone does not free.
    """

    hooked: Tuple[int, ...] = ()
    all_ready: bool = False
    free_early: bool = True


def plan_for(snapshot: Snapshot, circumstances: Circumstances) -> Plan:
    """The plan for this snapshot: cached by structure, else made."""
    key = snapshot.digest((circumstances,))
    with _LOCK:
        plan = _PLANS.get(key)
        if plan is not None:
            _PLANS.move_to_end(key)
            return plan
    with collector_paused():
        plan = make_plan(snapshot, circumstances)
    with _LOCK:
        _PLANS[key] = plan
        while len(_PLANS) > CACHED_PLANS:
            _PLANS.popitem(last=False)
    return plan


def clear_plans() -> None:
    """Forget all cached plans."""
    with _LOCK:
        _PLANS.clear()


_PLANS: "OrderedDict[bytes, Plan]" = OrderedDict()
_LOCK = threading.Lock()


def make_plan(snapshot: Snapshot, circumstances: Circumstances) -> Plan:
    """Split the graph and decide what dx computes for dw, and which nodes are freed early."""
    whole, names = snapshot.graph(), tuple(snapshot.names)
    first = split_backward(whole)
    kinds = frozenset(names)  # most kinds do not occur, and few scans of all nodes are needed
    users = frozenset(filter(runs_users_code, kinds))
    hooked = frozenset(circumstances.hooked)
    bare = _bare_functions(whole, names) if any(name.startswith(FUNCTION_PREFIX) for name in kinds) else frozenset()

    def is_eager(node: int) -> bool:
        return node in hooked or names[node] not in SPLITS_BY_EDGE

    def is_ready(group: Group) -> bool:
        return circumstances.all_ready or any(
            names[boundary.node] == JIT_GRAPH or (is_eager(boundary.node) and not bare.isdisjoint(
                whole.edges[boundary.node][index][0] for index in boundary.weight_edges))
            for boundary in group.boundaries)

    ready = [group for group in first.groups if is_ready(group)]
    graph, split = (_with_ready_weights(whole, ready) if ready else (whole, first))
    boundaries = [boundary.node for group in split.groups for boundary in group.boundaries]
    eager = tuple(filter(is_eager, boundaries))
    kept = tuple(sorted(set(boundaries) - set(eager), key=graph.rank.__getitem__))
    below = _nodes_below(graph, split, kept)
    # An edge of a compiled node cannot be caught (see JIT_GRAPH), and passes would have to; a bare _Function must not
    # be where a pass starts; the hook of an input would run in each pass that reaches it, and one that asks for
    # gradients fails where a pass starts.
    one_pass = (not circumstances.free_early or bool(hooked) or not bare.isdisjoint(split.closure)
                or (JIT_GRAPH in kinds and any(names[node] == JIT_GRAPH for node in split.closure)))
    freed = [] if one_pass else [node for node in below if names[node] not in SAVES_NO_INPUT]
    return Plan(
        graph=graph, split=split, names=names, eager=eager,
        passes=plan_passes(graph, split, freed, eager),
        groups=(*(GroupPlan(group, ready=True) for group in ready), *_group_plans(whole, split, names, eager)),
        kept=kept, trims=_trims(graph, split, kept), below=tuple(below),
        needs_grad_inside=_nodes_of(names, users),
        fitted=frozenset(edge for node in _nodes_of(names, users)
                         for edge in graph.edges[node] if edge is not None),
        beside=leaves_beside(graph, names, range(len(names)), [leaf for leaf in graph.inputs if leaf is not None]),
        keeps=bool(kept) or all(saves_nothing(names[node]) for node in split.closure))


def _bare_functions(graph: BackwardGraph, names: Sequence[str]) -> FrozenSet[int]:
    """The nodes of ``_Function`` that some other node than a view leads to.

    An edge to one must not be cut: it may be what the node lives by, and what its gradient looks like is not known.
    An edge from a view never is, unless another view leads to the same node.
    """
    return frozenset(edge[0] for node, edges in enumerate(graph.edges) if names[node] != VIEW for edge in edges
                     if edge is not None and names[edge[0]].startswith(FUNCTION_PREFIX))


def _nodes_of(names: Sequence[str], kinds: FrozenSet[str]) -> Tuple[int, ...]:
    return tuple(node for node, name in enumerate(names) if name in kinds) if kinds else ()


def _with_ready_weights(graph: BackwardGraph, ready: Sequence[Group]) -> Tuple[BackwardGraph, SplitPlan]:
    """The graph with the weights of these groups as further inputs, and its split."""
    positions = [position for group in ready for position in group.weights]
    moved = frozenset(positions)
    graph = replace(graph, inputs=(*graph.inputs, *(graph.weights[position] for position in positions)),
                    weights=tuple(None if position in moved else leaf for position, leaf in enumerate(graph.weights)))
    return graph, split_backward(graph)


def _nodes_below(graph: BackwardGraph, split: SplitPlan, kept: Sequence[int]) -> List[int]:
    """The closure nodes that kept boundary nodes keep alive: they saved these nodes' outputs."""
    closure, stay = set(split.closure), set(kept)
    below: Dict[int, None] = {}
    for node in kept:
        for edge in graph.edges[node]:
            if edge is not None and edge[0] in closure and edge[0] not in stay and graph.edges[edge[0]]:
                below[edge[0]] = None
    return list(below)


def _group_plans(graph: BackwardGraph, split: SplitPlan, names: Sequence[str],
                 eager: Sequence[int]) -> Tuple[GroupPlan, ...]:
    caught_at, rank = set(eager), graph.rank
    plans = []
    for group in split.groups:
        targets = set(group.roots)
        targets.update(graph.edges[boundary.node][index] for boundary in group.boundaries
                       if boundary.node in caught_at for index in boundary.weight_edges)
        kept = tuple(boundary.node for boundary in group.boundaries if boundary.node not in caught_at)
        plans.append(GroupPlan(
            group=group, kept=kept,
            targets=tuple(sorted(targets, key=lambda target: (rank[target[0]], target))),
            saved=saved_outputs(graph, names, (*kept, *group.nodes)),
            beside=leaves_beside(graph, names, group.nodes, [graph.weights[place] for place in group.weights])))
    return tuple(plans)


def _trims(graph: BackwardGraph, split: SplitPlan, kept: Sequence[int]) -> Tuple[Tuple[int, int], ...]:
    """All edges of what runs again in dw, but those that dw follows."""
    follows = {boundary.node: frozenset(boundary.weight_edges) for group in split.groups
               for boundary in group.boundaries}
    return tuple((node, index) for node in kept for index, edge in enumerate(graph.edges[node])
                 if edge is not None and index not in follows[node])
