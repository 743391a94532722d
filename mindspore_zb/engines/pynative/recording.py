"""The PyNative engine's recording of one forward pass."""

import functools
import uuid
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mindspore_zb.engines.base import BoundaryInfo, Description, GroupInfo, Recording
from mindspore_zb.engines.pynative.compiled import leaves_beside
from mindspore_zb.engines.pynative.description import describe_plan
from mindspore_zb.engines.pynative.dw import GroupState, ReadyState, WaitingState, held_bytes, run_dw
from mindspore_zb.engines.pynative.dx import Caught, leaf_grad, run_dx
from mindspore_zb.engines.pynative.lost_gradients import refusing_lost_gradients
from mindspore_zb.engines.pynative.native import (Meta, allowing_grad_inside, eager_mode, grad_edge, grad_recording,
                                                  leaf_id, node_id, output_meta, redirect_edge, run_backward)
from mindspore_zb.engines.pynative.node_kinds import JIT_GRAPH, runs_users_code, saves_nothing
from mindspore_zb.engines.pynative.observe import (HAS_SESSIONS, Intercept, Observation, behind_view,
                                                   end_recompute_session, observe_forward, recompute_session,
                                                   reentrant_arguments)
from mindspore_zb.engines.pynative.planner import Circumstances, Plan, plan_for
from mindspore_zb.engines.pynative.snapshot import Snapshot, cut_foreign_edges, restore_edges, take_snapshot
from mindspore_zb.tensors import copied


