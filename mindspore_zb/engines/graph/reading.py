"""A serialised graph, read into an index by name, if it is safe by itself.

A graph is a ``ModelProto`` whose nodes stand in an order of execution and refer to values by name: inputs, parameters,
constants and earlier nodes. Each node names its primitive and states the type of its one output.
"""

import sys
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from mindspore.train.mind_ir_pb2 import GraphProto, ModelProto, NodeProto, PrimitiveProto, Version

from mindspore_zb.engines.graph.attributes import (MONADS, Type, check_attributes, check_fields, read_tensor,
                                                   read_type, read_value)
from mindspore_zb.errors import MalformedGraphError

CONSTANT = "Constant"
REFERENCE = "REF::"
TUPLES = {"MakeTuple": "TUPLE", "make_list": "LIST", "MakeList": "LIST"}
GETTERS = ("TupleGetItem", "list_getitem", "ListGetItem")
_SPECIAL_NAMES = ("MetaFuncGraph::", "ClassType::")  # the loader makes objects of such names instead of looking them up
_MODEL_FIELDS = ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string", "graph",
                 "little_endian", "primitives", "mind_ir_version", "user_info")
_GRAPH_FIELDS = ("node", "name", "parameter", "doc_string", "input", "output", "bprop_hash", "attribute",
                 "bprop_filepath")
_NODE_FIELDS = ("input", "output", "name", "op_type", "attribute", "doc_string", "domain", "node_attr", "primal_attr")


Source = Tuple[str, Tuple[int, ...]]


@dataclass(frozen=True)
class ModelIndex:
    """What a checked graph holds, by name.

    Attributes:
        primitives: of each primitive its proto.
        nodes: of each node, constants included, its proto.
        types: of each input, parameter and node its type: see :data:`~mindspore_zb.engines.graph.attributes.Type`.
        attributes: of each attribute of the graph its type.
        sources: of each value ``(name, positions)``: what it is behind Depend, Load, and tuples and stacks taken apart
            again; ``positions`` lead to an element of a tuple that some operation gives as a whole.
    """
    primitives: Mapping[str, PrimitiveProto]
    nodes: Mapping[str, NodeProto]
    types: Mapping[str, Type]
    attributes: Mapping[str, Type]
    sources: Mapping[str, Source]

    def operation(self, name: str) -> Optional[str]:
        """The operation of a node, "Constant" for a constant; None for an input or a parameter."""
        node = self.nodes.get(name)
        if node is None or node.op_type == CONSTANT:
            return None if node is None else CONSTANT
        return self.primitives[node.op_type[len(REFERENCE):]].op_type


def index_model(model: ModelProto) -> ModelIndex:
    """The index of a model; :class:`MalformedGraphError` unless it is safe to load, whatever its nodes compute."""
    _check_head(model)
    graph = model.graph
    names: Dict[str, str] = {}
    primitives = _read_primitives(model, names)
    check_fields(graph, _GRAPH_FIELDS, "the graph")
    _claim(graph.name, "the graph", names)
    check_attributes(graph.attribute, "the graph")
    attributes = {attribute.name: read_value(attribute, "") for attribute in graph.attribute}
    types: Dict[str, Type] = {}
    _read_inputs(graph, names, types)
    _read_parameters(graph, names, types)
    index = ModelIndex(primitives, {}, types, attributes, {name: (name, ()) for name in types})
    for node in graph.node:
        _read_node(node, names, index)
    _check_output(graph, index)
    return index


def _check_head(model: ModelProto) -> None:
    for field in ("producer_name", "model_version", "graph"):
        if not model.HasField(field):
            raise MalformedGraphError(f"the model has no '{field}'")
    if model.functions:
        raise MalformedGraphError(f"the model has {len(model.functions)} sub-functions")
    check_fields(model, _MODEL_FIELDS, "the model")
    if model.HasField("little_endian") and model.little_endian != (sys.byteorder == "little"):
        raise MalformedGraphError("the model was written by a machine of the other byte order")
    if model.mind_ir_version not in Version.values() or model.mind_ir_version < Version.IR_VERSION_WITH_PRIM_FUNCTION:
        raise MalformedGraphError(f"the model has the version {model.mind_ir_version}, which is read in another way")


def _claim(name: str, place: str, names: Dict[str, str]) -> None:
    """All names are in one space."""
    if not name:
        raise MalformedGraphError(f"{place} has no name")
    if name.startswith(_SPECIAL_NAMES):
        raise MalformedGraphError(f"{place} has the name '{name}', which the loader does not look up")
    if name in names:
        raise MalformedGraphError(f"the name '{name}' of {place} is also that of {names[name]}")
    names[name] = place


