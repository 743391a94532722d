"""Pack small tensors that cross from run to run together into one.

To take or give a tensor costs MindSpore the same, however small it is; to stack those of one shape and to take them
apart again costs a fraction of it. What is packed together is read by the same runs, so that nothing is held for longer
than it would be alone.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Collection, Dict, FrozenSet, Iterable, List, Mapping, Sequence, Set, Tuple

from mindspore_zb.engines.graph.mindir import REFERENCE, JointGraph
from mindspore_zb.engines.graph.native import mindir
from mindspore_zb.engines.graph.partition import Piece
from mindspore_zb.engines.graph.segments import MOST_OPERATIONS
from mindspore_zb.engines.graph.stacking import for_count, stacking

SMALL = 2 ** 15
"""Bytes up to which a tensor is copied twice in less time than it is handed over."""
FEWEST, MOST = 3, 128
"""Tensors of a pack."""
_PREFIX = "packing."
_SEVERAL = ("LayerNorm", "LayerNormExt", "Split", "SplitTensor", "SplitWithSize", "Unstack")
"""Operations with several results that are as large as their shapes say. Others may give more: the kernel of an LSTM
keeps for its backward what its shape says nothing of."""


@dataclass(frozen=True)
class Packed:
    """Runs that hand small tensors over in packs.

    Attributes:
        graph: the graph with the nodes that pack and unpack.
        runs: the runs.
        packs: for each value that is packed the value of its pack.
    """

    graph: JointGraph
    runs: Tuple[Piece, ...]
    packs: Dict[str, str]


def pack_small(graph: JointGraph, runs: Sequence[Piece], kept: Collection[str]) -> Packed:
    """Pack what crosses.

    Args:
        graph: the graph of the runs.
        runs: in the order in which they are run.
        kept: values that are wanted by others than the runs, which stay as they are.
    """
    packs = choose_packs(graph, runs, frozenset(kept))
    if not packs:
        return Packed(graph, tuple(runs), {})
    extension = _Extension(graph)
    packs_of: Dict[str, str] = {}
    entry_of: Dict[str, str] = {}
    for pack in packs:
        stack, entries = extension.add(pack)
        packs_of.update(dict.fromkeys(pack, stack))
        entry_of.update(zip(pack, entries))
    extended, stacks = JointGraph(extension.model), frozenset(packs_of.values())
    return Packed(extended, tuple(_packed_run(extended, run, packs_of, entry_of, stacks) for run in runs), packs_of)


def choose_packs(graph: JointGraph, runs: Sequence[Piece], kept: Collection[str]) -> List[Tuple[str, ...]]:
    """Small values of equal shape and dtype that one run gives and the same others read; the largest packs first."""
    readers: Dict[str, List[int]] = {}
    for number, run in enumerate(runs):
        for value in run.reads:
            readers.setdefault(value, []).append(number)
    givers = Counter(value for run in runs for value in run.gives)  # several if it is computed again
    alike: Dict[Any, List[str]] = {}
    for number, run in enumerate(runs):
        for value in run.gives:
            if givers[value] == 1 and value in readers and value not in kept and _is_small(graph, value) \
                    and stacking(graph.meta(value)[1]) is not None:
                alike.setdefault((number, tuple(readers[value]), graph.meta(value)), []).append(value)
    operations = Counter({number: len(run.nodes) for number, run in enumerate(runs)})
    found = []
    for (writer, of_reader, _), values in sorted(alike.items(), key=lambda item: -len(item[1])):
        for start in range(0, len(values), MOST):
            touched = (writer, *of_reader)
            pack = tuple(values[start:start + MOST])
            if len(pack) >= FEWEST and not any(operations[number] == MOST_OPERATIONS for number in touched):
                operations.update(touched)
                found.append(pack)
    return found


def _is_small(graph: JointGraph, value: str) -> bool:
    node = graph.node_of(value)
    return graph.is_static_tensor(value) and 0 < graph.nbytes(value) <= SMALL and (
        node == value or graph.kind(node) in _SEVERAL)


class _Extension:
    """A graph to which nodes that pack are added, as MindSpore itself would write them."""

    def __init__(self, graph: JointGraph):
        self._graph = graph
        self._primitives: Set[str] = set()
        self._template: Any = None
        self.model = mindir.ModelProto()
        self.model.CopyFrom(graph.model)

    def add(self, values: Sequence[str]) -> Tuple[str, List[str]]:
        """Add what stacks these values, and takes the stack apart; returns the stack and its entries."""
        template = self._template = stacking(self._graph.meta(values[0])[1])
        count = len(values)
        tensor, whole = mindir.TensorProto(), mindir.TensorProto()
        source = self._graph.tensor_proto(values[0])
        tensor.dims.extend(source.dims)
        whole.dims.extend((count, *source.dims))
        tensor.data_type = whole.data_type = source.data_type
        name = f"{_PREFIX}{len(self.model.graph.node)}"
        several = [tensor] * count
        gather = self._node(template.gather, f"{name}.tensors", values, count, several)
        stack = self._node(template.stack, f"{name}.stack", [gather], count, [whole])
        apart = self._node(template.unstack, f"{name}.unstack", [stack], count, several)
        entries = []
        for number in range(count):
            index = self._node(template.index, f"{name}.index{number}", [], count, [])
            self.model.graph.node[-1].attribute[0].i = number
            entries.append(self._node(template.entry, f"{name}.entry{number}", [apart, index], count, [tensor]))
        return stack, entries

    def _node(self, like: Any, name: str, inputs: Sequence[str], count: int, results: Sequence[Any]) -> str:
        """Add a node like that of the template, with these inputs and results."""
        node = self.model.graph.node.add()
        node.CopyFrom(like)
        node.name = node.output[0] = name
        node.input[:] = inputs
        if like.op_type.startswith(REFERENCE):
            node.op_type = REFERENCE + self._primitive(like.op_type[len(REFERENCE):], count)
            shape, = (attribute for attribute in node.attribute if attribute.name == "shape")
            places = shape.tensors
            if shape.values:
                entry = shape.values[0]
                del shape.values[:]
                shape.values.extend([entry] * count)
                places = [value.tensors[0] for value in shape.values]
            for place, result in zip(places, results):
                place.CopyFrom(result)
        return name

    def _primitive(self, like: str, count: int) -> str:
        """The name of a primitive of the template for so many tensors."""
        primitive = self._template.primitives[like]
        name = f"{_PREFIX}{primitive.op_type}.{count}"
        if name not in self._primitives:
            self._primitives.add(name)
            own = self.model.primitives.add()
            own.CopyFrom(for_count(primitive, count))
            own.name = name
        return name


def _packed_run(graph: JointGraph, run: Piece, packs_of: Dict[str, str], entry_of: Dict[str, str],
                stacks: FrozenSet[str]) -> Piece:
    """A run that takes and gives packs."""
    unpacked = {value: entry_of[value] for value in run.reads if value in packs_of}
    gives = in_packs(run.gives, packs_of)
    nodes = {graph.node_of(value) for value in unpacked.values()} | (stacks & set(gives))
    return replace(run, nodes=run.nodes | nodes, reads=in_packs(run.reads, packs_of), gives=gives, unpacked=unpacked)


def in_packs(values: Iterable[str], packs_of: Mapping[str, str]) -> Tuple[str, ...]:
    """Values, those that are packed by their packs."""
    return tuple(dict.fromkeys(packs_of.get(value, value) for value in values))
