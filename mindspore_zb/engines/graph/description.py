"""A compiled call as plain data."""

from typing import Dict, List, Optional, Sequence, Tuple

from mindspore_zb.engines.base import Description, GroupDescription, NodeDescription
from mindspore_zb.engines.graph.blueprint import Layout


def describe_layout(layout: Layout, wanted_inputs: Sequence[Optional[int]],
                    wanted_weights: Sequence[Optional[int]], held: Sequence[int], held_together: int) -> Description:
    """The pieces as nodes, and the leaves whose gradients they compute.

    Args:
        layout: what goes in and out of the pieces.
        wanted_inputs, wanted_weights: place of each input and weight of the request in the program, or None.
        held: bytes that each piece of dw holds.
        held_together: bytes that they hold together, each storage once.
    """
    nodes: List[NodeDescription] = [NodeDescription("dx", ())]
    edges: List[Tuple[int, int]] = []
    position = {place: number for number, place in enumerate(wanted_weights) if place is not None}

    def leaf() -> int:
        nodes.append(NodeDescription("", ()))
        return len(nodes) - 1

    inputs = tuple(None if place is None else leaf() for place in wanted_inputs)
    edges.extend((node, 0) for node in inputs if node is not None)
    weights: Dict[int, int] = {}
    groups = []
    for number, group in enumerate(layout.groups):
        piece = len(nodes)
        nodes.append(NodeDescription(f"dw{number}", ()))
        leaves = {position[place]: leaf() for place in group.weights}
        weights.update(leaves)
        nodes[piece] = NodeDescription(f"dw{number}", tuple((node, 0) for node in leaves.values()))
        edges.append((piece, 0))
        groups.append(GroupDescription(boundaries=((0, (len(edges) - 1,)),), roots=(),
                                       nodes=(piece, *leaves.values()), ready=False, captured_bytes=held[number],
                                       activation_bytes=0))
    nodes[0] = NodeDescription("dx", tuple(edges))
    return Description(nodes=tuple(nodes), roots=((0, 0),), inputs=inputs,
                       weights=tuple(weights.get(number) for number in range(len(wanted_weights))),
                       closure=(0, *(node for node in inputs if node is not None)), eager=(), passes=1,
                       groups=tuple(groups), held_bytes=held_together, saved_bytes=layout.saved_bytes,
                       unsaved_bytes=layout.unsaved_bytes)
