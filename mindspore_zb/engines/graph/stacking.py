"""How MindSpore writes the operations that stack tensors along a new first axis, and that take a stack apart."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, Optional

from mindspore import nn, ops

from mindspore_zb.engines.graph.mindir import REFERENCE, JointGraph
from mindspore_zb.engines.graph.native import LoadedGraph, export_graph, mindir
from mindspore_zb.tensors import zeros


@dataclass(frozen=True)
class Stacking:
    """The nodes that stack two tensors and take a stack of two apart, and their primitives by name.

    Attributes:
        gather: makes a tuple of the tensors.
        stack: reads the tuple.
        unstack: reads a stack.
        entry: takes one tensor out of what ``unstack`` gives.
        index: the constant that says which.
        primitives: the primitives of all these.
    """

    gather: Any
    stack: Any
    unstack: Any
    entry: Any
    index: Any
    primitives: Dict[str, Any]

    def primitive(self, node: Any) -> Any:
        """The primitive of one of the nodes."""
        return self.primitives[node.op_type[len(REFERENCE):]]


def for_count(primitive: Any, count: int) -> Any:
    """The primitive of a :class:`Stacking` for so many tensors."""
    own = mindir.PrimitiveProto()
    own.CopyFrom(primitive)
    for attribute in own.attribute:
        if attribute.name in ("num", "N"):
            attribute.i = count
    return own


@lru_cache(maxsize=None)
def stacking(dtype: Any) -> Optional[Stacking]:
    """None if the device cannot stack tensors of this dtype, as not every device has a kernel for each."""
    arguments = [zeros((2, 3), dtype), zeros((3,), dtype), zeros((3,), dtype)]
    try:
        model = export_graph(_Stacking(), arguments)
        LoadedGraph(model.SerializeToString(), arguments)
        graph = JointGraph(model)
        stacked, entry, _ = graph.result()
    except Exception:  # pylint: disable=broad-except  # whatever MindSpore raises; then it is done without
        return None
    stack, entry = graph.proto(stacked), graph.proto(entry)
    unstack, index = (graph.proto(name) for name in entry.input)
    return Stacking(graph.proto(stack.input[0]), stack, unstack, entry, index, dict(graph.primitives))


class _Stacking(nn.Cell):
    """Takes a stack of two tensors apart, and stacks two."""

    def construct(self, stack, one, other):
        return ops.stack((one, other)), *ops.unstack(stack)[::-1]  # backwards, else they are returned as one
