"""A compiled call as plain data."""

from typing import Any, Dict, List, Set, Tuple

from mindspore_zb.engines.base import Description, GroupDescription, NodeDescription
from mindspore_zb.engines.graph.program import Program


def describe_program(program: Program, values: Dict[str, Any], remaining: Set[int]) -> Description:
    """The pieces as nodes: dx, each piece of dw, and the leaves they compute the gradients of."""
    nodes: List[NodeDescription] = [NodeDescription("dx", ())]
    dx_edges: List[Tuple[int, int]] = []

    def leaf() -> int:
        nodes.append(NodeDescription("", ()))
        return len(nodes) - 1

    inputs = []
    for _ in program.dxs:
        inputs.append(leaf())
        dx_edges.append((inputs[-1], 0))
    weights = [None] * sum(len(group.weights) for group in program.groups)
    groups = []
    for number, group in enumerate(program.groups):
        place = len(nodes)
        nodes.append(NodeDescription(f"dw{number}", ()))
        leaves = [leaf() for _ in group.weights]
        for position, number_of_leaf in zip(group.weights, leaves):
            weights[position] = number_of_leaf
        nodes[place] = NodeDescription(f"dw{number}", tuple((one, 0) for one in leaves))
        dx_edges.append((place, 0))
        held = {} if number not in remaining else {values[name].data_ptr(): values[name].nbytes
                                                   for name in group.needs
                                                   if name in values and name not in program.parameters}
        groups.append(GroupDescription(boundaries=((0, (len(dx_edges) - 1,)),), roots=(),
                                       nodes=(place, *leaves), ready=False, captured_bytes=sum(held.values()),
                                       activation_bytes=0))
    nodes[0] = NodeDescription("dx", tuple(dx_edges))
    return Description(nodes=tuple(nodes), roots=((0, 0),), inputs=tuple(inputs), weights=tuple(weights),
                       closure=(0, *inputs), eager=(), passes=1, groups=tuple(groups),
                       held_bytes=sum(group.captured_bytes for group in groups))
