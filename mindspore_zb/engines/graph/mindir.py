"""Read an exported graph: which node computes which value from which, and of what shape and dtype each value is.

A *value* is one tensor: an input, a parameter, the result of a node, or one entry of a node's tuple of results. Nodes
that compute nothing are looked through: tuples are taken as their entries, ``Depend`` and the ``Load`` of a parameter
that nobody writes as what they pass on.
"""

from functools import lru_cache
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Sequence, Set, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mindspore_zb.engines.graph.native import mindir
from mindspore_zb.errors import UnsupportedError

Meta = Tuple[Tuple[int, ...], Any]
"""Shape and dtype of a tensor."""

_ATTRIBUTE = mindir.AttributeProto
_MONADS = (_ATTRIBUTE.UMONAD, _ATTRIBUTE.IOMONAD)
REFERENCE = "REF::"
"""What the kind of a node begins with where it is the name of a primitive of the model."""
_TUPLES = ("MakeTuple", "MakeList")
_WRITES = {"BatchNorm": (3, 4)}
"""Which inputs an operation with effects writes; any other may write all of them."""

_DTYPES = {"FLOAT": "float32", "UINT8": "uint8", "INT8": "int8", "UINT16": "uint16", "INT16": "int16",
           "INT32": "int32", "INT64": "int64", "BOOL": "bool", "FLOAT16": "float16", "DOUBLE": "float64",
           "UINT32": "uint32", "UINT64": "uint64", "BFLOAT16": "bfloat16", "FLOAT64": "float64",
           "COMPLEX64": "complex64", "COMPLEX128": "complex128"}