def _read_primitives(model: ModelProto, names: Dict[str, str]) -> Dict[str, PrimitiveProto]:
    primitives = {}
    for primitive in model.primitives:
        place = f"primitive '{primitive.name}'"
        _claim(primitive.name, place, names)
        if not primitive.op_type:
            raise MalformedGraphError(f"{place} has no operation")
        if not primitive.HasField("prim_type") or primitive.prim_type not in PrimitiveProto.PrimType.values():
            raise MalformedGraphError(f"{place} has no known primitive type")
        check_attributes(primitive.attribute, place)
        primitives[primitive.name] = primitive
    return primitives


def _short(name: str) -> str:
    """The name by which the loader calls an input or a parameter."""
    return name.split(":", 1)[-1]


def _read_inputs(graph: GraphProto, names: Dict[str, str], types: Dict[str, Type]) -> None:
    for position, value in enumerate(graph.input):
        place = f"input {position} '{value.name}'"
        _claim(value.name, place, names)
        check_fields(value, ("name", "tensor", "doc_string"), place)
        if len(value.tensor) != 1:
            raise MalformedGraphError(f"{place} has {len(value.tensor)} tensors instead of one")
        types[value.name] = read_tensor(value.tensor[0], place, ("name", "ref_key"))


def _read_parameters(graph: GraphProto, names: Dict[str, str], types: Dict[str, Type]) -> None:
    called = {_short(value.name): f"input '{value.name}'" for value in graph.input}
    for parameter in graph.parameter:
        place = f"parameter '{parameter.name}'"
        _claim(parameter.name, place, names)
        short = _short(parameter.name)
        if not short or short in called:
            raise MalformedGraphError(f"{place} is called '{short}'" + (f" like {called[short]}" if short else ""))
        called[short] = place
        types[parameter.name] = read_tensor(parameter, place, ("name", "ref_key", "compression_type", "raw_data"))


def _read_node(node: NodeProto, names: Dict[str, str], index: ModelIndex) -> None:
    """Check a node whose predecessors are all in the index, and put it there."""
    place = f"node '{node.name}'"
    check_fields(node, _NODE_FIELDS, place)
    if len(node.output) != 1:
        raise MalformedGraphError(f"{place} has {len(node.output)} outputs instead of one")
    if not node.name:
        raise MalformedGraphError(f"the node of output '{node.output[0]}' has no name")
    if node.output[0] != node.name:
        raise MalformedGraphError(f"{place} calls its output '{node.output[0]}'")
    _claim(node.name, place, names)
    check_attributes(node.node_attr, place)
    check_attributes(node.primal_attr, place)
    index.nodes[node.name] = node
    if node.op_type == CONSTANT:
        index.types[node.name] = _type_of_constant(node, place)
    else:
        _check_references(node, place, index)
        index.types[node.name] = _type_of_operation(node, place, index)
    index.sources[node.name] = _source(node, index)


def _source(node: NodeProto, index: ModelIndex) -> Source:
    operation = index.operation(node.name)
    if operation in ("Depend", "Load"):
        return index.sources[node.input[0]]
    if operation in GETTERS:
        position = index.nodes[node.input[1]].attribute[0].i % len(index.types[node.input[0]][1])
        return element(index.sources[node.input[0]], position, index)
    return node.name, ()


def element(source: Source, position: int, index: ModelIndex) -> Source:
    """An element of a tuple."""
    name, positions = source
    if not positions and index.operation(name) in TUPLES:
        return index.sources[index.nodes[name].input[position]]
    if not positions and index.operation(name) == "Unstack":
        stack, inside = index.sources[index.nodes[name].input[0]]
        if not inside and index.operation(stack) == "Stack" and _undoes(name, stack, index):
            return element(index.sources[index.nodes[stack].input[0]], position, index)
    return name, (*positions, position)


def _undoes(unstack: str, stack: str, index: ModelIndex) -> bool:
    """Whether a node gives the tensors that another one stacked."""
    axes = [[attribute for attribute in index.primitives[index.nodes[name].op_type[len(REFERENCE):]].attribute
             if attribute.name == "axis"] for name in (unstack, stack)]
    return axes[0] == axes[1] and index.types[unstack] == index.types[index.nodes[stack].input[0]]


def _type_of_constant(node: NodeProto, place: str) -> Type:
    if node.input:
        raise MalformedGraphError(f"{place} is a constant with inputs")
    if len(node.attribute) != 1:
        raise MalformedGraphError(f"{place} is a constant with {len(node.attribute)} values instead of one")
    return read_value(node.attribute[0], f"the value of {place}", monads=True)


