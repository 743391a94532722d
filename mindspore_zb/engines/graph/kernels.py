"""What a device has a slow kernel for is computed by several quick ones.

Some kernels go through a tensor number by number where others use all that the processor has. Which ones these are
depends on the device and is measured: the first large operation of one of the kinds below is run both ways, once in a
process and on tensors of :data:`SIZE`; where several kernels take less than half of the time, large operations of the
kind are replaced from then on. This comes after the graph has been cut: to the cut each of them is one operation still,
and nothing else crosses from piece to piece; within a piece there are a few temporary tensors more.
"""

import time
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Callable, Dict, List, Tuple
from uuid import uuid4

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspore_zb.engines.graph.emit import emit_piece
from mindspore_zb.engines.graph.joint import Joint
from mindspore_zb.engines.graph.mindir import JointGraph
from mindspore_zb.engines.graph.native import LoadedGraph, export_graph
from mindspore_zb.engines.graph.partition import Partition, Piece, values_read
from mindspore_zb.engines.graph.rewriting import Rewriting
from mindspore_zb.tensors import zeros

LARGE = {"GeLU": 2 ** 13, "GeLUGrad": 2 ** 13, "BiasAddGrad": 2 ** 15}
"""Numbers in a tensor that an operation reads from which on several kernels can pay: to start them takes time too."""

SIZE = (256, 2048)
"""Of the tensors that are measured with: large enough for the difference to be no matter of chance."""

_WORTH = 0.5
_ROUNDS = 5
_DTYPE = ms.float32
_PREFIX = "quick."

_LINEAR = 2 * (2 / np.pi) ** 0.5
_CUBIC = 0.044715 * _LINEAR
"""``z = x (_LINEAR + _CUBIC x^2)`` is twice what GeLU takes the tanh of."""


class _Gelu(nn.Cell):
    """GeLU by tanh, as ``(1 + tanh(z / 2)) / 2`` is the sigmoid of z (Hendrycks and Gimpel, arXiv 1606.08415)."""

    def construct(self, x):
        return x * ops.sigmoid(x * (x * x * _CUBIC + _LINEAR))


class _GeluGrad(nn.Cell):
    """Its derivative ``s(z) + x s(z) s(-z) z'``, where ``x s(z)`` is the GeLU itself; times the gradient of that.

    ``s(-z)`` is computed as such: ``1 - s(z)`` would lose what is left of it where z is large. x is scaled before it is
    squared, as the square of a large one would overflow sooner. And ``z * -1.0`` has a quicker kernel than ``-z``.
    """

    def construct(self, grad, x, gelu):
        scaled = x * _CUBIC ** 0.5
        square = scaled * scaled
        z = x * (square + _LINEAR)
        return grad * (ops.sigmoid(z) + gelu * ops.sigmoid(z * -1.0) * (square * 3.0 + _LINEAR))


class _SumOfRows(nn.Cell):
    """The gradient of a bias that was added to each row."""

    def __init__(self):
        super().__init__()
        self.sum = ops.ReduceSum()

    def construct(self, grad):
        return self.sum(grad, 0)


@dataclass(frozen=True)
class _Recipe:
    """How to compute what an operation does.

    Attributes:
        cell: a Cell that does.
        count: how many tensors it reads, all of one shape.
        sums: whether it gives the sum of the rows of a matrix; otherwise it gives a tensor of that shape.
    """

    cell: Any
    count: int
    sums: bool = False


_RECIPES: Dict[str, _Recipe] = {"GeLU": _Recipe(_Gelu, 1), "GeLUGrad": _Recipe(_GeluGrad, 3),
                                "BiasAddGrad": _Recipe(_SumOfRows, 1, sums=True)}
_FOUND: Dict[str, bool] = {}


def with_quick_kernels(joint: Joint, partition: Partition) -> Tuple[Joint, Partition]:
    """The same pieces, in which several quick kernels take the place of a slow one."""
    graph = joint.graph
    nodes = [node for node in graph.order if _has_recipe(graph, node) and is_quicker(graph, node)]
    if not nodes:
        return joint, partition
    rewriting = Rewriting(graph, _PREFIX)
    added = {node: expand(rewriting, node) for node in nodes}

    def with_added(piece: Piece) -> Piece:
        more = [name for node in nodes if node in piece.nodes for name in added[node]]
        return replace(piece, nodes=piece.nodes.union(more))

    return replace(joint, graph=rewriting.done()), replace(
        partition, forward=with_added(partition.forward), dx=with_added(partition.dx),
        dw=tuple(replace(part, piece=with_added(part.piece)) for part in partition.dw))


