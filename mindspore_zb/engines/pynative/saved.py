"""Which outputs the forward saved for a piece of the backward, as far as the kinds of its nodes tell.

MindSpore gives no sight of what a grad node saved, but the shapes of what its edges lead to. Not seen are: inputs that
need no gradient and so have no edge (masks, indices, constants), small results of an operation's own (the statistics of
a norm, the mask of a dropout), and what is inside of compiled, custom and recomputed nodes. An output that was cut out
of a larger one counts with its own size.
"""

from typing import Dict, Sequence, Tuple

from mindspore_zb.engines.pynative.node_kinds import READS_INPUTS, SAME_STORAGE, SAVES_NO_INPUT, SAVES_OUTPUT
from mindspore_zb.split import BackwardGraph

Output = Tuple[int, int]
"""``(node, slot)``: one output of the operation behind a node."""


def saved_outputs(graph: BackwardGraph, names: Sequence[str], nodes: Sequence[int]) -> Tuple[Output, ...]:
    """The outputs that ``nodes`` hold, each storage once, in the order of ``nodes``; parameters do not count.

    >>> # silu(x) @ w, w a leaf: the matmul holds the output of silu
    >>> graph = BackwardGraph([[(1, 0), (2, 0)], [(3, 0)], [], []], roots=[(0, 0)], inputs=[3], weights=[2])
    >>> saved_outputs(graph, ["MatMul", "SiLU", "", ""], [0])
    ((1, 0),)
    """
    inputs = frozenset(graph.inputs)
    found: Dict[Output, None] = {}
    for node in nodes:
        if not graph.edges[node]:
            continue
        name = names[node]
        outputs = [(node, 0)] if name in SAVES_OUTPUT else []
        if name not in SAVES_NO_INPUT:
            places = READS_INPUTS.get(name)
            outputs += [edge for place, edge in enumerate(graph.edges[node])
                        if edge is not None and (places is None or place in places)]
        for output in outputs:
            base = _storage(graph, names, output)
            if graph.edges[base[0]] or base[0] in inputs:  # else a parameter, which lives anyway
                found[base] = None
    return tuple(found)


def _storage(graph: BackwardGraph, names: Sequence[str], output: Output) -> Output:
    """The output whose storage this one is a view of, or itself."""
    while names[output[0]] in SAME_STORAGE:
        edge = graph.edges[output[0]][0]
        if edge is None:
            break
        output = edge
    return output
