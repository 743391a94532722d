"""Graphs as the compiler exports them, of small networks, and pieces cut from them in the plainest way."""

from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops.composite.base import _Grad
from mindspore.train.mind_ir_pb2 import AttributeProto, ModelProto

try:  # 2.10
    from mindspore.graph import api
except ImportError:  # 2.9
    from mindspore.common import api


class Layers(nn.Cell):
    """Dense, LayerNorm, GELU."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, 6)
        self.norm = nn.LayerNorm((6,))
        self.second = nn.Dense(6, 3)

    def construct(self, x):
        return self.second(ops.gelu(self.norm(self.first(x))))


class Images(nn.Cell):
    """Convolution and BatchNorm in training, which writes its moving statistics."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.set_train()

    def construct(self, x):
        return ops.relu(self.norm(self.conv(x)))


class Parts(nn.Cell):
    """Tuples: split, concat, stack, several outputs."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((6,), np.float32)), name="weight")

    def construct(self, x):
        one, two, three = ops.split(x * self.weight, (1, 2, 3), axis=1)
        return ops.concat((three, two, one), 1), ops.stack((one, one * 2)).sum(axis=0)


class Words(nn.Cell):
    """An embedding of integers, constants that are tensors, a cast and a softmax."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.dense = nn.Dense(4, 5)

    def construct(self, ids, x):
        scores = self.dense(self.table(ids) + x) * Tensor([0.5, 1, 2, 3, 4], ms.float32)
        return ops.softmax(ops.cast(ops.cast(scores, ms.float16), ms.float32).reshape(2, 3, 5), -1)


class Steps(nn.Cell):
    """A recurrent layer and a gather by constant indices."""

    def __init__(self):
        super().__init__()
        self.table = Tensor([1, 0], ms.int32)

    def construct(self, x, y):
        return ops.gather(x, self.table, 0) @ y.swapaxes(0, 1) / 3


NETS = {"layers": (Layers, [(2, 4)]), "images": (Images, [(2, 2, 5, 5)]), "parts": (Parts, [(2, 6)]),
        "words": (Words, [(2, 3), (2, 3, 4)]), "steps": (Steps, [(2, 3), (2, 3)])}


class _Joint(nn.Cell):
    """The results of a net, then the gradients of its inputs and weights."""

    def __init__(self, net, weights, count):
        super().__init__(auto_prefix=False)
        self.net = net
        self.count = count
        self.has_weights = bool(weights)
        self.gradient = _Grad(get_all=True, get_by_list=bool(weights), sens_param=True)
        if weights:
            self.weights = ParameterTuple(weights)

    def construct(self, *arguments):
        inputs, sens = arguments[:self.count], arguments[self.count:]
        out = self.net(*inputs)
        sens = sens if isinstance(out, tuple) else sens[0]
        if self.has_weights:
            return out, self.gradient(self.net, self.weights)(*inputs, sens)
        return out, self.gradient(self.net)(*inputs, sens)


@dataclass
class Case:
    """A model, what it was cut from, and arrays to run it with."""

    name: str
    model: ModelProto
    original: ModelProto
    arguments: List[np.ndarray]


def cases() -> List[Case]:
    """All joint graphs, with data in their parameters, and the forward and backward pieces of those without effects."""
    found = []
    for name in NETS:
        model, arguments = export(name)
        for parameter in model.graph.parameter:
            parameter.raw_data = np.ones(tuple(parameter.dims), np.float32).tobytes()
        found.append(Case(name, model, model, arguments))
        if name != "images":
            found += [Case(f"{name} {part}", *cut(model, arguments, part)) for part in ("forward", "backward")]
    return found


def export(name: str) -> Tuple[ModelProto, List[np.ndarray]]:
    """The joint graph of a net and arguments for it."""
    make, shapes = NETS[name]
    net = make()
    draw = np.random.RandomState(0)
    inputs = [draw.rand(*shape).astype(np.float32) for shape in shapes]
    if name == "words":
        inputs[0] = np.array([[0, 1, 2], [6, 5, 4]], np.int32)
    outs = net(*map(Tensor, inputs))
    sens = [np.ones(out.shape, np.float32) for out in (outs if isinstance(outs, tuple) else [outs])]
    joint = _Joint(net, list(net.trainable_params()), len(inputs))
    joint.set_train(net.training)
    graph_id, _ = api._cell_graph_executor.compile(joint, *map(Tensor, (*inputs, *sens)),
                                                   phase=f"export.mindir.test.{name}", do_convert=False)
    model = ModelProto()
    model.ParseFromString(api._cell_graph_executor._get_func_graph_proto(joint, graph_id, "mind_ir",
                                                                         incremental=False))
    return model, inputs + sens


