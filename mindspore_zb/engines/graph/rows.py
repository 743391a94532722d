"""What works row by row is done on matrices.

A linear layer flattens its input to a matrix and gives its output the old shape back, and what lies between two of
them, a norm, a sum, an activation, would do as well on matrices. Each such reshape copies a tensor on some devices.
"""

from dataclasses import dataclass
from math import prod
from typing import Dict, Iterable, Iterator, List, Optional, Tuple

from mindspore_zb.engines.graph.rewriting import TUPLES, Rewriting, Shape

_ELEMENTWISE = frozenset((
    "Abs", "Add", "AddExt", "AddN", "Adds", "AddScalar", "Cast", "Cos", "Div", "Divs", "Erf", "Exp", "Expm1",
    "GeLU", "GeLUGrad", "Log", "Log1p", "Maximum", "Minimum", "Mul", "Muls", "Neg", "Pow", "PowScalarTensor",
    "PowTensorScalar", "RealDiv", "Reciprocal", "ReLU", "ReluGrad", "Rsqrt", "RsqrtGrad", "Sigmoid", "SigmoidGrad",
    "SiLU", "SiLUGrad", "Sin", "Sqrt", "SqrtGrad", "Square", "Sub", "SubExt", "Subs", "SubScalar", "Tanh",
    "TanhGrad"))
"""Operations each element of whose result depends on the elements of the inputs at its place only."""

_ON_LAST_AXIS = {"LayerNorm": (3, 4), "LayerNormGrad": (5, 6), "Softmax": (1,), "SoftmaxBackward": (2,)}
"""Operations that work on rows if these inputs, which are axes, are the last one."""


def work_on_matrices(graph: Rewriting) -> None:
    """Leave out the reshapes around what works row by row, where these are more than those that come instead."""
    like = graph.any_reshape()
    if like is None:
        return
    for nodes in _regions(graph):
        region = _Region(graph, nodes)
        if region.saved() > 0:
            region.rewrite(like)


def _regions(graph: Rewriting) -> List[List[str]]:
    """The nodes that work row by row and are connected by tensors of more than two axes."""
    ahead: Dict[str, str] = {}

    def root(name: str) -> str:
        while ahead[name] != name:
            ahead[name] = name = ahead[ahead[name]]
        return name

    found = []
    for node in graph.nodes():
        lead = _lead(graph, node)
        if lead is not None:
            found.append(node)
            for value in (node, *_wide(graph, (*_read(graph, node), *_given(graph, node)), lead)):
                ahead.setdefault(value, value)
                ahead[root(value)] = root(node)
    regions: Dict[str, List[str]] = {}
    for node in found:
        regions.setdefault(root(node), []).append(node)
    return list(regions.values())


def _lead(graph: Rewriting, node: str) -> Optional[Shape]:
    """The sizes of all axes but the last; None if the node does not work row by row on at least two of them."""
    if not _works_by_rows(graph, node):
        return None
    shapes = [tuple(kind.dims) for kind in graph.types(node)]
    if not shapes or len(shapes[0]) < 3:
        return None
    lead = shapes[0][:-1]
    fits = all(shape is not None and (len(shape) < 2 or shape[:-1] == lead)
               for shape in (*shapes, *(graph.shape(value) for value in _read(graph, node))))
    return lead if fits and not any(_is_held_anyway(graph, value) for value in _given(graph, node)) else None


def _is_held_anyway(graph: Rewriting, value: str) -> bool:
    """Whether a value is a result of the forward that the backward reads: as a matrix it would be held twice."""
    return value in graph.results and graph.runs_forward(value) and any(
        not graph.is_read_forward(value, reader) for reader in graph.readers(value))


def _works_by_rows(graph: Rewriting, node: str) -> bool:
    kind, inputs = graph.kind(node), graph.inputs(node)
    if kind in _ON_LAST_AXIS:
        is_taken_apart = len(graph.types(node)) == 1 or graph.readers(node) == graph.entries(node)
        return is_taken_apart and all(graph.numbers(inputs[place]) == (-1,) for place in _ON_LAST_AXIS[kind])
    return kind in _ELEMENTWISE and all(graph.kind(value) not in TUPLES or graph.readers(value) == [node]
                                        for value in inputs)


def _read(graph: Rewriting, node: str) -> Iterator[str]:
    """The tensors that a node reads, those in tuples too."""
    for value in graph.inputs(node):
        if graph.kind(value) in TUPLES:
            yield from _read(graph, value)
        elif graph.kind(value) != "Constant" or graph.shape(value):
            yield value


