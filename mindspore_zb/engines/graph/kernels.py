"""What a device has a slow kernel for is computed by several quick ones.

Some kernels go through a tensor number by number where others use all that the processor has. Which ones these are
depends on the device and is measured: a large operation of the kinds below is run both ways once in a process, and
from then on those of its kind are replaced where that takes less than half of the time. This comes after the graph has
been cut: to the cut each of them is one operation still, and nothing else crosses from piece to piece.
"""

import time
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Dict, List, Optional, Sequence, Tuple

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

LARGE = 2 ** 15
"""Numbers in the largest tensor that an operation reads from which on several kernels can pay."""

_WORTH = 0.5
_ROUNDS = 5
_DTYPE = ms.float32
_PREFIX = "quick."

_LINEAR = 2 * (2 / np.pi) ** 0.5
_CUBIC = 0.044715 * _LINEAR


class _Gelu(nn.Cell):
    """GeLU by tanh, as ``(1 + tanh(z / 2)) / 2`` is the sigmoid of z (Hendrycks and Gimpel, arXiv 1606.08415)."""

    def construct(self, x):
        return x * ops.sigmoid(x * (x * x * _CUBIC + _LINEAR))


class _GeluGrad(nn.Cell):
    """Its derivative ``s(z) + x s(z) s(-z) z'``, where ``x s(z)`` is the GeLU itself; times the gradient of that.

    ``s(-z)`` is computed as such: ``1 - s(z)`` would lose what is left of it where z is large.
    """

    def construct(self, grad, x, gelu):
        square = x * x
        z = x * (square * _CUBIC + _LINEAR)
        return grad * (ops.sigmoid(z) + gelu * ops.sigmoid(-z) * (square * (3 * _CUBIC) + _LINEAR))


class _SumOfRows(nn.Cell):
    """The gradient of a bias that was added to each row."""

    def __init__(self):
        super().__init__()
        self.sum = ops.ReduceSum()

    def construct(self, grad):
        return self.sum(grad, 0)


@dataclass(frozen=True)
class _Recipe:
    """A Cell that computes what an operation does, and how many tensors that reads, of which shape."""

    cell: Any
    count: int
    axes: Optional[int] = None


_RECIPES: Dict[str, _Recipe] = {"GeLU": _Recipe(_Gelu, 1), "GeLUGrad": _Recipe(_GeluGrad, 3),
                                "BiasAddGrad": _Recipe(_SumOfRows, 1, axes=2)}
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
    recipe = rewriting.kind(node)
    return rewriting.expand(node, _written(recipe), rewriting.inputs(node)[:_RECIPES[recipe].count])


def is_quicker(graph: JointGraph, node: str) -> bool:
    """Whether it pays on this device to expand nodes of this kind: measured at the first one, known afterwards."""
    kind = graph.kind(node)
    if kind not in _FOUND:
        try:
            _FOUND[kind] = _is_quicker(graph, node)
        except Exception:  # pylint: disable=broad-except  # whatever MindSpore raises for want of a kernel
            _FOUND[kind] = False
    return _FOUND[kind]


def _has_recipe(graph: JointGraph, node: str) -> bool:
    recipe = _RECIPES.get(graph.kind(node))
    if recipe is None:
        return False
    metas = [graph.meta(value) for value in (node, *graph.reads(node)) if graph.is_static_tensor(value)]
    shape = metas[-1][0]
    return len(metas) == 1 + recipe.count and all(dtype == _DTYPE for _, dtype in metas) and \
        prod(shape) >= LARGE and recipe.axes in (None, len(shape))


def _is_quicker(graph: JointGraph, node: str) -> bool:
    rewriting = Rewriting(graph, _PREFIX)
    nodes = frozenset((node, *expand(rewriting, node)))
    one, several = _alone(graph, frozenset((node,)), node), _alone(rewriting.done(), nodes, node)
    seconds: Dict[Any, List[float]] = {one: [], several: []}
    for _ in range(_ROUNDS):
        for run, found in seconds.items():
            start = time.perf_counter()
            run()
            found.append(time.perf_counter() - start)
    return min(seconds[several]) < _WORTH * min(seconds[one])


def _alone(graph: JointGraph, nodes: Any, result: str) -> Any:
    """A call that runs these nodes alone."""
    reads = values_read(graph, [node for node in graph.order if node in nodes])
    model = emit_piece(graph, Piece("alone", nodes, reads, (result,)), f"zero_bubble_alone_{result}_{len(nodes)}")
    arguments = tuple(Tensor(np.linspace(-3, 3, prod(shape), dtype=np.float32).reshape(shape))
                      for shape, _ in map(graph.meta, reads))
    loaded = LoadedGraph(model.SerializeToString(), arguments)
    return lambda: loaded(arguments)[0].asnumpy()


@lru_cache(maxsize=None)
def _written(kind: str) -> JointGraph:
    """How MindSpore writes what a recipe says."""
    recipe = _RECIPES[kind]
    return JointGraph(export_graph(recipe.cell(), [zeros((2, 3), _DTYPE)] * recipe.count))
