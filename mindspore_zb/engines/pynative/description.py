"""A plan, and what is known of it in one forward, as an engine-independent :class:`Description`; and the plain history
of tensors."""

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from mindspore_zb.engines.base import Description, GroupDescription, NodeDescription, Shape
from mindspore_zb.engines.pynative.dw import GroupState, held_bytes
from mindspore_zb.engines.pynative.native import Meta, grad_edge, leaf_id, node_id, output_meta
from mindspore_zb.engines.pynative.planner import GroupPlan, Plan
from mindspore_zb.engines.pynative.snapshot import Snapshot, take_snapshot


def describe_plan(plan: Plan, snapshot: Optional[Snapshot], states: Mapping[int, GroupState]) -> Description:
    """The plan as plain data.

    Args:
        plan: the plan.
        snapshot: the forward's snapshot, for the shapes; None once dx has run.
        states: what the groups hold after dx, by number.
    """
    inputs, weights = _leaves(plan)
    return Description(
        nodes=tuple(NodeDescription(name, tuple(plan.graph.edges[node]), _shapes(snapshot, node))
                    for node, name in enumerate(plan.names)),
        roots=tuple(plan.graph.roots), inputs=inputs, weights=weights, closure=plan.split.closure, eager=plan.eager,
        passes=len(plan.passes),
        groups=tuple(_describe_group(entry, states.get(number)) for number, entry in enumerate(plan.groups)),
        held_bytes=held_bytes(states.values()))


@dataclass(frozen=True)
class History:
    """The backward graph behind some tensors, as MindSpore has it.

    Attributes:
        nodes: the operations and leaves; a leaf has the name of its Parameter.
        roots: ``(node, slot)`` of each tensor, None for one without history.
        leaves: number, shape and dtype of each leaf, None for a shape that MindSpore does not tell.
    """

    nodes: Tuple[NodeDescription, ...]
    roots: Tuple[Optional[Tuple[int, int]], ...]
    leaves: Tuple[Tuple[int, Optional[Meta]], ...]


def describe_history(tensors: Sequence[Any], parameters: Sequence[Any] = ()) -> History:
    """The graph behind tensors, to its leaves.

    Args:
        tensors: the tensors.
        parameters: Parameters that are called by their names of today; MindSpore knows that of the day they were made.
    """
    names: Dict[Optional[int], str] = {leaf_id(parameter): parameter.name for parameter in parameters}
    snapshot = take_snapshot([grad_edge(tensor) for tensor in tensors], (), (), since=BEFORE_ALL)
    nodes: List[NodeDescription] = []
    leaves: List[Tuple[int, Optional[Meta]]] = []
    for number, (name, edges) in enumerate(zip(snapshot.names, snapshot.graph().edges)):
        if not edges:
            node = snapshot.nodes[number]
            name = names.get(node_id(node)) or node.name()
            leaves.append((number, output_meta(node, 0)))
        nodes.append(NodeDescription(name, tuple(edges), _shapes(snapshot, number)))
    return History(tuple(nodes), snapshot.roots, tuple(leaves))


BEFORE_ALL = -1
"""A sequence number that every node exceeds."""


def _leaves(plan: Plan) -> Tuple[Tuple[Optional[int], ...], Tuple[Optional[int], ...]]:
    """Inputs and weights as they were asked for: a plan counts weights that are ready after dx as inputs."""
    moved = [position for entry in plan.groups if entry.ready for position in entry.group.weights]
    count = len(plan.graph.inputs) - len(moved)
    weights = list(plan.graph.weights)
    for position, leaf in zip(moved, plan.graph.inputs[count:]):
        weights[position] = leaf
    return tuple(plan.graph.inputs[:count]), tuple(weights)


def _shapes(snapshot: Optional[Snapshot], node: int) -> Tuple[Optional[Shape], ...]:
    if snapshot is None:
        return ()
    shapes = []
    while True:
        found = output_meta(snapshot.nodes[node], len(shapes))
        if found is None:
            return tuple(shapes)
        shapes.append(found[0])


def _describe_group(entry: GroupPlan, state: Optional[GroupState]) -> GroupDescription:
    group = entry.group
    return GroupDescription(
        boundaries=tuple((boundary.node, boundary.weight_edges) for boundary in group.boundaries), roots=group.roots,
        nodes=group.nodes, ready=entry.ready,
        captured_bytes=sum(state.captured().values()) if state else 0,
        activation_bytes=sum(state.activations().values()) if state else 0)