def _given(graph: Rewriting, node: str) -> List[str]:
    """The tensors that a node gives."""
    return graph.entries(node) or [node]


def _wide(graph: Rewriting, values: Iterable[str], lead: Shape) -> Iterator[str]:
    """Those of some values that have the leading axes."""
    return (value for value in values if (graph.shape(value) or ())[:-1] == lead)


@dataclass(frozen=True)
class _Change:
    """Some readers of a value are to read it in another shape."""

    value: str
    readers: Tuple[str, ...]
    shape: Shape
    forward: bool


class _Region:
    """Nodes that work row by row, connected by tensors with the same leading axes."""

    def __init__(self, graph: Rewriting, nodes: List[str]):
        self._graph = graph
        self._nodes = nodes
        self._lead = _lead(graph, nodes[0])
        self._holders = {name for node in nodes for name in (node, *graph.inputs(node))
                         if name == node or graph.kind(name) in TUPLES}
        self._flattened: List[_Change] = []
        self._restored: List[_Change] = []
        self._taken: List[_Change] = []  # their value is a matrix already
        self._gone: Dict[str, str] = {}  # reshapes that are left out, and what takes their place
        self._left_out = 0
        given = dict.fromkeys(value for node in nodes for value in self._wide(_given(graph, node)))
        for value in dict.fromkeys(value for node in nodes for value in self._wide(_read(graph, node))):
            if value not in given:
                self._plan_incoming(value)
        for value in given:
            self._plan_outgoing(value)

    def _wide(self, values: Iterable[str]) -> Iterator[str]:
        return _wide(self._graph, values, self._lead)

    def _plan_incoming(self, value: str) -> None:
        graph, flat = self._graph, self._flat(value)
        readers = graph.readers(value)
        outside = [reader for reader in readers if reader not in self._holders]
        is_reshape = graph.kind(value) == "Reshape"
        source = graph.inputs(value)[0] if is_reshape else ""
        for forward in (True, False):
            inside = tuple(reader for reader in readers
                           if reader in self._holders and graph.is_read_forward(value, reader) == forward)
            crosses_anyway = not forward and graph.runs_forward(value) and any(
                not graph.is_read_forward(value, reader) for reader in outside)
            if inside and is_reshape and graph.shape(source) == flat and not graph.is_old_state(source) and \
                    not crosses_anyway:
                self._taken.append(_Change(value, inside, flat, forward))
            elif inside:
                self._flattened.append(_Change(value, inside, flat, forward))
        self._left_out += is_reshape and not outside and value not in graph.results

    def _plan_outgoing(self, value: str) -> None:
        graph, flat = self._graph, self._flat(value)
        outside = [reader for reader in graph.readers(value) if reader not in self._holders]
        reshapes = [reader for reader in outside if graph.kind(reader) == "Reshape"]
        for reader in reshapes:
            if graph.shape(reader) == flat and reader not in graph.results:
                self._gone[reader] = value
                self._left_out += 1
        for forward in (True, False):
            others = tuple(reader for reader in outside
                           if reader not in reshapes and graph.is_read_forward(value, reader) == forward)
            if others:
                self._restored.append(_Change(value, others, graph.shape(value), forward))

    def _flat(self, value: str) -> Shape:
        return prod(self._lead), self._graph.shape(value)[-1]

    def saved(self) -> int:
        """How many reshapes fewer there would be."""
        return self._left_out - len(self._flattened) - len(self._restored)

    def rewrite(self, like: str) -> None:
        """Let all nodes work on matrices; ``like`` is a reshape."""
        graph = self._graph
        for change in self._flattened:
            self._give(change, graph.reshape(like, change.value, change.shape, change.forward))
        for change in self._taken:
            self._give(change, graph.inputs(change.value)[0])
        for node in self._nodes:
            tuples = [value for value in graph.inputs(node) if value in self._holders]
            for name in (node, *graph.entries(node), *tuples):
                graph.reduce(name, self._lead, prod(self._lead))
        for change in self._restored:
            self._give(change, graph.reshape(like, change.value, change.shape, change.forward))
        for reshape, value in self._gone.items():
            graph.replace(reshape, value)

    def _give(self, change: _Change, other: str) -> None:
        for reader in change.readers:
            self._graph.read(reader, change.value, other)
