"""Whether a graph was cut from another without changing what its nodes compute."""

from typing import Dict

from mindspore.train.mind_ir_pb2 import NodeProto

from mindspore_zb.engines.graph.attributes import MONADS, Type
from mindspore_zb.engines.graph.reading import CONSTANT, GETTERS, TUPLES, ModelIndex, Source, element
from mindspore_zb.errors import MalformedGraphError

_SYNTHETIC = (CONSTANT, *TUPLES, *GETTERS, "Depend", "UpdateState")
"""Operations that a cut may add: each of them is checked completely without an original."""


def check_verbatim(index: ModelIndex, original: ModelIndex) -> None:
    """Raise :class:`~mindspore_zb.errors.MalformedGraphError` if ``index`` does not fit the ``original``.

    :func:`~mindspore_zb.engines.graph.checking.check_model` says what must fit.
    """
    for name, primitive in index.primitives.items():
        if original.primitives.get(name) != primitive:
            raise MalformedGraphError(f"primitive '{name}' is not that of the original graph")
    for name, kind in index.attributes.items():
        if original.attributes.get(name) != kind:
            raise MalformedGraphError(f"attribute '{name}' of the graph is not of the type of the original's")
    stands_for: Dict[Source, Source] = {}
    for name, node in index.nodes.items():
        if name not in original.nodes:
            if index.operation(name) not in _SYNTHETIC:
                raise MalformedGraphError(f"node '{name}' is {index.operation(name)} and no node of the original graph")
            continue
        _check_node(node, original.nodes[name])
        if index.operation(name) not in ("UpdateState", CONSTANT):
            _check_inputs(node, index, original, stands_for)


def _check_node(node: NodeProto, right: NodeProto) -> None:
    """The same operation with the same result."""
    if node.op_type != right.op_type:
        raise MalformedGraphError(f"node '{node.name}' is {node.op_type}, {right.op_type} in the original graph")
    if list(node.attribute) != list(right.attribute):
        raise MalformedGraphError(f"node '{node.name}' has another shape or value than in the original graph")


def _check_inputs(node: NodeProto, index: ModelIndex, original: ModelIndex, stands_for: Dict[Source, Source]) -> None:
    """The same values as inputs, if under other names."""
    right = original.nodes[node.name]
    if len(node.input) != len(right.input):
        raise MalformedGraphError(f"node '{node.name}' has {len(node.input)} inputs, {len(right.input)} in the "
                                  "original graph")
    last = 1 if index.operation(node.name) == "Depend" else len(right.input)
    for position, (given, known) in enumerate(zip(node.input[:last], right.input)):
        place = f"input {position} of node '{node.name}'"
        if index.types[given] != original.types[known]:
            raise MalformedGraphError(f"{place} has the type {index.types[given]}, {original.types[known]} in the "
                                      "original graph")
        if original.types[known] not in MONADS:
            _check_same(index.sources[given], original.sources[known], place, index, original, stands_for)


def _check_same(given: Source, known: Source, place: str, index: ModelIndex, original: ModelIndex,
                stands_for: Dict[Source, Source]) -> None:
    """A value of the graph is one of the original; tuples are compared by their elements."""
    if stands_for.get(known) == given:
        return
    if any(not source[1] and of.operation(source[0]) in TUPLES for source, of in ((given, index), (known, original))):
        for position in range(len(_type_at(known, original)[1])):
            _check_same(element(given, position, index), element(known, position, original), place, index, original,
                        stands_for)
    elif given[0] in original.sources:
        same = original.sources[given[0]]  # an input may have the name of a node of the original
        for position in given[1]:
            same = element(same, position, original)
        if same != known:
            raise MalformedGraphError(f"{place} is '{given[0]}', '{known[0]}' in the original graph")
        return
    elif known in stands_for:
        raise MalformedGraphError(f"{place} is '{given[0]}', but elsewhere '{stands_for[known][0]}' stands for "
                                  f"'{known[0]}'")
    stands_for[known] = given


def _type_at(source: Source, index: ModelIndex) -> Type:
    kind = index.types[source[0]]
    for position in source[1]:
        kind = kind[1][position]
    return kind
