"""Ways to spoil a serialised graph: each is a function that changes one place of it, or a few bytes.

A kind takes a ``ModelProto`` to change and a ``Random``; it may raise ``IndexError`` where there is nothing to change.
"""

from mindspore.train.mind_ir_pb2 import AttributeProto, TensorProto

CONSTANT = "Constant"


def nodes(model):
    return [node for node in model.graph.node if node.op_type != CONSTANT]


def constants(model):
    return [node for node in model.graph.node if node.op_type == CONSTANT]


def of_kind(model, *kinds):
    names = {f"REF::{primitive.name}" for primitive in model.primitives if primitive.op_type in kinds}
    return [node for node in model.graph.node if node.op_type in names]


def attributes(model):
    """All attributes at top level, wherever they are."""
    found = list(model.graph.attribute)
    for node in model.graph.node:
        found += [*node.attribute, *node.node_attr, *node.primal_attr]
    return found + [attribute for primitive in model.primitives for attribute in primitive.attribute]


def sequences(model):
    return [attribute for attribute in attributes(model) if attribute.values]


def stated_tensors(model):
    """The tensors in the types of nodes."""
    found = []
    waiting = [attribute for node in nodes(model) for attribute in node.attribute]
    while waiting:
        attribute = waiting.pop()
        found += attribute.tensors
        waiting += attribute.values
    return found


def data_tensors(model):
    """Tensors that come with data."""
    found = [tensor for node in constants(model) for attribute in node.attribute for tensor in attribute.tensors]
    return [tensor for tensor in [*found, *model.graph.parameter] if tensor.HasField("raw_data")]


def all_tensors(model):
    return [*stated_tensors(model), *data_tensors(model), *model.graph.parameter,
            *(tensor for value in model.graph.input for tensor in value.tensor)]


def pick(random, items):
    """One of them, as any."""
    items = list(items)
    if not items:
        raise IndexError
    return items[random.randrange(len(items))]


def drop(random, repeated):
    if not repeated:
        raise IndexError
    del repeated[random.randrange(len(repeated))]


# --- nodes and names --------------------------------------------------------------------------------------------------

def drop_node(model, random):
    del model.graph.node[random.randrange(len(model.graph.node))]


def repeat_node(model, random):
    model.graph.node.add().CopyFrom(pick(random, model.graph.node))


def swap_nodes(model, random):
    one, other = pick(random, model.graph.node), pick(random, model.graph.node)
    copy = type(one)()
    copy.CopyFrom(one)
    one.CopyFrom(other)
    other.CopyFrom(copy)


def reverse_nodes(model, _):
    copies = [type(node)() for node in model.graph.node]
    for copy, node in zip(copies, model.graph.node):
        copy.CopyFrom(node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(copies))


def rename_node(model, random):
    node = pick(random, model.graph.node)
    node.name = node.output[0] = pick(random, ("", "x", "ClassType::x", "MetaFuncGraph::x", "a:b:c",
                                               pick(random, model.graph.node).name, model.graph.name))


def rename_only_the_node(model, random):
    pick(random, model.graph.node).name = pick(random, ("", "other"))


def clear_node_field(model, random):
    pick(random, model.graph.node).ClearField(pick(random, ("name", "output", "input", "op_type", "attribute", "domain",
                                                            "node_attr", "primal_attr")))


def add_output(model, random):
    pick(random, model.graph.node).output.append("second")


def change_domain(model, random):
    pick(random, nodes(model)).domain = pick(random, ("", "x", "Default", "Default/x" * 50))


# --- inputs of nodes --------------------------------------------------------------------------------------------------

def swap_inputs(model, random):
    node = pick(random, [node for node in nodes(model) if len(node.input) > 1])
    one, other = random.sample(range(len(node.input)), 2)
    node.input[one], node.input[other] = node.input[other], node.input[one]


def redirect_input(model, random):
    node = pick(random, nodes(model))
    node.input[random.randrange(len(node.input))] = pick(random, [*(item.name for item in model.graph.node),
                                                                  *(item.name for item in model.graph.input),
                                                                  *(item.name for item in model.graph.parameter)])


def forget_input(model, random):
    node = pick(random, nodes(model))
    node.input[random.randrange(len(node.input))] = pick(random, ("", "nothing", "MetaFuncGraph::add", "ClassType::x"))


def read_itself(model, random):
    node = pick(random, nodes(model))
    node.input[random.randrange(len(node.input))] = node.name


def read_a_primitive(model, random):
    node = pick(random, nodes(model))
    node.input[random.randrange(len(node.input))] = pick(random, [pick(random, model.primitives).name,
                                                                  model.graph.name])