class PynativeRecording(Recording):
    """One forward pass in PyNative mode; see :class:`~mindspore_zb.engines.base.Recording`.

    Args:
        roots: where the gradient of each output enters, None for an output without history.
        inputs: the leaf aliases whose gradients are asked for.
        weights: the weights.
        since: all nodes of the forward are younger than this sequence number.
        observation: what else happened in the forward.
        free_early: see :class:`~mindspore_zb.engines.pynative.planner.Circumstances`.
    """

    def __init__(self, roots: Sequence[Optional[Tuple[Any, int]]], inputs: Sequence[Any], weights: Sequence[Any],
                 since: int, observation: Observation, free_early: bool):
        self._roots = roots
        self._inputs = inputs
        self._weights = weights
        self._since = since
        self._observation = observation
        self._free_early = free_early
        self._session = uuid.uuid4().hex if observation.recomputed and HAS_SESSIONS else None
        self._end_session = weakref.finalize(self, end_recompute_session, self._session)  # also of one that is dropped
        self._recomputes_each_run = observation.recomputed and not HAS_SESSIONS
        self._grad_inside = self._recomputes_each_run or bool(observation.hooked)  # both may ask for gradients
        self._snapshot: Optional[Snapshot] = None
        self._plan: Optional[Plan] = None
        self._states: Dict[int, GroupState] = {}

    def plan(self) -> Plan:
        """The plan for this forward; made at the first call. The snapshot's nodes are kept until dx has run."""
        if self._plan is None:
            snapshot = self._take_snapshot()
            index = {node_id(node): place for place, node in enumerate(snapshot.nodes)} \
                if self._observation.hooked else {}
            hooked = sorted({index[node_id(node)] for node in self._observation.hooked
                             if node_id(node) in index})
            self._plan = plan_for(snapshot, Circumstances(
                tuple(hooked), self._recomputes_each_run, self._free_early and not self._recomputes_each_run))
        return self._plan

    def _take_snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = take_snapshot(self._roots, [leaf_id(tensor) for tensor in self._inputs],
                                           [leaf_id(weight) for weight in self._weights], self._since)
            cut_foreign_edges(self._snapshot, self._since)
        return self._snapshot

    def groups(self) -> Tuple[GroupInfo, ...]:
        plan = self.plan()
        return tuple(GroupInfo(entry.group.weights, tuple(
            BoundaryInfo(plan.names[boundary.node], boundary.weight_edges) for boundary in entry.group.boundaries))
            for entry in plan.groups)

    def input_grads(self, sens: Sequence[Any]) -> List[Optional[Any]]:
        plan, snapshot = self.plan(), self._snapshot
        caught: Caught = {}
        for root, grad in zip(snapshot.roots, sens):
            if root is not None and grad is not None:
                caught.setdefault(root, []).append(copied(grad))  # dw reads it later, and callers reuse buffers
        leaves = {leaf: tensor for leaf, tensor in zip(snapshot.inputs, self._inputs) if leaf is not None}
        leaves.update((snapshot.weights[position], self._weights[position])
                      for entry in plan.groups if entry.ready for position in entry.group.weights)
        grads: Dict[int, Optional[Any]] = {}
        with reentrant_arguments(self._observation.reentrant), recompute_session(self._session, keep=True), \
                refusing_lost_gradients(snapshot, grads):
            captured = run_dx(snapshot.nodes, plan, caught, leaves, self._fitted_metas(), self._grad_inside)
            grads.update((leaf, leaf_grad(snapshot.nodes[leaf], tensor, caught.pop((leaf, 0), ())))
                         for leaf, tensor in leaves.items())
        self._states = {
            number: ReadyState(entry, [grads[snapshot.weights[position]] for position in entry.group.weights])
            if entry.ready else WaitingState(entry, snapshot.nodes, captured, caught)
            for number, entry in enumerate(plan.groups)}
        self._cut_after_dx(plan, snapshot)
        input_grads = [grads.get(leaf) for leaf in snapshot.inputs]
        self._forget_forward()
        if not self._states:
            self.release()
        return input_grads

    def _fitted_metas(self) -> Dict[Tuple[int, int], Meta]:
        """How the gradients of the plan's fitted targets look."""
        nodes = self._snapshot.nodes
        metas = {target: output_meta(nodes[target[0]], target[1]) for target in self._plan.fitted}
        return {target: meta for target, meta in metas.items() if meta is not None}

    @staticmethod
    def _cut_after_dx(plan: Plan, snapshot: Snapshot) -> None:
        """Leave of the closure only what dw needs; what nothing leads to any more, MindSpore frees."""
        for place in plan.below:  # before the edges that lead to them: the node of a _Function would be gone
            node = snapshot.nodes[place]
            for index in range(len(node.next_functions)):
                redirect_edge(node, index, None)
        for node, index in plan.trims:
            redirect_edge(snapshot.nodes[node], index, None)

    def weight_grads(self, groups: Sequence[int], keep_graph: bool) -> List[Tuple[int, Optional[Any]]]:
        states = [self._states[number] for number in groups]
        with recompute_session(self._session, keep=keep_graph):
            grads = run_dw(states, self._weights, keep_graph)
        if not keep_graph:
            for number in groups:
                del self._states[number]
            if not self._states:
                self.release()
        return grads

    def all_grads(self, sens: Sequence[Any],
                  keep_graph: bool) -> Tuple[List[Optional[Any]], List[Optional[Any]]]:
        snapshot = self._take_snapshot()
        leaves = [*self._inputs, *self._weights]
        grads: List[Optional[Any]] = [None] * len(leaves)
        live = [(self._roots[place], copied(grad)) for place, grad in enumerate(sens)
                if grad is not None and snapshot.roots[place] is not None]
        nodes = (*snapshot.inputs, *snapshot.weights)
        wanted = [place for place, node in enumerate(nodes) if node is not None]
        if live and wanted:
            inside = [snapshot.nodes[place] for place, name in enumerate(snapshot.names) if runs_users_code(name)]
            if self._grad_inside:
                inside += [snapshot.nodes[root[0]] for root in set(snapshot.roots) if root is not None]
            by_leaf: Dict[int, Optional[Any]] = {}
            with allowing_grad_inside(inside), reentrant_arguments(self._observation.reentrant), \
                    refusing_lost_gradients(snapshot, by_leaf):
                keep = keep_graph or all(map(saves_nothing, set(snapshot.names)))  # see Plan.keeps
                found = run_backward([root for root, _ in live], [grad for _, grad in live],
                                     [leaves[place] for place in wanted], keep, self._all_beside())
                by_leaf.update((nodes[place], grad) for place, grad in zip(wanted, found))
            for place in wanted:
                grads[place] = by_leaf[nodes[place]]
        input_grads, weight_grads = grads[:len(self._inputs)], grads[len(self._inputs):]
        if keep_graph:
            restore_edges(snapshot)
        else:
            self.release()
        return input_grads, weight_grads

    def _all_beside(self) -> List[Any]:
        """Leaf nodes that the unsplit run asks for besides inputs and weights."""
        snapshot = self._snapshot
        if JIT_GRAPH not in snapshot.names:
            return []
        wanted = [leaf for leaf in (*snapshot.inputs, *snapshot.weights) if leaf is not None]
        return [snapshot.nodes[leaf] for leaf in
                leaves_beside(snapshot.graph(), snapshot.names, range(len(snapshot.nodes)), wanted)]

    def drop(self, groups: Sequence[int]) -> None:
        """Forget what waits for these groups: nobody will ask for them."""
        for number in groups:
            self._states.pop(number, None)
        if not self._states:
            self.release()

    def held_bytes(self, groups: Sequence[int]) -> int:
        return held_bytes([self._states[number] for number in groups if number in self._states])

    def held_storages(self) -> Dict[int, int]:
        storages: Dict[int, int] = {}
        for state in self._states.values():
            storages.update(state.captured())
        return storages

    def watch_nodes(self, tell: Callable[[str], None]) -> None:
        snapshot = self._take_snapshot()
        for node, name in zip(snapshot.nodes, snapshot.names):
            if name:
                node.register_prehook(functools.partial(_tell_name, tell, name))  # goes with the node

    def describe(self) -> Description:
        return describe_plan(self.plan(), self._snapshot, self._states)

    def release(self) -> None:
        self._end_session()
        self._session = None
        self._states = {}
        self._weights = ()
        self._forget_forward()

    def _forget_forward(self) -> None:
        """Let go of what led to the graph; what dw needs is held by the group states."""
        self._roots = ()
        self._inputs = ()
        self._snapshot = None
        self._observation = None


def _tell_name(tell: Callable[[str], None], name: str, _grads: Any) -> None:
    """A prehook that tells which operation's backward comes now."""
    tell(name)


def record(fn: Callable[..., Any], args: tuple, kwargs: dict, inputs: Sequence[Any], weights: Sequence[Any],
           differentiable: Callable[[Any], Sequence[Any]], free_early: bool, intercept: Optional[Intercept] = None,
           anchors: Sequence[Any] = ()) -> PynativeRecording:
    """Run ``fn(*args, **kwargs)`` once, recorded.

    Args:
        fn: what to run.
        args, kwargs: its arguments, already rebound to aliases.
        inputs: those among them whose gradients are asked for, from :func:`~.native.leaf_alias`.
        weights: the weights.
        differentiable: takes the result of ``fn`` and returns the tensors that are differentiated, in order.
        free_early: see :class:`~mindspore_zb.engines.pynative.planner.Circumstances`.
        intercept: what is called in place of compiled blocks.
        anchors: leaves that it made by the end of the forward; they count as further weights.
    """
    with eager_mode(), observe_forward(intercept) as observation, grad_recording() as since:
        outputs = [behind_view(tensor) for tensor in differentiable(fn(*args, **kwargs))]
    roots = [grad_edge(tensor) for tensor in outputs]
    return PynativeRecording(roots, inputs, (*weights, *anchors), since.number, observation, free_early)
