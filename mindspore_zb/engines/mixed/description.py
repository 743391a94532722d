"""An eager net with compiled blocks as plain data."""

from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Tuple

from mindspore_zb.engines.base import Description, GroupDescription, NodeDescription
from mindspore_zb.engines.mixed.block import BlockCall
from mindspore_zb.engines.mixed.grouping import MergedGroup

Edge = Tuple[int, int]


def describe_mixed(net: Description, calls: Sequence[BlockCall], groups: Sequence[MergedGroup],
                   count: int) -> Description:
    """The net's description, with the pieces of each block in the place of its anchor.

    Args:
        net: the net's own, whose last weights are the anchors.
        calls: the calls of blocks.
        groups: the groups that are offered.
        count: how many weights the request has.
    """
    nodes = list(net.nodes)
    weights: List[Optional[int]] = list(net.weights[:count])
    places: Dict[Tuple[int, int], int] = {}

    def leaf_of(weight: int) -> int:
        if weights[weight] is None:
            weights[weight] = len(nodes)
            nodes.append(NodeDescription("", ()))
        return weights[weight]

    for number, (call, anchor) in enumerate(zip(calls, net.weights[count:])):
        if anchor is None:
            continue
        for piece, info in enumerate(call.groups):
            edges = tuple((leaf_of(weight), 0) for weight in info.weights)
            node = NodeDescription(f"dw{piece} of {call.name}", edges)
            if not piece:
                places[number, piece] = anchor
                nodes[anchor] = node
            else:
                places[number, piece] = len(nodes)
                nodes.append(node)
                _add_edge(nodes, anchor, len(nodes) - 1)
    held = {}
    for group in groups:
        for number, pieces in group.pieces().items():
            held.update(calls[number].held(pieces))
    return replace(net, nodes=tuple(nodes), weights=tuple(weights),
                   groups=tuple(_describe_group(net, calls, group, places, nodes) for group in groups),
                   held_bytes=net.held_bytes + sum(held.values()),
                   saved_bytes=sum(call.crossing[0] for call in calls),
                   unsaved_bytes=sum(call.crossing[1] for call in calls))


def _add_edge(nodes: List[NodeDescription], anchor: int, other: int) -> None:
    """Let what leads to a block's anchor lead to another of its pieces too."""
    for place, node in enumerate(nodes):
        if any(edge is not None and edge[0] == anchor for edge in node.edges):
            nodes[place] = replace(node, edges=(*node.edges, (other, 0)))


def _describe_group(net: Description, calls: Sequence[BlockCall], group: MergedGroup,
                    places: Dict[Tuple[int, int], int], nodes: Sequence[NodeDescription]) -> GroupDescription:
    own = [net.groups[number] for number in group.net_groups]
    pieces = [(number, piece) for number, some in group.pieces().items() for piece in some]
    late = {source.call for source in group.sources if source.group is not None}
    boundaries = [boundary for one in own for boundary in one.boundaries]
    inside = [node for one in own for node in one.nodes]
    for number, piece in pieces:
        place = places[number, piece]
        inside += [place, *(edge[0] for edge in nodes[place].edges)]
        if number not in late:  # dx runs the block, and dw starts there
            boundaries += [(parent, tuple(index for index, edge in enumerate(node.edges)
                                          if edge is not None and edge[0] == place))
                           for parent, node in enumerate(nodes) if any(edge is not None and edge[0] == place
                                                                       for edge in node.edges)]
    held: Dict[int, int] = {}
    for number, piece in pieces:
        held.update(calls[number].held([piece]))
    return GroupDescription(
        boundaries=tuple(dict.fromkeys(boundaries)), roots=tuple(root for one in own for root in one.roots),
        nodes=tuple(dict.fromkeys(inside)), ready=bool(own) and not pieces and all(one.ready for one in own),
        captured_bytes=sum(one.captured_bytes for one in own) + sum(held.values()),
        activation_bytes=sum(one.activation_bytes for one in own))