def drop_input(model, random):
    drop(random, pick(random, nodes(model)).input)


def add_input(model, random):
    node = pick(random, nodes(model))
    node.input.append(pick(random, model.graph.node).name)


def add_input_to_constant(model, random):
    pick(random, constants(model)).input.append(pick(random, model.graph.input).name)


def spoil_monads(model, random):
    node = pick(random, of_kind(model, "UpdateState", "Load", "Depend"))
    choice = random.randrange(3)
    if choice == 0:
        node.input[0] = pick(random, model.graph.node).name
    elif choice == 1:
        node.input[len(node.input) - 1] = pick(random, model.graph.node).name
    else:
        drop(random, node.input)


# --- primitives -------------------------------------------------------------------------------------------------------

def drop_primitive(model, random):
    drop(random, model.primitives)


def repeat_primitive(model, random):
    model.primitives.add().CopyFrom(pick(random, model.primitives))


def change_operation(model, random):
    pick(random, model.primitives).op_type = pick(random, ("", "Nothing", "S-Prim-Add", "Return", "Partial", "Switch",
                                                           pick(random, model.primitives).op_type))


def clear_primitive_field(model, random):
    pick(random, model.primitives).ClearField(pick(random, ("name", "op_type", "attribute", "instance_name",
                                                            "prim_type")))


def drop_primitive_attribute(model, random):
    drop(random, pick(random, [item for item in model.primitives if item.attribute]).attribute)


def change_primitive_value(model, random):
    attribute = pick(random, [attribute for item in model.primitives for attribute in item.attribute])
    for holder in attribute.values or [attribute]:
        for field, value in (("i", 99), ("f", 1e30), ("s", b"nothing")):
            if holder.HasField(field):
                setattr(holder, field, value)
        holder.ints[:] = [99] * len(holder.ints)
        holder.strings[:] = [b"nothing"] * len(holder.strings)


def change_reference(model, random):
    pick(random, nodes(model)).op_type = pick(random, ("REF::", "REF::nothing", "Add", "", "REF", "MatMul",
                                                       f"REF::{pick(random, model.graph.node).name}",
                                                       f"REF::{model.graph.name}", CONSTANT,
                                                       f"REF::{pick(random, model.primitives).name}"))


# --- attributes -------------------------------------------------------------------------------------------------------

def change_type(model, random):
    pick(random, attributes(model)).type = pick(random, AttributeProto.AttributeType.values())


def clear_type(model, random):
    pick(random, attributes(model)).ClearField("type")


def clear_value(model, random):
    attribute = pick(random, attributes(model))
    for field in ("i", "f", "d", "s", "tensors", "values"):
        attribute.ClearField(field)


def rename_attribute(model, random):
    pick(random, attributes(model)).name = pick(random, ("", "shape", "value", "other"))


def repeat_attribute(model, random):
    node = pick(random, nodes(model))
    node.attribute.add().CopyFrom(node.attribute[0])


def move_scalar(model, random):
    """To the fields of the other convention."""
    attribute = pick(random, [item for item in attributes(model) if item.HasField("i") or item.HasField("s")])
    attribute.ints.append(attribute.i)
    attribute.strings.append(attribute.s)
    attribute.ClearField("i")
    attribute.ClearField("s")


def move_nested_scalar(model, random):
    attribute = pick(random, [item for item in sequences(model) if item.values[0].ints or item.values[0].strings])
    for value in attribute.values:
        if value.ints:
            value.i = value.ints[0]
        for item in value.strings:
            value.s = item
        value.ClearField("ints")
        value.ClearField("strings")


def empty_nested_value(model, random):
    value = pick(random, pick(random, sequences(model)).values)
    for field in ("ints", "strings", "tensors", "values"):
        value.ClearField(field)


def change_nested_type(model, random):
    pick(random, pick(random, sequences(model)).values).type = pick(random, AttributeProto.AttributeType.values())


def drop_nested_value(model, random):
    drop(random, pick(random, sequences(model)).values)


def repeat_nested_value(model, random):
    attribute = pick(random, sequences(model))
    attribute.values.add().CopyFrom(attribute.values[0])


def nest_deeply(model, random):
    attribute = pick(random, [*sequences(model), *model.graph.attribute])
    attribute.type = AttributeProto.TUPLE
    for _ in range(40):
        attribute = attribute.values.add(type=AttributeProto.TUPLE)


def add_reference_name(model, random):
    """As older versions wrote attributes."""
    pick(random, attributes(model)).ref_attr_name = pick(random, ("scalar:Tuple[value1,]", "shape:", "tensor:value0",
                                                                  "Monad", "type:", "scalar:]"))


