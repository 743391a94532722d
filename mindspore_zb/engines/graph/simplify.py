"""A joint graph with fewer operations and the same values: fewer transposes and reshapes, each of which copies."""

from dataclasses import replace

from mindspore_zb.engines.graph.joint import Joint
from mindspore_zb.engines.graph.layout import merge_reshapes, merge_transposes
from mindspore_zb.engines.graph.parts import move_parts_together
from mindspore_zb.engines.graph.products import absorb_transposes
from mindspore_zb.engines.graph.rewriting import Rewriting
from mindspore_zb.engines.graph.rows import work_on_matrices


def simplified(joint: Joint) -> Joint:
    """The same joint graph with fewer operations, where there are some to leave out."""
    if joint.graph is joint.forward:
        return joint
    rewriting = Rewriting(joint.graph)
    for change in (absorb_transposes, merge_transposes, move_parts_together, work_on_matrices, merge_reshapes):
        change(rewriting)
    if not rewriting.is_changed:
        return joint
    graph = rewriting.done()
    outs, dxs, dws = graph.result_entries()
    return replace(joint, graph=graph, outs=tuple(outs), dxs=tuple(dxs), dws=tuple(dws))
