"""Change a joint graph: other inputs, other shapes, new nodes; what nobody reads any more is left out."""

from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from mindspore_zb.engines.graph.emit import without
from mindspore_zb.engines.graph.mindir import REFERENCE, JointGraph
from mindspore_zb.engines.graph.native import mindir
from mindspore_zb.engines.graph.stacking import Stacking, for_count

TUPLES = ("MakeTuple", "MakeList")
RESHAPES = ("Reshape", "Squeeze", "ExpandDims", "Flatten")
"""Operations whose result has the elements of their first input in the same order."""
_ATTRIBUTE = mindir.AttributeProto

Shape = Tuple[int, ...]


class Rewriting:
    """A graph that is being changed; the one it was made from stays as it is.

    Its nodes read values: what only passes values on is looked through. A node has the name of what it gives.

    Args:
        graph: the graph.
        prefix: what the names of new nodes begin with, and those of no other node of the graph.

    Attributes:
        results: the values that the graph returns. They may be computed in another way, but have to be there.
    """

    def __init__(self, graph: JointGraph, prefix: str = "rewritten."):
        self._graph = graph
        self._prefix = prefix
        self.results: FrozenSet[str] = frozenset(graph.result())
        self._forward: Set[str] = graph.ancestors([*graph.result_entries()[0], *graph.effects])
        self._kept = frozenset((graph.model.graph.output[0].name, *self.results, *graph.effects))
        self._nodes: Dict[str, Any] = {}
        self._inputs: Dict[str, List[str]] = {}
        self._readers: Dict[str, Dict[str, None]] = {}
        self._own: Dict[str, Any] = {}  # nodes that are new or were changed otherwise than in what they read
        self._constants: List[str] = []  # the new ones; they stand first
        self._added: Dict[str, List[str]] = {"": []}
        self._ahead: Dict[str, List[str]] = {}
        self._primitives: Dict[str, Any] = {}
        for name, node in graph.protos():
            self._nodes[name] = node
            self._set_inputs(name, [graph.resolve(value) for value in node.input])

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def is_changed(self) -> bool:
        """Whether anything was changed."""
        return bool(self._own)

    def nodes(self) -> List[str]:
        """All nodes, constants and tuples included, each after what it reads."""
        found: List[str] = []
        waiting = [*reversed([*self._constants, *self._added[""], *(name for name, _ in self._graph.protos())])]
        while waiting:
            name = waiting.pop()
            found.extend((*self._ahead.get(name, ()), name))
            waiting.extend(reversed(self._added.get(name, ())))
        return found

    def kind(self, value: str) -> str:
        """The operation that gives a value; "" for inputs and parameters."""
        node = self._nodes.get(value)
        if node is None:
            return ""
        primitive = self._primitives.get(node.op_type[len(REFERENCE):])
        return primitive.op_type if primitive is not None else self._graph.kind_of(node)

    def inputs(self, node: str) -> Sequence[str]:
        """What a node reads, constants and tuples included."""
        return self._inputs[node]

    def any_reshape(self) -> Optional[str]:
        """A reshape, to write another one like it; None if there is none."""
        reshapes = (node for node in self.nodes() if self.kind(node) == "Reshape")
        return next((node for node in reshapes if self.numbers(self._inputs[node][1])), None)

    def readers(self, value: str) -> List[str]:
        """The nodes that read a value; not those that only say what must happen before what."""
        return [node for node in self._readers.get(value, ()) if self.kind(node) not in ("UpdateState", "Depend")]

    def entries(self, node: str) -> List[str]:
        """The nodes that take single results out of a node with several."""
        return [name for name in self._readers.get(node, ()) if self.kind(name) in ("TupleGetItem", "ListGetItem")]

    def only_reader(self, value: str) -> str:
        """The node that reads a value if nothing else does, not even to say what must happen before what; or ""."""
        readers = self._readers.get(value, ())
        return next(iter(readers)) if len(readers) == 1 and value not in self._kept else ""

    def shape(self, value: str) -> Optional[Shape]:
        """The shape of a value; None if it is not one tensor of a fixed shape."""
        found = self._tensor(value)
        return None if found is None or min(found.dims, default=0) < 0 else tuple(found.dims)

    def types(self, node: str) -> List[Any]:
        """Shape and dtype of each result of a node as a ``TensorProto``; nothing for other results than tensors."""
        shape = self._nodes[node].attribute[0]
        entries = [shape] if shape.type == _ATTRIBUTE.TENSORS else shape.values
        return [entry.tensors[0] for entry in entries] if all(len(entry.tensors) == 1 for entry in entries) else []

    def numbers(self, value: str) -> Optional[Tuple[int, ...]]:
        """The value of a constant that is an integer or a tuple of such; None of anything else."""
        if self.kind(value) != "Constant":
            return None
        held = self._nodes[value].attribute[0]
        if held.type == _ATTRIBUTE.TUPLE:
            all_integers = all(len(entry.ints) == 1 for entry in held.values)
            return tuple(entry.ints[0] for entry in held.values) if all_integers else None
        return (held.i,) if held.HasField("i") else None

    def axes(self, transpose: str) -> Tuple[int, ...]:
        """The axes of a transpose, counted from the front; nothing if they are not known."""
        axes = self.numbers(self._inputs[transpose][1])
        return tuple(axis % len(axes) for axis in axes) if axes else ()

    def is_old_state(self, value: str) -> bool:
        """Whether a value is a Parameter as it was before a write, or a view of it. Who reads that must be done before
        the write, and the order of effects knows him by name: it must go on being read by the same nodes."""
        while self.kind(value) in RESHAPES or self.kind(value) == "Transpose":
            value = self._inputs[value][0]
        return self.kind(value) == "Load"

    def runs_forward(self, value: str) -> bool:
        """Whether the node that gives a value runs in the forward."""
        return value in self._forward or self._graph.node_of(value) in self._forward

    def is_read_forward(self, value: str, reader: str) -> bool:
        """Whether a reader of a value runs in the forward; a tuple does if one of its readers does, and that of the
        results when the value is there."""
        if self.kind(reader) not in TUPLES:
            return self.runs_forward(reader)
        readers = self.readers(reader)
        return any(self.is_read_forward(value, node) for node in readers) if readers else self.runs_forward(value)

    # --- changes ------------------------------------------------------------------------------------------------------

    def read(self, node: str, value: str, other: str) -> None:
        """Let a node read another value instead of one."""
        self._change(node)
        self._set_inputs(node, [other if name == value else name for name in self._inputs[node]])

    def replace(self, value: str, other: str) -> None:
        """Let all that read a value read another one."""
        for node in list(self._readers.get(value, ())):
            self.read(node, value, other)

    def reduce(self, node: str, lead: Shape, size: int) -> None:
        """Make one axis of so many of the leading axes of each result of a node that has them."""
        node_of_ours = self._change(node)
        for kind in self.types(node_of_ours):
            if tuple(kind.dims[:-1]) == lead:
                kind.dims[:] = (size, kind.dims[-1])

    def become(self, node: str, like: Any, primitive: Any, inputs: Sequence[str]) -> None:
        """Let a node compute its result by another operation; ``like`` is a node of it, with its primitive."""
        proto = self._nodes[self._change(node)]
        proto.op_type = self._reference(primitive)
        proto.input[:] = inputs  # whoever copies the node finds there what it reads by itself
        del proto.node_attr[:]
        proto.node_attr.extend(like.node_attr)
        self._set_inputs(node, inputs)

    def expand(self, node: str, like: JointGraph, inputs: Sequence[str]) -> List[str]:
        """Let a node compute its result by several operations, and return the nodes that come before it.

        Args:
            node: the node.
            like: a graph of these operations, which returns one tensor; all in between have the shape of ``node``'s
                first input.
            inputs: what takes the place of the inputs of ``like``.
        """
        shape, (last,) = self.shape(inputs[0]), like.result()
        names, added = dict(zip(like.inputs, inputs)), []
        for name, proto in like.protos():
            reads = [names[like.resolve(value)] for value in proto.input]
            if name == last:
                self.become(node, proto, like.primitives[proto.op_type[len(REFERENCE):]], reads)
                break
            own = mindir.NodeProto()
            own.CopyFrom(proto)
            if like.computes(name):
                own.op_type = self._reference(like.primitives[proto.op_type[len(REFERENCE):]])
                own.domain = self._nodes[node].domain
                own.attribute[0].tensors[0].dims[:] = shape
            names[name] = self._add(own, reads)
            self._ahead.setdefault(node, []).append(names[name])
            if like.computes(name):
                added.append(names[name])
        return added

    def constant(self, like: Any, numbers: Sequence[int]) -> str:
        """A new constant of the type of another one, given by its name or as a node."""
        node = mindir.NodeProto()
        node.CopyFrom(self._nodes[like] if isinstance(like, str) else like)
        held = node.attribute[0]
        if held.type == _ATTRIBUTE.TUPLE:
            entry = mindir.AttributeProto()
            entry.CopyFrom(held.values[0])
            del held.values[:]
            for number in numbers:
                entry.ints[0] = number
                held.values.add().CopyFrom(entry)
        else:
            held.i, = map(int, numbers)
        self._constants.append(self._add(node, ()))
        return self._constants[-1]

    def reshape(self, like: str, value: str, shape: Shape, forward: bool) -> str:
        """A new node that gives a value another shape, right behind what computes it; ``like`` is such a node."""
        return self._moved(like, value, shape, shape, forward)

    def transpose(self, like: str, value: str, axes: Sequence[int], forward: bool) -> str:
        """The same for one that transposes."""
        shape = self.shape(value)
        return self._moved(like, value, axes, tuple(shape[axis] for axis in axes), forward)

    def become_like(self, node: str, like: str, value: str, numbers: Sequence[int]) -> None:
        """Let a node compute its result by a reshape or a transpose of a value; ``like`` is such a node."""
        self.become(node, self._nodes[like], self._primitive(like), [value, self._numbers_like(like, numbers)])

    def stack(self, like: Stacking, gathered: str, forward: bool) -> str:
        """A new node that stacks the tensors of a tuple, right behind it; they have one shape and dtype."""
        node, tensors = mindir.NodeProto(), self._inputs[gathered]
        node.CopyFrom(like.stack)
        node.op_type = self._reference(for_count(like.primitive(like.stack), len(tensors)))
        node.domain = self._nodes[gathered].domain
        node.attribute[0].tensors[0].dims[:] = (len(tensors), *self.shape(tensors[0]))
        node.attribute[0].tensors[0].data_type = self._tensor(tensors[0]).data_type
        return self._note(self._add_behind(gathered, node, (gathered,)), forward)

    def take_apart(self, node: str, like: Stacking, stack: str) -> None:
        """Let a node with several results, all of one shape, take a stack apart."""
        count = len(self.types(node))
        self.become(node, like.unstack, for_count(like.primitive(like.unstack), count), [stack])
        for name in (node, *self.entries(node)):
            self.give_shape(name, self.shape(stack)[1:])

    def give_shape(self, node: str, shape: Shape) -> None:
        """Say that all results of a node have this shape."""
        for kind in self.types(self._change(node)):
            kind.dims[:] = shape

    def done(self) -> JointGraph:
        """The changed graph."""
        model = without(self._graph.model, ("graph",))
        model.graph.CopyFrom(without(self._graph.model.graph, ("node",)))
        model.primitives.extend(self._primitives.values())
        needed = self._needed()
        for name in self.nodes():
            if name in needed:
                node = model.graph.node.add()
                node.CopyFrom(self._nodes[name])
                node.input[:] = self._inputs[name]
        return JointGraph(model)

    # --- how it is done -----------------------------------------------------------------------------------------------

    def _tensor(self, value: str) -> Any:
        """Shape and dtype of a value; None if it is not one tensor."""
        if value not in self._nodes:
            return self._graph.tensor_proto(value)
        held = self._nodes[value].attribute[0]
        return held.tensors[0] if held.type == _ATTRIBUTE.TENSORS and len(held.tensors) == 1 else None

    def _needed(self) -> Set[str]:
        """The nodes that the result or an effect needs."""
        found: Set[str] = set()
        waiting = [*self._kept, *(name for name in self._nodes if self.kind(name) == "UpdateState")]
        while waiting:
            name = waiting.pop()
            if name not in found and name in self._nodes:
                found.add(name)
                waiting.extend(self._inputs[name])
        return found

    def _moved(self, like: str, value: str, numbers: Sequence[int], shape: Shape, forward: bool) -> str:
        node = mindir.NodeProto()
        node.CopyFrom(self._nodes[like])
        node.ClearField("primal_attr")
        tensor = node.attribute[0].tensors[0]
        tensor.dims[:] = shape
        tensor.data_type = self._tensor(value).data_type
        behind = value if value in self._nodes else ""
        return self._note(self._add_behind(behind, node, (value, self._numbers_like(like, numbers))), forward)

    def _numbers_like(self, like: str, numbers: Sequence[int]) -> str:
        """A constant as a reshape or a transpose reads it: as it was written, as nobody may read ``like`` any more."""
        return self.constant(self._graph.resolve(self._nodes[like].input[1]), numbers)

    def _note(self, node: str, forward: bool) -> str:
        if forward:
            self._forward.add(node)
        return node

    def _primitive(self, node: str) -> Any:
        name = self._nodes[node].op_type[len(REFERENCE):]
        return self._primitives.get(name) or self._graph.primitives[name]

    def _change(self, node: str) -> str:
        """Have a node of our own under this name."""
        if node not in self._own:
            proto = self._own[node] = mindir.NodeProto()
            proto.CopyFrom(self._nodes[node])
            self._nodes[node] = proto
        return node

    def _reference(self, primitive: Any) -> str:
        """The kind of a node that has this primitive, which becomes one of the graph."""
        for name, known in self._primitives.items():
            if known.op_type == primitive.op_type and known.attribute == primitive.attribute:
                return REFERENCE + name
        own = mindir.PrimitiveProto()
        own.CopyFrom(primitive)
        own.name = f"{self._prefix}{len(self._primitives)}.{primitive.op_type}"
        self._primitives[own.name] = own
        return REFERENCE + own.name

    def _add(self, node: Any, inputs: Sequence[str]) -> str:
        name = node.name = node.output[0] = f"{self._prefix}{len(self._nodes)}"
        self._nodes[name] = self._own[name] = node
        self._set_inputs(name, inputs)
        return name

    def _add_behind(self, behind: str, node: Any, inputs: Sequence[str]) -> str:
        name = self._add(node, inputs)
        self._added.setdefault(behind, []).append(name)
        return name

    def _set_inputs(self, node: str, inputs: Sequence[str]) -> None:
        """Let a node read these values, and what nobody reads any more read nothing."""
        before, self._inputs[node] = self._inputs.get(node, ()), list(inputs)
        for value in inputs:
            self._readers.setdefault(value, {})[node] = None
        still = frozenset(inputs)
        waiting = [(node, value) for value in before if value not in still]
        while waiting:
            reader, value = waiting.pop()
            self._readers[value].pop(reader, None)
            if not self._readers[value] and value in self._nodes and value not in self._kept:
                waiting.extend((value, read) for read in self._inputs[value])
                self._inputs[value] = []