def change_node_attribute(model, random):
    node = pick(random, [node for node in nodes(model) if node.node_attr or node.primal_attr])
    attribute = pick(random, [*node.node_attr, *node.primal_attr])
    attribute.CopyFrom(AttributeProto(name=attribute.name, **pick(random, (
        {"type": AttributeProto.STRING, "s": b"x"}, {"type": AttributeProto.INT64, "i": 7},
        {"type": AttributeProto.BOOL, "i": 0}, {"type": AttributeProto.FLOAT, "f": 0.5}))))


def change_graph_attribute(model, random):
    attribute = pick(random, model.graph.attribute)
    attribute.CopyFrom(AttributeProto(name=attribute.name, **pick(random, (
        {"type": AttributeProto.STRING, "s": b"x"}, {"type": AttributeProto.INT64, "i": 7},
        {"type": AttributeProto.BOOL, "i": 1}))))


def add_functor(model, random):
    attribute = pick(random, attributes(model))
    attribute.type = AttributeProto.FUNCTOR
    attribute.functor.name = "ShapeCalc"
    attribute.functor.type = 1


def make_dynamic_length(model, random):
    attribute = pick(random, [item for node in nodes(model) for item in node.attribute if item.HasField("seq_info")])
    attribute.seq_info.is_dyn_len = True


# --- tensors ----------------------------------------------------------------------------------------------------------

def change_dim(model, random):
    tensor = pick(random, [tensor for tensor in all_tensors(model) if tensor.dims])
    tensor.dims[random.randrange(len(tensor.dims))] = pick(random, (0, 1, 2, 50, 3000, -1, -2, 2 ** 31, 2 ** 62))


def change_stated_dim(model, random):
    tensor = pick(random, [tensor for tensor in stated_tensors(model) if tensor.dims])
    tensor.dims[random.randrange(len(tensor.dims))] = pick(random, (0, 1, 7, 1000))


def drop_dim(model, random):
    drop(random, pick(random, [tensor for tensor in all_tensors(model) if tensor.dims]).dims)


def add_dim(model, random):
    pick(random, all_tensors(model)).dims.append(pick(random, (0, 1, 2, -1, 2 ** 40)))


def change_dtype(model, random):
    pick(random, all_tensors(model)).data_type = pick(random, (*TensorProto.DataType.values(), 99, -1))


def clear_tensor_field(model, random):
    pick(random, all_tensors(model)).ClearField(pick(random, ("dims", "data_type", "raw_data", "name", "ref_key")))


def shorten_data(model, random):
    tensor = pick(random, data_tensors(model))
    tensor.raw_data = tensor.raw_data[:random.randrange(len(tensor.raw_data))]


def lengthen_data(model, random):
    tensor = pick(random, data_tensors(model))
    tensor.raw_data += b"\0" * pick(random, (1, 4, 4096))


def change_data(model, random):
    tensor = pick(random, data_tensors(model))
    tensor.raw_data = bytes(random.randrange(256) for _ in tensor.raw_data)


def move_data(model, random):
    """Out of the file, or compressed."""
    tensor = pick(random, data_tensors(model))
    if random.random() < 0.5:
        tensor.compression_type = pick(random, (1, 2, 3, 6))
    else:
        tensor.external_data.location = "/nowhere"
        tensor.external_data.length = pick(random, (0, 4, 2 ** 40))
        tensor.ClearField("raw_data")


# --- constants and tuples ---------------------------------------------------------------------------------------------

def change_index(model, random):
    indices = {node.input[1] for node in of_kind(model, "TupleGetItem") if len(node.input) > 1}
    node = pick(random, [node for node in constants(model) if node.name in indices])
    node.attribute[0].i = pick(random, (1, 2, 3, 50, -1, -50, 2 ** 40))


def change_constant(model, random):
    node = pick(random, [node for node in constants(model) if node.attribute[0].HasField("i")])
    node.attribute[0].i = pick(random, (0, 1, 5, -7, 2 ** 40))


def change_constant_tuple(model, random):
    node = pick(random, [node for node in constants(model) if node.attribute[0].values])
    pick(random, node.attribute[0].values).ints[:] = [pick(random, (0, 1, 99, -1, 2 ** 40))]


def swap_constants(model, random):
    one, other = random.sample(constants(model), 2) if len(constants(model)) > 1 else constants(model)[1:]
    copy = type(one.attribute[0])()
    copy.CopyFrom(one.attribute[0])
    one.attribute[0].CopyFrom(other.attribute[0])
    other.attribute[0].CopyFrom(copy)


def shorten_tuple(model, random):
    drop(random, pick(random, of_kind(model, "MakeTuple")).input)


def take_element_of_tensor(model, random):
    node = pick(random, of_kind(model, "TupleGetItem"))
    node.input[0] = pick(random, model.graph.input).name