class _Graph:
    """What a cut must know of a joint graph."""

    def __init__(self, model: ModelProto):
        self.nodes = {node.name: node for node in model.graph.node}
        self.kinds = {primitive.name: primitive.op_type for primitive in model.primitives}
        self.tensors = {value.name: value.tensor[0] for value in model.graph.input}
        self.tensors.update((value.name, value) for value in model.graph.parameter)

    def kind(self, name: str) -> Optional[str]:
        node = self.nodes.get(name)
        return node and self.kinds.get(node.op_type[5:], node.op_type)

    def source(self, name: str) -> str:
        while self.kind(name) in ("Depend", "Load"):
            name = self.nodes[name].input[0]
        return name

    def reads(self, name: str) -> List[str]:
        return [self.source(item) for item in self.nodes[name].input]

    def ancestors(self, names: List[str], stop: Any = ()) -> set:
        found, waiting = set(), list(names)
        while waiting:
            name = waiting.pop()
            if name in self.nodes and name not in found and name not in stop:
                found.add(name)
                waiting += self.reads(name)
        return found

    def tensor(self, name: str) -> Any:
        if name in self.tensors:
            return self.tensors[name]
        shape = self.nodes[name].attribute[0]
        return shape.tensors[0] if shape.type == AttributeProto.TENSORS else None

    def flat(self, name: str) -> List[str]:
        name = self.source(name)
        return [leaf for item in self.nodes[name].input for leaf in self.flat(item)] \
            if self.kind(name) == "MakeTuple" else [name]


def cut(model: ModelProto, arguments: List[np.ndarray], part: str) -> Tuple[ModelProto, ModelProto, List[np.ndarray]]:
    """The forward or the backward of a joint graph, whose parameters become inputs."""
    graph = _Graph(model)
    out, gradients = graph.reads(graph.source(model.graph.output[0].name))
    forward = graph.ancestors([out])
    if part == "forward":
        members, outs = forward, graph.flat(out)
    else:
        outs = [name for name in graph.flat(gradients) if graph.kind(name) != "Constant"]
        members = graph.ancestors(outs, forward)
    tuples = {name for name in forward if graph.kind(name) != "Constant" and graph.tensor(name) is None}
    crossing = {item for name in members for item in graph.reads(name)} - members
    members |= graph.ancestors([name for name in crossing if name in tuples], forward - tuples)  # tuples cannot cross
    members |= {item for name in members for item in graph.reads(name) if graph.kind(item) == "Constant"}
    order = [*graph.tensors, *graph.nodes]
    crossing = [name for name in order if name not in members
                and any(name in graph.reads(member) for member in members if graph.kind(member) != "Constant")]
    return _piece(model, graph, members, crossing, outs), model, _values(model, graph, crossing, arguments)


def _piece(model: ModelProto, graph: _Graph, members: set, crossing: List[str], outs: List[str]) -> ModelProto:
    piece = ModelProto()
    piece.CopyFrom(model)
    for field in ("node", "parameter", "input", "output"):
        piece.graph.ClearField(field)
    piece.graph.name = "piece"
    new = {name: f"piece:in{place}" for place, name in enumerate(crossing)}
    for name in crossing:
        value = piece.graph.input.add(name=new[name])
        value.tensor.add(dims=graph.tensor(name).dims, data_type=graph.tensor(name).data_type)
    for node in model.graph.node:
        if node.name in members:
            copy = piece.graph.node.add()
            copy.CopyFrom(node)
            copy.input[:] = [new.get(item, item) for item in graph.reads(node.name)]
    reference, = [primitive.name for primitive in model.primitives if primitive.op_type == "MakeTuple"][:1]
    result = piece.graph.node.add(name="piece:result", output=["piece:result"], op_type=f"REF::{reference}",
                                  domain="Default/MakeTuple", input=[new.get(name, name) for name in outs])
    shape = result.attribute.add(name="shape", type=AttributeProto.TUPLE)
    for name in outs:
        shape.values.add(type=AttributeProto.TENSORS).tensors.add(dims=graph.tensor(name).dims,
                                                                  data_type=graph.tensor(name).data_type)
    shape.seq_info.is_dyn_len = False
    output = piece.graph.output.add(name="piece:result", denotation="Tuple")
    output.attr_info.CopyFrom(shape)
    output.attr_info.ClearField("name")
    return piece


def _values(model: ModelProto, graph: _Graph, crossing: List[str], arguments: List[np.ndarray]) -> List[np.ndarray]:
    """Something of the right shape for what crosses."""
    given = dict(zip([value.name for value in model.graph.input], arguments))
    dtypes = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16}
    return [given[name] if name in given else np.ones(tuple(graph.tensor(name).dims),
                                                      dtypes[graph.tensor(name).data_type]) for name in crossing]
