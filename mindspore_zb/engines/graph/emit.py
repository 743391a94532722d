"""Write a piece of a joint graph as a model of its own.

Nodes and primitives are copied as they are; only the inputs, the returned tuple and the order of effects are new.
"""

from typing import Any, Dict, List, Sequence, Set, Tuple

from mindspore_zb.engines.graph.mindir import REFERENCE, JointGraph
from mindspore_zb.engines.graph.native import mindir
from mindspore_zb.engines.graph.partition import Piece
from mindspore_zb.errors import UnsupportedError

_ATTRIBUTE = mindir.AttributeProto


def emit_piece(graph: JointGraph, piece: Piece, name: str) -> Any:
    """The ``ModelProto`` of a piece, which takes ``piece.reads``, those that it writes left out, and returns
    ``piece.gives``.

    Args:
        graph: the graph that ``piece`` is part of.
        piece: what to write.
        name: a name for the graph that no other has in this process.
    """
    return _Emitter(graph, piece, name).model


def plain_reads(graph: JointGraph, piece: Piece) -> Tuple[str, ...]:
    """The values that a piece takes as arguments: all it reads, but the parameters that it writes."""
    written = written_by(graph, piece)
    return tuple(value for value in piece.reads if value not in written)


def written_by(graph: JointGraph, piece: Piece) -> Tuple[str, ...]:
    """The parameters that nodes of this piece write, or read in between."""
    return tuple(value for value in piece.reads if value in graph.written)


class _Emitter:
    """One model under construction."""

    def __init__(self, graph: JointGraph, piece: Piece, name: str):
        self._graph = graph
        self._piece = piece
        self._name = name
        self._effects = frozenset(graph.effects) & piece.nodes
        self._used: Dict[str, None] = {}
        self._copied: Set[str] = set()
        self._renamed: Dict[str, str] = {}
        self._monads: Dict[str, str] = {}
        self.model = without(graph.model, ("functions", "primitives", "graph"))
        self.model.graph.CopyFrom(without(graph.model.graph, ("node", "parameter", "input", "output")))
        self.model.graph.name = name
        self._add_inputs()
        last = self._add_nodes()
        self._add_result(last)
        self.model.primitives.extend(graph.primitives[primitive] for primitive in self._used)

    def _add_inputs(self) -> None:
        for number, value in enumerate(plain_reads(self._graph, self._piece)):
            entry = self.model.graph.input.add()
            entry.name = self._renamed[value] = f"{self._name}:in{number}"
            entry.tensor.add().CopyFrom(self._graph.tensor_proto(value))
            entry.tensor[0].ClearField("name")
        self._renamed.update(self._piece.unpacked)
        written = set(written_by(self._graph, self._piece))
        self.model.graph.parameter.extend(entry for entry in self._graph.model.graph.parameter
                                          if entry.name in written)

    def _add_nodes(self) -> str:
        """Copy what the piece needs, first what takes packs apart; returns the last of its effects' order, or ""."""
        graph = self._graph
        entries = self._piece.unpacked.values()
        first = {name for entry in entries for name in (entry, *graph.proto(entry).input)}
        last = ""
        for name in sorted(self._needed(), key=lambda name: (name not in first, graph.place(name))):
            proto = graph.proto(name)
            if graph.kind(name) == "UpdateState":
                last = self._add_order(name, proto) or last
                continue
            self._copy(proto, [self._source(entry) for entry in proto.input])
            if graph.computes(name):
                self._copied.add(name)
        return last

    def _needed(self) -> Set[str]:
        """All exported nodes that must be there: the piece's own, and what holds or gathers for them."""
        graph, found = self._graph, set()
        waiting = [graph.resolve(value) for value in (*self._piece.gives, *self._effects,
                                                      *self._piece.unpacked.values())]
        if self._effects:
            waiting.extend(name for name, _ in graph.protos() if graph.kind(name) == "UpdateState")
        while waiting:
            name = waiting.pop()
            if name in found or name in self._renamed or not graph.kind(name) or \
                    (graph.computes(name) and name not in self._piece.nodes):
                continue
            found.add(name)
            waiting.extend(graph.resolve(entry) for entry in graph.proto(name).input
                           if graph.kind(name) != "UpdateState" or graph.is_constant(entry))
        return found

    def _source(self, entry: str) -> str:
        entry = self._graph.resolve(entry)
        while entry in self._monads:
            entry = self._monads[entry]
        return self._renamed.get(entry, entry)

    def _copy(self, proto: Any, inputs: Sequence[str]) -> None:
        node = self.model.graph.node.add()
        node.CopyFrom(proto)
        del node.input[:]
        node.input.extend(inputs)
        self._use(proto.op_type)

    def _add_order(self, name: str, proto: Any) -> str:
        """The order of effects, without what is not of this piece; one node for each that is waited for, as MindSpore
        takes only the first into account."""
        kept = [entry for entry in self._ordered(proto.input[1:]) if entry in self._copied]
        before = self._source(proto.input[0])
        for number, entry in enumerate(kept, 1):
            self._copy(proto, [before, entry])
            if number < len(kept):
                node = self.model.graph.node[-1]
                before = node.name = node.output[0] = f"{self._name}:{proto.name}:{number}"
        if not kept:
            self._monads[name] = before
            return ""
        return name

    def _ordered(self, entries: Sequence[str]) -> List[str]:
        found: List[str] = []
        for entry in entries:
            entry = self._graph.resolve(entry)
            if self._graph.kind(entry) in ("MakeTuple", "MakeList"):
                found.extend(self._ordered(self._graph.proto(entry).input))
            else:
                found.append(entry)
        return found

    def _add_result(self, last: str) -> None:
        result = self._node("MakeTuple", f"{self._name}:result", [self._source(value) for value in self._piece.gives])
        shape = result.attribute.add()
        shape.name, shape.type = "shape", _ATTRIBUTE.TUPLE
        for value in self._piece.gives:
            entry = shape.values.add()
            entry.type = _ATTRIBUTE.TENSORS
            entry.tensors.add().CopyFrom(self._graph.tensor_proto(value))
            entry.tensors[0].ClearField("name")
        shape.seq_info.is_dyn_len = False
        if last:
            result = self._node("Depend", f"{self._name}:done", [result.name, last])
            result.attribute.add().CopyFrom(shape)
        output = self.model.graph.output.add()
        output.name, output.denotation = result.name, "Tuple"
        output.attr_info.CopyFrom(shape)
        output.attr_info.name = ""

    def _node(self, kind: str, name: str, inputs: Sequence[str]) -> Any:
        primitive = self._graph.primitive_of(kind)
        if primitive is None:
            raise UnsupportedError(f"its graph has no {kind}, which a piece of it needs")
        node = self.model.graph.node.add()
        node.op_type, node.name, node.domain = REFERENCE + primitive, name, f"Default/{kind}"
        node.output.append(name)
        node.input.extend(inputs)
        self._use(node.op_type)
        return node

    def _use(self, kind: str) -> None:
        if kind.startswith(REFERENCE):
            self._used[kind[len(REFERENCE):]] = None


def without(message: Any, left_out: Sequence[str]) -> Any:
    """A copy of a message without some of its fields, which are not even read: they may be large."""
    found = type(message)()
    for field, value in message.ListFields():
        if field.name in left_out:
            continue
        if isinstance(value, (str, bytes, int, float)):
            setattr(found, field.name, value)
        else:
            getattr(found, field.name).MergeFrom(value)
    return found