def _check_references(node: NodeProto, place: str, index: ModelIndex) -> None:
    """A node's primitive and inputs are there already."""
    if not node.op_type.startswith(REFERENCE) or node.op_type[len(REFERENCE):] not in index.primitives:
        raise MalformedGraphError(f"{place} has the operation '{node.op_type}', which is no primitive of the model")
    if not node.domain:
        raise MalformedGraphError(f"{place} has no domain")
    if not node.input:
        raise MalformedGraphError(f"{place} has no input")
    for name in node.input:
        if name not in index.types:
            raise MalformedGraphError(f"{place} reads '{name}', which is no input, parameter or earlier node")


def _type_of_operation(node: NodeProto, place: str, index: ModelIndex) -> Type:
    """The stated type, after a look whether it can be right."""
    if [attribute.name for attribute in node.attribute] != ["shape"]:
        raise MalformedGraphError(f"{place} has the attributes {[item.name for item in node.attribute]} instead of a "
                                  "single 'shape'")
    stated = read_type(node.attribute[0], f"the shape of {place}")
    operation = index.operation(node.name)
    inputs = [index.types[name] for name in node.input]
    if operation == "UpdateState":
        if stated not in MONADS or inputs[0] != stated or len(inputs) < 2:
            raise MalformedGraphError(f"{place} does not lead from a monad and what it waits for to a monad like it")
        return stated
    if stated in MONADS and operation != "Depend":
        raise MalformedGraphError(f"{place} gives a monad, though it is no UpdateState")
    if operation in GETTERS or operation in ("Depend", "Load"):
        if len(inputs) != 2:
            raise MalformedGraphError(f"{place} has {len(inputs)} inputs instead of two")
    rule = _RULES.get(operation)
    if rule is None:
        _check_monads_last(place, inputs)
    else:
        right = rule(node, place, inputs, index)
        if stated != right:
            raise MalformedGraphError(f"{place} states the type {stated} where its inputs make it {right}")
    return stated


def _check_monads_last(place: str, inputs: Any) -> None:
    """Side effects take the monads that order them after all data."""
    data = [position for position, kind in enumerate(inputs) if kind not in MONADS]
    if not data or data[-1] != len(data) - 1:
        raise MalformedGraphError(f"{place} has a monad where it must have data")


def _type_of_tuple(node: NodeProto, place: str, inputs: Any, index: ModelIndex) -> Type:
    del place
    return TUPLES[index.operation(node.name)], tuple(inputs)


def _type_of_element(node: NodeProto, place: str, inputs: Any, index: ModelIndex) -> Type:
    if inputs[0][0] not in ("TUPLE", "LIST"):
        raise MalformedGraphError(f"{place} takes an element of '{node.input[0]}', which is no tuple")
    if inputs[1] != ("INT64",) or index.operation(node.input[1]) != CONSTANT:
        raise MalformedGraphError(f"{place} takes an element by '{node.input[1]}', which is no constant integer")
    position, size = index.nodes[node.input[1]].attribute[0].i, len(inputs[0][1])
    if not -size <= position < size:
        raise MalformedGraphError(f"{place} takes element {position} of the {size} of '{node.input[0]}'")
    return inputs[0][1][position]


def _type_of_first(node: NodeProto, place: str, inputs: Any, index: ModelIndex) -> Type:
    del node, place, index
    return inputs[0]


def _type_of_load(node: NodeProto, place: str, inputs: Any, index: ModelIndex) -> Type:
    if inputs[0][0] != "tensor" or inputs[1] not in MONADS or index.operation(node.input[0]) == CONSTANT:
        raise MalformedGraphError(f"{place} does not load a parameter after a monad")
    return inputs[0]


_RULES = {**dict.fromkeys(TUPLES, _type_of_tuple), **dict.fromkeys(GETTERS, _type_of_element),
          "Depend": _type_of_first, "Load": _type_of_load}


def _check_output(graph: GraphProto, index: ModelIndex) -> None:
    if len(graph.output) != 1:
        raise MalformedGraphError(f"the graph has {len(graph.output)} outputs instead of one")
    output = graph.output[0]
    place = f"output '{output.name}'"
    if output.name not in index.types:
        raise MalformedGraphError(f"{place} is no value of the graph")
    check_fields(output, ("name", "tensor", "doc_string", "denotation", "attr_info"), place)
    if output.HasField("attr_info") == bool(output.tensor) or len(output.tensor) > 1:
        raise MalformedGraphError(f"{place} does not have its type exactly once")
    stated = read_type(output.attr_info, place) if output.HasField("attr_info") else \
        read_tensor(output.tensor[0], place, ("name", "ref_key"))
    if stated != index.types[output.name]:
        raise MalformedGraphError(f"{place} has the type {stated}, its node {index.types[output.name]}")
    if _holds_monad(stated):
        raise MalformedGraphError(f"{place} holds a monad")


def _holds_monad(kind: Type) -> bool:
    return kind in MONADS or kind[0] in ("TUPLE", "LIST") and any(map(_holds_monad, kind[1]))
