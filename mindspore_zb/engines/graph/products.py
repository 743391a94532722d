"""Matrix products read and give transposed matrices as they lie, instead of having them transposed before or after."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Optional, Tuple

from mindspore import nn, ops

from mindspore_zb.engines.graph.mindir import JointGraph, dtype_of
from mindspore_zb.engines.graph.native import LoadedGraph, export_graph
from mindspore_zb.engines.graph.rewriting import Rewriting
from mindspore_zb.tensors import zeros

_WITH_FLAGS = ("MatMul", "BatchMatMul")
_WITHOUT_FLAGS = "MatMulExt"


def absorb_transposes(graph: Rewriting) -> None:
    """Leave out each transpose of matrices that only products read, or that is all that reads a product."""
    for node in reversed(graph.nodes()):
        if not _transposes_matrices(graph, node) or graph.is_old_state(node):
            continue
        source, readers = graph.inputs(node)[0], graph.readers(node)
        if readers and all(_is_product(graph, reader) for reader in readers):
            for reader in readers:
                _read_transposed(graph, reader, node, source)
        elif graph.readers(source) == [node] and source not in graph.results and _is_product(graph, source) and \
                graph.runs_forward(source) == graph.runs_forward(node) and \
                not any(map(graph.is_old_state, graph.inputs(source)[:2])):
            (one, other), (turned, other_turned) = graph.inputs(source)[:2], _flags(graph, source)
            _become(graph, node, _likeness(graph, source), (other, one), (not other_turned, not turned))


def _transposes_matrices(graph: Rewriting, node: str) -> bool:
    """Whether a node only swaps the last two axes."""
    axes = graph.axes(node) if graph.kind(node) == "Transpose" else ()
    count = len(axes)
    return count > 1 and axes == (*range(count - 2), count - 1, count - 2)


def _is_product(graph: Rewriting, node: str) -> bool:
    """Whether a node multiplies matrices, as many by as many, and can be told to read them transposed."""
    if graph.kind(node) not in (*_WITH_FLAGS, _WITHOUT_FLAGS):
        return False
    one, other = (graph.shape(value) for value in graph.inputs(node)[:2])
    return one is not None and other is not None and len(one) == len(other) >= 2 and one[:-2] == other[:-2] and \
        _flags(graph, node) is not None and _likeness(graph, node) is not None


def _flags(graph: Rewriting, product: str) -> Optional[Tuple[bool, bool]]:
    """Which of its two inputs a product reads transposed; None if that is not known."""
    if graph.kind(product) == _WITHOUT_FLAGS:
        return False, False
    found = [graph.numbers(value) for value in graph.inputs(product)[2:]]
    return (bool(found[0][0]), bool(found[1][0])) if len(found) == 2 and None not in found else None


def _read_transposed(graph: Rewriting, product: str, transposed: str, source: str) -> None:
    """Let a product read what was transposed for it."""
    inputs = graph.inputs(product)[:2]
    flags = tuple(flag != (value == transposed) for flag, value in zip(_flags(graph, product), inputs))
    _become(graph, product, _likeness(graph, product),
            tuple(source if value == transposed else value for value in inputs), flags)


def _become(graph: Rewriting, node: str, likeness: "_Likeness", values: Tuple[str, ...],
            flags: Tuple[bool, ...]) -> None:
    constants = [graph.constant(likeness.flag, [flag]) for flag in flags]
    graph.become(node, likeness.node, likeness.primitive, [*values, *constants])


class _Product(nn.Cell):
    """A product of transposed matrices, by an operation that can read them so."""

    def __init__(self, operation: Any):
        super().__init__()
        self.product = operation(True, True)

    def construct(self, one, other):
        return self.product(one, other)


@dataclass(frozen=True)
class _Likeness:
    """How MindSpore writes a product of transposed matrices."""

    node: Any
    primitive: Any
    flag: Any


def _likeness(graph: Rewriting, product: str) -> Optional[_Likeness]:
    return _written(len(graph.shape(product)) > 2, dtype_of(graph.types(product)[0]))


@lru_cache(maxsize=None)
def _written(in_batches: bool, dtype: Any) -> Optional[_Likeness]:
    """None if the device cannot multiply matrices of this dtype so, as not every device has a kernel for each."""
    shapes = ((1, 2, 3), (1, 4, 2)) if in_batches else ((2, 3), (4, 2))
    arguments = [zeros(shape, dtype) for shape in shapes]
    try:
        model = export_graph(_Product(ops.BatchMatMul if in_batches else ops.MatMul), arguments)
        LoadedGraph(model.SerializeToString(), arguments)
        graph = JointGraph(model)
        node, = (graph.proto(name) for name in graph.order)
        flag = graph.proto(node.input[2])
        return _Likeness(node, graph.primitives[node.op_type.split("::", 1)[1]], flag)
    except Exception:  # pylint: disable=broad-except  # whatever MindSpore raises; then transposes stay
        return None