def expand(rewriting: Rewriting, node: str) -> List[str]:
    """Let several operations compute what a node does; returns those before the last, which takes its place."""
    kind = rewriting.kind(node)
    return rewriting.expand(node, _written(kind), rewriting.inputs(node)[:_RECIPES[kind].count])


def is_quicker(graph: JointGraph, node: str) -> bool:
    """Whether it pays on this device to expand nodes of this kind: measured at the first one, known afterwards."""
    kind = graph.kind(node)
    if kind not in _FOUND:
        _FOUND[kind] = _is_quicker(*both_ways(graph, node))
    return _FOUND[kind]


def both_ways(graph: JointGraph, node: str) -> Tuple[JointGraph, JointGraph]:
    """Graphs that compute what a node does, by itself and by several, from tensors of :data:`SIZE`."""
    reads = values_read(graph, [node])
    model = emit_piece(graph, Piece("alone", frozenset((node,)), reads, (node,)), f"zero_bubble_alone_{uuid4().hex}")
    given = [entry.tensor[0] for entry in model.graph.input]
    results = [*(attribute for own in model.graph.node for attribute in own.attribute if attribute.name == "shape"),
               model.graph.output[0].attr_info]
    for tensor in given:
        tensor.dims[:] = SIZE
    for shape in results:
        for tensor in (*shape.tensors, *(tensor for entry in shape.values for tensor in entry.tensors)):
            tensor.dims[:] = SIZE[1:] if _RECIPES[graph.kind(node)].sums else SIZE
    one = JointGraph(model)
    rewriting = Rewriting(one, _PREFIX)
    expand(rewriting, node)
    several = rewriting.done()
    several.model.graph.name = f"zero_bubble_alone_{uuid4().hex}"
    return one, several


def _has_recipe(graph: JointGraph, node: str) -> bool:
    recipe, values = _RECIPES.get(graph.kind(node)), graph.reads(node)
    if recipe is None or len(values) != recipe.count or not all(map(graph.is_static_tensor, (*values, node))):
        return False
    metas = [graph.meta(value) for value in (*values, node)]
    shape = metas[0][0]
    if prod(shape) < LARGE[graph.kind(node)] or any(dtype != _DTYPE for _, dtype in metas):
        return False
    if recipe.sums:
        return len(shape) == 2
    if any(other != shape for other, _ in metas):  # MindSpore's kernel on CPU goes by the number of elements alone
        return False
    return recipe.count == 1 or _is_gelu_of(graph, values[2], values[1])


def _is_gelu_of(graph: JointGraph, value: str, x: str) -> bool:
    """Whether a value is the GeLU of x: who writes a backward may give GeLUGrad what he likes for it, as MindSpore's
    kernel on CPU does not read it."""
    node = graph.node_of(value)
    return node is not None and graph.kind(node) == "GeLU" and graph.reads(node) == (x,)


def _is_quicker(one: JointGraph, several: JointGraph) -> bool:
    numbers = Tensor(np.linspace(-3, 3, prod(SIZE), dtype=np.float32).reshape(SIZE))
    arguments = (numbers,) * len(one.inputs)
    try:
        ways = [loaded(found, arguments) for found in (one, several)]
        seconds: List[List[float]] = [[], []]
        for _ in range(_ROUNDS):
            for run, found in zip(ways, seconds):
                start = time.perf_counter()
                run()
                found.append(time.perf_counter() - start)
    except Exception:  # pylint: disable=broad-except  # whatever MindSpore raises for want of a kernel
        return False
    return min(seconds[1]) < _WORTH * min(seconds[0])


def loaded(graph: JointGraph, arguments: Tuple[Any, ...]) -> Callable[[], Any]:
    """A call that runs a graph, and waits for what it gives."""
    executable = LoadedGraph(graph.model.SerializeToString(), arguments)
    return lambda: executable(arguments)[0].asnumpy()


@lru_cache(maxsize=None)
def _written(kind: str) -> JointGraph:
    """How MindSpore writes what a recipe says."""
    recipe = _RECIPES[kind]
    return JointGraph(export_graph(recipe.cell(), [zeros((2, 3), _DTYPE)] * recipe.count))