class JointGraph:
    """A graph of one level, as MindSpore exports it.

    Attributes:
        model: the ``ModelProto``.
        inputs, parameters: names of the values that the graph is given.
        order: names of the nodes that compute, each after what it reads.
        written: parameters that some node writes.
        effects: nodes that do more than compute their result, such as to write a parameter or to print.
        primitives: the primitives by name.
    """

    def __init__(self, model: Any):
        self.model = model
        graph = model.graph
        if model.functions:
            raise UnsupportedError("it has control flow that depends on tensors (if, while, for)")
        self._protos: Dict[str, Any] = {}
        for node in graph.node:
            if len(node.output) != 1:
                raise UnsupportedError(f"its node {node.name} has {len(node.output)} outputs")
            self._protos[node.output[0]] = node
        self._places = {name: place for place, name in enumerate(self._protos)}
        self.primitives = {primitive.name: primitive for primitive in model.primitives}
        self._kinds = {name: primitive.op_type for name, primitive in self.primitives.items()}
        self._primitive_of = {kind: name for name, kind in self._kinds.items()}
        self.inputs = tuple(entry.name for entry in graph.input)
        self.parameters = tuple(entry.name for entry in graph.parameter)
        self._given = {entry.name: entry for entry in (*graph.input, *graph.parameter)}
        self._parameter_set = frozenset(self.parameters)
        self.effects = tuple(self._find_effects())
        self.written: FrozenSet[str] = frozenset(
            name for node in self.effects for place, name in enumerate(self._protos[node].input)
            if name in self._parameter_set and place in _WRITES.get(self.kind(node), (place,)))
        self._alias: Dict[str, str] = {}
        self._find_aliases()
        self.order = tuple(name for name in self._protos if self.computes(name))
        self._reads = {node: tuple(self._values_below(self._protos[node].input)) for node in self.order}

    # --- nodes --------------------------------------------------------------------------------------------------------

    def proto(self, name: str) -> Any:
        """The ``NodeProto`` with this output."""
        return self._protos[name]

    def kind(self, name: str) -> str:
        """The operation of a node; "" for what is no node."""
        node = self._protos.get(name)
        return "" if node is None else self.kind_of(node)

    def kind_of(self, node: Any) -> str:
        """The operation of a ``NodeProto`` that names a primitive of this graph."""
        kind = node.op_type
        return self._kinds.get(kind[len(REFERENCE):], kind) if kind.startswith(REFERENCE) else kind

    def place(self, name: str) -> int:
        """The place of a node in the exported graph's order."""
        return self._places[name]

    def primitive_of(self, kind: str) -> Optional[str]:
        """The name of a primitive of this operation; None if there is none."""
        return self._primitive_of.get(kind)

    def protos(self) -> Iterator[Tuple[str, Any]]:
        """All nodes of the exported graph in its order, by output."""
        return iter(self._protos.items())

    def computes(self, name: str) -> bool:
        """Whether a node computes something, rather than to hold, gather or pass on what others did."""
        kind = self.kind(name)
        return not (kind in ("", "Constant", "UpdateState", "TupleGetItem", "ListGetItem", *_TUPLES)
                    or name in self._alias)

    def reads(self, node: str) -> Tuple[str, ...]:
        """The values that a computing node reads, constants left out."""
        return self._reads[node]

    def node_of(self, value: str) -> Optional[str]:
        """The node that computes a value; None for inputs, parameters and constants."""
        while self.kind(value) in ("TupleGetItem", "ListGetItem"):
            value = self.resolve(self._protos[value].input[0])
        return value if value in self._reads else None

    def ancestors(self, values: Sequence[str], stop: FrozenSet[str] = frozenset()) -> Set[str]:
        """The nodes that ``values`` are computed by, without those of ``stop`` and what only they need."""
        found: Set[str] = set()
        waiting = list(values)
        while waiting:
            node = self.node_of(waiting.pop())
            if node is not None and node not in found and node not in stop:
                found.add(node)
                waiting.extend(self._reads[node])
        return found

    def done_before(self, moment: str) -> Set[str]:
        """The nodes that an order of effects has behind it; ``moment`` is a monad."""
        found: Set[str] = set()
        waiting = [moment]
        while waiting:
            name = self.resolve(waiting.pop())
            if name not in found and name in self._protos:
                found.add(name)
                if self.kind(name) in ("UpdateState", *_TUPLES):
                    waiting.extend(self._protos[name].input)
        return found

    # --- values -------------------------------------------------------------------------------------------------------

    def resolve(self, name: str) -> str:
        """The value behind the names that only pass it on."""
        while name in self._alias:
            name = self._alias[name]
        return name

    def is_constant(self, name: str) -> bool:
        """Whether this is a constant of the graph."""
        return self.kind(name) == "Constant"

    def is_monad(self, name: str) -> bool:
        """Whether this is no value, but says what must have happened before."""
        if self.kind(name) == "UpdateState":
            return True
        return self.is_constant(name) and self._protos[name].attribute[0].type in _MONADS

    def tensor_proto(self, value: str) -> Optional[Any]:
        """Shape and dtype of a value as a ``TensorProto``; None if it is not one tensor of known shape."""
        if value in self._parameter_set:
            found = mindir.TensorProto()
            found.dims.extend(self._given[value].dims)
            found.data_type = self._given[value].data_type
            return found
        if value in self._given:
            tensors = self._given[value].tensor
        else:
            shapes = [entry for entry in self._protos[value].attribute if entry.name == "shape"]
            tensors = shapes[0].tensors if shapes and shapes[0].type == _ATTRIBUTE.TENSORS else ()
        return tensors[0] if len(tensors) == 1 else None

    def meta(self, value: str) -> Meta:
        """Shape and dtype of a value.

        Raises:
            UnsupportedError: it is not one tensor of a fixed shape.
        """
        if self.is_constant(value):
            tensor = self.constant(value)
            return tuple(tensor.shape), tensor.dtype
        found = self.tensor_proto(value)
        if found is None:
            raise UnsupportedError(f"its value {value} ({self.kind(value)}) is not one tensor")
        if any(size < 0 for size in found.dims):
            raise UnsupportedError(f"its value {value} ({self.kind(value)}) has a shape that depends on data")
        return tuple(found.dims), dtype_of(found)

    def is_static_tensor(self, value: str) -> bool:
        """Whether a value is one tensor of a fixed shape."""
        found = self.tensor_proto(value)
        return found is not None and all(size >= 0 for size in found.dims)

    def nbytes(self, value: str) -> int:
        """Bytes of a value; 0 if it is not one tensor."""
        found = self.tensor_proto(value)
        return 0 if found is None else _item_size(found.data_type) * int(np.prod([max(size, 0) for size in found.dims]))

    def constant(self, name: str) -> Tensor:
        """The value of a constant that is one tensor.

        Raises:
            UnsupportedError: it is something else.
        """
        entry = self._protos[name].attribute[0]
        if entry.type != _ATTRIBUTE.TENSORS or len(entry.tensors) != 1:
            raise UnsupportedError(f"its result {name} is a constant that is no tensor")
        proto = entry.tensors[0]
        dtype = dtype_of(proto)
        if dtype == ms.bfloat16:
            halves = np.frombuffer(proto.raw_data, np.uint16).astype(np.uint32) << 16
            return Tensor(halves.view(np.float32).reshape(tuple(proto.dims))).astype(ms.bfloat16)
        values = np.frombuffer(proto.raw_data, _numpy_dtype(proto.data_type)).reshape(tuple(proto.dims))
        return Tensor(values.copy(), dtype)

    # --- results ------------------------------------------------------------------------------------------------------

    def result(self) -> List[str]:
        """The values that the graph returns, taken out of all tuples, in order."""
        return self._flat(self.model.graph.output[0].name)

    def result_entries(self) -> List[List[str]]:
        """The same for each entry of the outermost tuple."""
        top = self.resolve(self.model.graph.output[0].name)
        if self.kind(top) not in _TUPLES:
            raise UnsupportedError("its result is no tuple")
        return [self._flat(entry) for entry in self._protos[top].input]

    def _flat(self, name: str) -> List[str]:
        name = self.resolve(name)
        if self.kind(name) in _TUPLES:
            return [value for entry in self._protos[name].input for value in self._flat(entry)]
        if self.is_constant(name):
            entry = self._protos[name].attribute[0]
            if entry.type == _ATTRIBUTE.TUPLE and not entry.values:
                return []
        return [name]

    # --- how it is found out ------------------------------------------------------------------------------------------

    def _find_effects(self) -> Iterator[str]:
        for name, node in self._protos.items():
            kind = self.kind(name)
            if kind not in ("Load", "UpdateState", "Depend", "Constant", *_TUPLES) and \
                    any(self.is_monad(entry) for entry in node.input):
                yield name

    def _find_aliases(self) -> None:
        first: Dict[Tuple[str, int], str] = {}  # the same entry of a tuple may have been taken out several times
        for name, node in self._protos.items():
            kind = self.kind(name)
            if kind == "Depend" or (kind == "Load" and node.input[0] in self._parameter_set - self.written):
                self._alias[name] = node.input[0]
            elif kind in ("TupleGetItem", "ListGetItem"):
                whole, index = self.resolve(node.input[0]), _index(self._protos[node.input[1]])
                if self.kind(whole) in _TUPLES:
                    self._alias[name] = self._protos[whole].input[index]
                elif first.setdefault((whole, index), name) != name:
                    self._alias[name] = first[whole, index]

    def _values_below(self, names: Sequence[str]) -> Iterator[str]:
        for name in names:
            name = self.resolve(name)
            if self.is_constant(name) or self.is_monad(name):
                continue
            if self.kind(name) in _TUPLES:
                yield from self._values_below(self._protos[name].input)
            else:
                yield name


