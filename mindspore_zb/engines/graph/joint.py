"""The joint graph: forward, dx and dw in one, compiled and exported once per signature."""

import contextlib
import itertools
import os
import re
import tempfile
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from mindspore import ParameterTuple, nn, ops

from mindspore_zb.engines.graph.callables import readable
from mindspore_zb.engines.graph.mindir import JointGraph
from mindspore_zb.engines.graph.native import export_graph, gradient_of, unchanged
from mindspore_zb.engines.graph.outputs import (NestedResult, flat_constant_result, flat_result, forget_result,
                                                new_token, take_result)
from mindspore_zb.engines.graph.reached import reach
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.structure import Structure
from mindspore_zb.tensors import is_differentiable_dtype, is_parameter, is_tensor

_SOURCES = itertools.count()

_RANDOM = re.compile("Dropout|Rand|Normal|Uniform|Bernoulli|Multinomial|Poisson|Gamma|Laplace|Sampler")
"""Found in the names of operations that draw random numbers, and in some that do not, which does no harm."""


@dataclass(frozen=True)
class Call:
    """A call of ``fn``, with its arguments flattened.

    Attributes:
        fn: what is called.
        structure: how ``(args, kwargs)`` nest.
        leaves: all leaves; the tensors among them are the arguments of the graph; Parameters are read as those of a
            Cell are, as they may be weights; the rest are constants.
        asked: the places among the tensors whose gradients are asked for.
        weights: the weights whose gradients are asked for.
        has_aux: whether only the first entry of the result is differentiated.
        is_part: whether it is part of a larger net, and the weights are all of that net.
        key: the :func:`weights_key` of the weights, if it is known.
    """

    fn: Callable[..., Any]
    structure: Structure
    leaves: Sequence[Any]
    asked: Tuple[int, ...]
    weights: Tuple[Any, ...]
    has_aux: bool
    is_part: bool = False
    key: Any = None

    @property
    def tensors(self) -> List[Any]:
        """The arguments of the graph."""
        return [leaf for leaf in self.leaves if is_argument(leaf)]


class _WeightsKey:
    """Equal to nothing but itself."""


_KEYS: "weakref.WeakValueDictionary[Tuple[int, ...], _WeightsKey]" = weakref.WeakValueDictionary()


def weights_key(weights: Sequence[Any]) -> Any:
    """An object that is the same for the same weights. The blocks of a net share one: a key made of all weights of the
    net, hashed and compared at each block, would cost time quadratic in the number of blocks."""
    return _KEYS.setdefault(tuple(map(id, weights)), _WeightsKey())


def is_argument(leaf: Any) -> bool:
    """Whether a leaf of a call is an argument of the graph."""
    return is_tensor(leaf) and not is_parameter(leaf)


@dataclass(frozen=True)
class Joint:
    """A joint graph and what its flat results mean.

    Attributes:
        forward: the forward compiled alone.
        graph: forward and backward; its inputs are the tensors of the call, then one sens per tensor of the result;
            those of what has no gradient are not read.
        main: how what is differentiated nests.
        aux: how the rest of the result nests, with ``has_aux``; None without.
        outs: all tensors of the result, ``main`` first.
        differentiable: places of the differentiable tensors among ``outs``.
        dxs, dws: the gradients, in the order of ``asked`` and of ``weights``; empty if no output can have one.
    """

    forward: JointGraph
    graph: JointGraph
    main: NestedResult
    aux: Optional[NestedResult]
    outs: Tuple[str, ...]
    differentiable: Tuple[int, ...]
    dxs: Tuple[str, ...]
    dws: Tuple[str, ...]


def compile_joint(call: Call) -> Joint:
    """Compile forward and backward of a call.

    Twice: how many outputs there are, and of which shapes, is known once the forward was compiled alone.

    Raises:
        UnsupportedError: the graph has what this engine cannot cut.
        Exception: whatever MindSpore raises if it cannot compile ``fn``.
    """
    with tempfile.TemporaryDirectory(prefix="mindspore_zb_") as directory:
        body = _body(call, (new_token(), new_token()), directory)
        with _emptied(body), unchanged(cell for _, cell in reach(call.fn, call.leaves).cells.values()):
            return _compile_joint(call, body)


def _compile_joint(call: Call, body: nn.Cell) -> Joint:
    tensors, tokens = call.tensors, body.tokens
    forward = JointGraph(export_graph(body, tensors))
    main, aux = take_result(tokens[0]), take_result(tokens[1]) if call.has_aux else None
    metas = [forward.meta(value) for value in forward.result()]
    differentiable = tuple(place for place, (_, dtype) in enumerate(metas[:main.count])
                           if is_differentiable_dtype(dtype))
    if not differentiable or not (call.asked or call.weights):
        return Joint(forward, forward, main, aux, tuple(forward.result()), differentiable, (), ())
    sens = [ops.zeros(*meta) for meta in metas]
    whole = _JointCell(body, len(tensors), call.asked, call.weights)
    with _emptied(whole):
        graph = JointGraph(export_graph(whole, [*tensors, *sens]))
    for token in tokens:
        forget_result(token)
    outs, dxs, dws = graph.result_entries()
    _check_nothing_runs_twice(forward, graph)
    return Joint(forward, graph, main, aux, tuple(outs), differentiable, tuple(dxs), tuple(dws))