# --- inputs, parameters, output, head ---------------------------------------------------------------------------------

def change_input(model, random):
    value = pick(random, model.graph.input)
    choice = random.randrange(5)
    if choice == 0:
        value.ClearField("tensor")
    elif choice == 1:
        value.tensor.add().CopyFrom(value.tensor[0])
    elif choice == 2:
        value.denotation = pick(random, ("UMonadType", "Tuple"))
    elif choice == 3:
        value.attr_info.type = pick(random, (AttributeProto.TUPLE, AttributeProto.INT64, AttributeProto.TENSORS))
    else:
        value.name = pick(random, ("", pick(random, model.graph.node).name, "x"))


def drop_graph_input(model, random):
    drop(random, model.graph.input)


def repeat_graph_input(model, random):
    model.graph.input.add().CopyFrom(pick(random, model.graph.input))


def change_parameter(model, random):
    parameter = pick(random, model.graph.parameter)
    choice = random.randrange(3)
    if choice == 0:
        model.graph.parameter.add().CopyFrom(parameter)
    elif choice == 1:
        parameter.name = pick(random, ("", "x:", pick(random, model.graph.input).name,
                                       "x:" + pick(random, model.graph.parameter).name.split(":")[1]))
    else:
        parameter.string_data.append(b"x")


def drop_parameter(model, random):
    drop(random, model.graph.parameter)


def change_output(model, random):
    output = model.graph.output[0]
    choice = random.randrange(6)
    if choice == 0:
        output.name = pick(random, model.graph.node).name
    elif choice == 1:
        output.name = pick(random, ("", "nothing", model.graph.name, pick(random, model.primitives).name))
    elif choice == 2:
        output.ClearField("attr_info")
    elif choice == 3:
        model.graph.ClearField("output")
    elif choice == 4:
        model.graph.output.add().CopyFrom(output)
    else:
        output.attr_info.values.add().CopyFrom(output.attr_info.values[0])


def change_head(model, random):
    choice = random.randrange(9)
    if choice < 4:
        model.ClearField(("producer_name", "model_version", "graph", "mind_ir_version")[choice])
    elif choice == 4:
        model.little_endian = False
    elif choice == 5:
        model.mind_ir_version = 77
    elif choice == 6:
        model.functions.add().CopyFrom(model.graph)
    elif choice == 7:
        model.parallel.layout.add(name="x")
    else:
        model.graph.name = pick(random, ("", pick(random, model.primitives).name, pick(random, model.graph.node).name))


def add_map_parameter(model, _):
    found = model.graph.map_parameter.add(name="map")
    found.default_value.type = AttributeProto.INT64
    for tensor in (found.key_tensor, found.value_tensor, found.status_tensor):
        tensor.data_type = 1


KINDS = [
    drop_node, repeat_node, swap_nodes, reverse_nodes, rename_node, rename_only_the_node, clear_node_field, add_output,
    change_domain, swap_inputs, redirect_input, forget_input, read_itself, read_a_primitive, drop_input, add_input,
    add_input_to_constant, spoil_monads, drop_primitive, repeat_primitive, change_operation, clear_primitive_field,
    drop_primitive_attribute, change_primitive_value, change_reference, change_type, clear_type, clear_value,
    rename_attribute, repeat_attribute, move_scalar, move_nested_scalar, empty_nested_value, change_nested_type,
    drop_nested_value, repeat_nested_value, nest_deeply, add_reference_name, change_node_attribute,
    change_graph_attribute, add_functor, make_dynamic_length, change_dim, change_stated_dim, drop_dim, add_dim,
    change_dtype, clear_tensor_field, shorten_data, lengthen_data, change_data, move_data, change_index,
    change_constant, change_constant_tuple, swap_constants, shorten_tuple, take_element_of_tensor, change_input,
    drop_graph_input, repeat_graph_input, change_parameter, drop_parameter, change_output, change_head,
    add_map_parameter]


# --- bytes ------------------------------------------------------------------------------------------------------------

def truncate(data, random):
    return data[:random.randrange(len(data))]


def flip_bit(data, random):
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1:]


def change_bytes(data, random):
    place = random.randrange(len(data))
    return data[:place] + bytes(random.randrange(256) for _ in range(3)) + data[place + 3:]


def cut_out_bytes(data, random):
    place = random.randrange(len(data))
    return data[:place] + data[place + random.randrange(1, 9):]


def repeat_bytes(data, random):
    place = random.randrange(len(data))
    return data[:place + 8] + data[place:]


BYTE_KINDS = [truncate, flip_bit, change_bytes, cut_out_bytes, repeat_bytes]
