"""Ask compiled sub-cells for all they can compute.

The node of a ``@jit`` sub-cell computes only what leads to a leaf that is asked for, and MindSpore keeps the backward
it compiled for one such selection and uses it for others, whose gradients are then missing: zeros, and no error. So
every run asks for a leaf below each of such a node's edges, and the selection is always the same: everything.
"""

from typing import Iterable, Sequence, Tuple

from mindspore_zb.engines.pynative.node_kinds import JIT_GRAPH
from mindspore_zb.split import BackwardGraph
from mindspore_zb.split.closure import dx_closure
from mindspore_zb.split.graph import reverse_edges


def leaves_beside(graph: BackwardGraph, names: Sequence[str], nodes: Iterable[int],
                  wanted: Sequence[int]) -> Tuple[int, ...]:
    """Leaves to ask for besides those ``wanted``, so that each compiled node that runs computes everything.

    Args:
        graph: the backward graph.
        names: the operation of each node.
        nodes: the nodes that the run may reach.
        wanted: the leaves that are asked for anyway.
    """
    compiled = [node for node in nodes if names[node] == JIT_GRAPH]
    if not compiled:
        return ()
    parents, _ = reverse_edges(graph)
    asked = list(wanted)
    while True:  # what is asked for on behalf of one node may make another one run
        runs = dx_closure(parents, asked)
        missing = {_leaf_below(graph, edge[0]): None for node in compiled if runs[node]
                   for edge in graph.edges[node] if edge is not None and not runs[edge[0]]}
        if not missing:
            return tuple(asked[len(wanted):])
        asked += missing


def _leaf_below(graph: BackwardGraph, node: int) -> int:
    """The end of the path along first edges."""
    while True:
        following = next((edge for edge in graph.edges[node] if edge is not None), None)
        if following is None:
            return node
        node = following[0]