@contextlib.contextmanager
def _emptied(cell: nn.Cell) -> Iterator[None]:
    """Afterwards a Cell of ours holds nothing of the caller's: MindSpore never lets go of what it compiled."""
    bookkeeping = frozenset(vars(nn.Cell()))
    try:
        yield
    finally:
        cell._cells.clear()
        cell._params.clear()
        for name in [name for name in vars(cell) if name not in bookkeeping]:
            del cell.__dict__[name]


def _check_nothing_runs_twice(forward: JointGraph, graph: JointGraph) -> None:
    """What writes parameters or draws random numbers must be shared by the result and its gradients."""
    alone, joint = (Counter(found.kind(node) for node in found.order if node in frozenset(found.effects) or
                            _RANDOM.search(found.kind(node))) for found in (forward, graph))
    twice = sorted(kind for kind, count in joint.items() if count > alone[kind] and "Grad" not in kind)
    if twice:
        raise UnsupportedError(f"MindSpore compiles its {twice[0]} once for the result and again for the gradients")


class _JointCell(nn.Cell):
    """Forward first, then its gradients: ``((outs), (dxs), (dws))``. The other order is refused by MindSpore, and with
    any other Cell than that of the forward in it, what has effects would run twice."""

    def __init__(self, body: nn.Cell, count: int, asked: Tuple[int, ...], weights: Tuple[Any, ...]):
        super().__init__(auto_prefix=False)
        self.body = body
        self.count = count
        self.asked = asked
        self.has_weights = bool(weights)
        self.gradient = gradient_of(by_position=bool(asked), by_weights=bool(weights))
        if weights:
            self.wanted = ParameterTuple(weights)

    def construct(self, *arguments):
        inputs, sens = arguments[:self.count], arguments[self.count:]
        outs = self.body(*inputs)
        if not self.asked:
            return outs, (), self.gradient(self.body, self.wanted)(*inputs, sens)
        if not self.has_weights:
            return outs, self.gradient(self.body, None, self.asked)(*inputs, sens), ()
        dxs, dws = self.gradient(self.body, self.wanted, self.asked)(*inputs, sens)
        return outs, dxs, dws


def _body(call: Call, tokens: Tuple[int, int], directory: str) -> nn.Cell:
    """A Cell that takes the tensors of a call, calls ``fn`` as the caller did, and returns a flat tuple."""
    source, constants = _source(call)
    name = os.path.join(directory, f"call{next(_SOURCES)}.py")
    with open(name, "w", encoding="utf-8") as file:
        file.write(source)  # MindSpore reads the source of what it compiles
    scope: Dict[str, Any] = {"__name__": __name__, "flat_result": flat_result,
                             "flat_constant_result": flat_constant_result}
    exec(compile(source, name, "exec"), scope)  # pylint: disable=exec-used
    cell = type("Call", (nn.Cell,), {"construct": scope["construct"], "__module__": __name__})(auto_prefix=False)
    cell.fn = readable(call.fn, directory)
    cell.tokens = tokens
    vars(cell).update(constants)  # setattr would give a Parameter another name
    return cell


def _source(call: Call) -> Tuple[str, Dict[str, Any]]:
    """The source of a ``construct``, and the constants it reads from ``self``."""
    names: List[str] = []
    constants: Dict[str, Any] = {}
    count = 0
    for place, leaf in enumerate(call.leaves):
        if is_argument(leaf):
            names.append(f"x{count}")
            count += 1
        elif leaf is None or isinstance(leaf, (bool, int, float, str)):
            names.append(repr(leaf))
        else:
            names.append(f"self.constant{place}")
            constants[f"constant{place}"] = leaf
    waiting = iter(names)
    args, kwargs = ([_expression(child, waiting) for child in part.children()] for part in call.structure.children())
    args += [f"{key}={value}" for key, value in zip(call.structure.children()[1].keys, kwargs)]
    lines = [f"def construct({', '.join(['self', *(f'x{place}' for place in range(count))])}):",
             f"    result = self.fn({', '.join(args)})"]
    if call.has_aux:
        lines.append("    return flat_result(result[0], self.tokens[0]) + "
                     "flat_constant_result(result[1:], self.tokens[1])")
    else:
        lines.append("    return flat_result(result, self.tokens[0])")
    return "\n".join(lines) + "\n", constants


def _expression(structure: Structure, names: Iterator[str]) -> str:
    """The nested value as source, with names in place of its leaves."""
    if structure.is_leaf:
        return next(names)
    items = [_expression(child, names) for child in structure.children()]
    if structure.container is dict:
        return "{" + ", ".join(f"{key!r}: {item}" for key, item in zip(structure.keys, items)) + "}"
    if structure.container is list:
        return "[" + ", ".join(items) + "]"
    if structure.container is tuple:
        return "(" + "".join(item + ", " for item in items) + ")"
    raise UnsupportedError(f"an input is a {structure.container.__name__}, which MindSpore cannot compile")