def dtype_of(proto: Any) -> Any:
    """The dtype of a ``TensorProto``.

    Raises:
        UnsupportedError: it is none that this engine knows.
    """
    return _dtype(proto.data_type)


@lru_cache(maxsize=None)
def _dtype(number: int) -> Any:
    return _dtype_called(_name(number))


def _dtype_called(name: str) -> Any:
    return getattr(ms, {"bool": "bool_"}.get(name, name))


def dtypes_by_text() -> Dict[str, Any]:
    """The dtypes that this engine knows, by what ``str`` makes of them."""
    return {str(dtype): dtype for dtype in map(_dtype_called, _DTYPES.values())}


def _name(number: int) -> str:
    name = mindir.TensorProto.DataType.Name(number) if number in mindir.TensorProto.DataType.values() else str(number)
    if name not in _DTYPES:
        raise UnsupportedError(f"it has a tensor of dtype {name}")
    return _DTYPES[name]


def _numpy_dtype(number: int) -> np.dtype:
    """The dtype of the raw data; numpy has no bfloat16, whose size is that of float16."""
    return np.dtype({"bfloat16": "float16"}.get(_name(number), _name(number)))


@lru_cache(maxsize=None)
def _item_size(number: int) -> int:
    return _numpy_dtype(number).itemsize


def _index(constant: Any) -> int:
    return constant.attribute[0].i
