"""Pack small tensors that cross from run to run together into one.

Each tensor that a compiled graph takes or gives costs MindSpore some ten microseconds, however small it is; to stack
those of one shape and to take them apart again costs a fraction of it. What is packed together is read by the same
runs, so that nothing is held for longer than it would be alone.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Collection, Dict, List, Sequence, Tuple

from mindspore import nn, ops

from mindspore_zb.engines.graph.mindir import REFERENCE, JointGraph
from mindspore_zb.engines.graph.native import export_graph, mindir
from mindspore_zb.engines.graph.partition import Piece
from mindspore_zb.engines.graph.segments import MOST_OPERATIONS
from mindspore_zb.tensors import zeros

SMALL = 2 ** 15
"""Bytes up to which a tensor is copied twice in less time than it is handed over."""
FEWEST, MOST = 3, 128
"""Tensors of a pack."""
_PREFIX = "packing."


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
    extended, stacks, entries = _with_packing(graph, packs)
    packs_of = {value: stack for pack, stack in zip(packs, stacks) for value in pack}
    entry_of = {value: entry for pack, of_pack in zip(packs, entries) for value, entry in zip(pack, of_pack)}
    return Packed(extended, tuple(_packed_run(extended, run, packs_of, entry_of) for run in runs), packs_of)


def choose_packs(graph: JointGraph, runs: Sequence[Piece], kept: Collection[str]) -> List[Tuple[str, ...]]:
    """Small values of equal shape and dtype that one run gives and the same others read; the largest packs first."""
    readers: Dict[str, Tuple[int, ...]] = {}
    for number, run in enumerate(runs):
        for value in run.reads:
            readers[value] = (*readers.get(value, ()), number)
    alike: Dict[Any, List[str]] = {}
    for number, run in enumerate(runs):
        for value in run.gives:
            if value in readers and value not in kept and graph.is_static_tensor(value) \
                    and 0 < graph.nbytes(value) <= SMALL:
                alike.setdefault((number, readers[value], graph.meta(value)), []).append(value)
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


class _Packing(nn.Cell):
    """Stacks the first tensors in groups, and takes the stacks behind them apart."""

    def __init__(self, sizes: Tuple[int, ...]):
        super().__init__()
        self.sizes = sizes

    def construct(self, *tensors):
        start, result = 0, ()
        for size in self.sizes:
            result += (ops.stack(tensors[start:start + size]),)
            start += size
        for number in range(len(self.sizes)):
            result += ops.unstack(tensors[start + number])[::-1]  # backwards, else they are returned as one
        return result


def _with_packing(graph: JointGraph, packs: Sequence[Tuple[str, ...]]) -> Tuple[JointGraph, List[str], List[List[str]]]:
    """The graph with nodes that stack each pack and take it apart again, as MindSpore itself writes such nodes; the
    values of the stacks, and of the entries of each."""
    sizes = tuple(map(len, packs))
    metas = [graph.meta(pack[0]) for pack in packs]
    tensors = [zeros(*meta) for meta, size in zip(metas, sizes) for _ in range(size)]
    tensors += [zeros((size, *shape), dtype) for (shape, dtype), size in zip(metas, sizes)]
    template = JointGraph(export_graph(_Packing(sizes), tensors))
    results = template.result()
    stacks, flat = results[:len(packs)], results[len(packs):]
    entries = []
    for size in sizes:
        entries.append([_PREFIX + value for value in flat[size - 1::-1]])
        flat = flat[size:]
    given = dict(zip(template.inputs, (*(value for pack in packs for value in pack),
                                       *(_PREFIX + value for value in stacks))))
    return _spliced(graph, template, given), [_PREFIX + value for value in stacks], entries


def _spliced(graph: JointGraph, template: JointGraph, given: Dict[str, str]) -> JointGraph:
    """``graph`` with the nodes of ``template`` behind its own; ``given`` says what the inputs of the template are."""
    model = mindir.ModelProto()
    model.CopyFrom(graph.model)
    for primitive in template.model.primitives:
        model.primitives.add().CopyFrom(primitive)
        model.primitives[-1].name = _PREFIX + primitive.name
    for name, proto in template.protos():
        if name == template.model.graph.output[0].name:
            continue
        node = model.graph.node.add()
        node.CopyFrom(proto)
        node.name = node.output[0] = _PREFIX + name
        if proto.op_type.startswith(REFERENCE):
            node.op_type = REFERENCE + _PREFIX + proto.op_type[len(REFERENCE):]
        node.input[:] = [given.get(entry, _PREFIX + entry) for entry in proto.input]
    return JointGraph(model)


def _packed_run(graph: JointGraph, run: Piece, packs_of: Dict[str, str], entry_of: Dict[str, str]) -> Piece:
    """A run that takes and gives packs."""
    unpacked = {value: entry_of[value] for value in run.reads if value in packs_of}
    gives = tuple(dict.fromkeys(packs_of.get(value, value) for value in run.gives))
    nodes = {graph.node_of(value) for value in unpacked.values()} | (set(gives) & set(packs_of.values()))
    reads = tuple(dict.fromkeys(packs_of.get(value, value) for value in run.reads))
    return replace(run, nodes=run.nodes | nodes, reads=reads, gives=gives, unpacked=unpacked)
