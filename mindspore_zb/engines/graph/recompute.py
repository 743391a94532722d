"""What to save from the forward for the backward, and what to compute again: a minimum cut.

Pure: values are any hashable names. The idea is that of sublinear memory cost (Chen et al., arXiv 1604.06174), in the
form of a cut as in PyTorch's min-cut rematerialization: of all sets of values from which the backward's needs can be
computed by cheap operations, the one of fewest bytes separates what is not computed again from what the backward
reads; by the max-flow min-cut theorem (Ford and Fulkerson 1956) a maximum flow finds it.
"""

from dataclasses import dataclass
from math import gcd
from typing import Any, Dict, FrozenSet, Hashable, Iterable, List, Mapping, Optional, Sequence, Tuple

from mindspore_zb.errors import ArgumentValueError

Value = Hashable

_VIEWS = frozenset((
    "BroadcastTo", "BroadcastToView", "Cast", "ExpandDims", "ExpandDimsView", "Flatten", "FlattenExt", "Identity",
    "MakeTuple", "Reshape", "Slice", "SliceExt", "SliceExtView", "Squeeze", "StridedSlice", "Transpose",
    "TransposeExtView", "TransposeView", "TupleGetItem", "View"))

_ELEMENTWISE = frozenset((
    "Abs", "Add", "AddExt", "AddN", "AddScalar", "Adds", "BiasAdd", "Ceil", "ClampScalar", "ClampTensor", "Concat",
    "Cos", "Div", "Divs", "Elu", "EluGrad", "Equal", "Erf", "Exp", "Expm1", "FillV2", "Floor", "GeLU", "GeLUGrad",
    "Gelu", "GeluExt", "GeluGrad", "GeluGradExt", "Greater", "GreaterEqual", "HSigmoid", "HSigmoidGrad", "HSwish",
    "HSwishGrad", "LeakyReLUExt", "LeakyReLUGradExt", "Less", "LessEqual", "Log", "Log1p", "LogicalAnd", "LogicalNot",
    "LogicalOr", "MaskedFill", "Maximum", "Minimum", "Mish", "Mul", "Muls", "Neg", "NotEqual", "OnesLike",
    "OnesLikeExt", "PReLU", "PadV3", "Pow", "PowScalarTensor", "PowTensorScalar", "ReLU", "ReLU6", "RealDiv",
    "Reciprocal", "ReluGrad", "ReverseV2", "Roll", "Rsqrt", "RsqrtGrad", "Select", "SiLU", "SiLUGrad", "Sigmoid",
    "SigmoidGrad", "Sign", "Sin", "Softplus", "SoftplusGrad", "SoftplusExt", "SoftplusGradExt", "Split",
    "SplitWithSize", "Sqrt", "SqrtGrad", "Square", "Stack", "Sub", "SubExt", "SubScalar", "Subs", "Tanh", "TanhGrad",
    "Tile", "Unstack", "Zeros", "ZerosLike", "ZerosLikeExt"))

_REDUCTIONS = frozenset((
    "ArgMaxWithValue", "ArgMinWithValue", "BiasAddGrad", "CumSum", "Gather", "GatherD", "GroupNorm", "LayerNorm",
    "LayerNormExt", "LogSoftmax", "LogSoftmaxExt", "LogSoftmaxGrad", "MaxPoolWithArgmaxV2", "Mean", "MeanExt",
    "OneHot", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "RmsNorm", "Softmax", "SoftmaxBackward", "SumExt"))

_CHEAP = _VIEWS | _ELEMENTWISE | _REDUCTIONS

RECOMPUTE_LEVELS: Mapping[str, FrozenSet[str]] = {
    "none": frozenset(),
    "views": _VIEWS,
    "elementwise": _VIEWS | _ELEMENTWISE,
    "cheap": _CHEAP,
    "selective": _CHEAP,
}
"""The operations that each policy computes again, by their names in a compiled graph; each policy contains the one
before it. "views" only moves or converts data, "elementwise" reads each element once, "cheap" has softmax, norms and
reductions besides, "selective" the products of attention too, as selective activation recomputation has them
(Korthikanti et al., arXiv 2205.05198, section 5): those of :data:`PRODUCTS` that multiply stacks of matrices, none of
which is a weight. All other products, convolutions, everything that draws random numbers or has effects, and every
operation not listed, are never computed again."""

PRODUCTS = frozenset(("BatchMatMul", "BatchMatMulExt", "MatMulExt"))
"""Operations that may multiply stacks of matrices."""

_MOST_FLOW = 2 ** 29  # the flow is counted in 32 bits


@dataclass(frozen=True)
class Choice:
    """What crosses from the forward to the backward.

    Attributes:
        saved: values to keep, in an order of computation; without the free ones.
        recomputed: values that the backward computes again, each after what it reads.
        saved_bytes: bytes of ``saved``.
        needed_bytes: bytes of keeping instead what the backward reads; None if some of it cannot be kept.
    """

    saved: Tuple[Value, ...]
    recomputed: Tuple[Value, ...]
    saved_bytes: int
    needed_bytes: Optional[int]


def choose_saved(inputs: Mapping[Value, Sequence[Value]], needed: Iterable[Value],
                 nbytes: Mapping[Value, Optional[int]], recomputable: Mapping[Value, bool],
                 free: Iterable[Value] = ()) -> Choice:
    """The choice of fewest bytes; among several, the one that computes least again.

    The result depends on the arguments and their order alone. It is exact as long as the bytes, in units of their
    greatest common divisor, add up to less than 2**29; beyond, each value is counted to one part in 2**29 of the
    whole. Time is about linear in the values above ``needed``, and nothing recurses.

    Args:
        inputs: what each value is computed from; a value that is missing is computed from nothing.
        needed: the values that the backward reads.
        nbytes: bytes of keeping each value; None (or missing) for one that cannot be kept, such as a tuple.
        recomputable: whether a value may be computed again; a missing one may not.
        free: values that are there anyway, such as inputs and parameters: they cost nothing.

    Raises:
        ArgumentValueError: a needed value can neither be kept nor computed again, the values form a circle, or a
            number of bytes is negative.

    >>> inputs = {"a": ["x"], "b": ["a"], "c": ["b"]}
    >>> choose_saved(inputs, ["a", "b", "c"], {"a": 4, "b": 4, "c": 4}, {"b": True, "c": True}, free=["x"])
    Choice(saved=('a',), recomputed=('b', 'c'), saved_bytes=4, needed_bytes=12)
    """
    free = frozenset(free)
    needed = [value for value in dict.fromkeys(needed) if value not in free]
    above = {value: tuple(item for item in dict.fromkeys(inputs.get(value, ())) if item not in free)
             if recomputable.get(value, False) else None for value in _ordered(inputs, needed, recomputable, free)}
    for value in above:
        if (nbytes.get(value) or 0) < 0:
            raise ArgumentValueError(f"value {value!r} has {nbytes[value]} bytes")
    _check_possible(above, needed, nbytes)
    wanted = [nbytes.get(value) for value in needed]
    before_cut = _cut(above, needed, nbytes)
    recomputed = _recomputed(above, needed, before_cut)
    again = frozenset(recomputed)
    read = dict.fromkeys([*needed, *(item for value in recomputed for item in above[value] or ())])
    saved = tuple(value for value in above if value in read and value not in again)
    return Choice(saved, recomputed, sum(nbytes[value] or 0 for value in saved),
                  None if None in wanted else sum(wanted))


def _ordered(inputs: Mapping[Value, Sequence[Value]], needed: Sequence[Value], recomputable: Mapping[Value, bool],
             free: FrozenSet[Value]) -> List[Value]:
    """The needed values and all that they may be computed again from, each after what it reads."""
    order: List[Value] = []
    state: Dict[Value, bool] = {}  # False while what it reads is being looked at
    for root in needed:
        stack = [(root, False)]
        while stack:
            value, is_done = stack.pop()
            if is_done:
                state[value] = True
                order.append(value)
                continue
            if value in free or state.get(value, False):
                continue
            if value in state:
                raise ArgumentValueError(f"value {value!r} is computed from itself")
            state[value] = False
            stack.append((value, True))
            if recomputable.get(value, False):
                for item in reversed(list(dict.fromkeys(inputs.get(value, ())))):
                    stack.append((item, False))
    return order


def _capacities(values: Sequence[Value], needed: Sequence[Value],
                nbytes: Mapping[Value, Optional[int]]) -> Tuple[List[int], int]:
    """The bytes of each value as a capacity that the flow can count in, and one that no cut can afford."""
    sizes = [nbytes.get(value) for value in values]
    enough = [nbytes.get(value) for value in needed]
    if None in enough:
        enough = [size for size in sizes if size is not None]
    unit = gcd(*[size for size in sizes if size is not None], 0) if sizes else 0
    unit = unit or 1
    bound = sum(enough) // unit
    divisor = 1
    if bound + len(values) > _MOST_FLOW:
        divisor = -(-bound // (_MOST_FLOW - len(values)))
    scaled = [None if size is None else -(-(size // unit) // divisor) for size in sizes]
    never = -(-bound // divisor) + len(values) + 1
    return [never if size is None else min(size, never) for size in scaled], never


def _cut(above: Mapping[Value, Optional[Tuple[Value, ...]]], needed: Sequence[Value],
         nbytes: Mapping[Value, Optional[int]]) -> Any:
    """For each value whether it lies before the cut, so that it is not computed again.

    Each value is an edge from its computation (even) to its uses (odd), as wide as its bytes. Of all minimum cuts the
    last one is taken, next to the uses: all others compute more again.
    """
    import numpy as np
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    values = list(above)
    place = {value: 2 * position for position, value in enumerate(values)}
    source, sink = 2 * len(values), 2 * len(values) + 1
    capacities, never = _capacities(values, needed, nbytes)
    edges = [(place[value], place[value] + 1, capacity) for value, capacity in zip(values, capacities)]
    for value, reads in above.items():
        edges.extend((source, place[value], never) for _ in (1,) if reads is None)
        edges.extend((place[item] + 1, place[value], never) for item in reads or ())
    edges.extend((place[value] + 1, sink, never) for value in needed)
    rows, columns, widths = zip(*edges) if edges else ((), (), ())
    graph = csr_matrix((np.array(widths, np.int32), (rows, columns)), shape=(sink + 1, sink + 1))
    flow = maximum_flow(graph, source, sink)
    left = (graph - flow.flow).T.tocsr()
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    is_after = np.zeros(sink + 1, bool)
    is_after[breadth_first_order(left, sink, return_predecessors=False)] = True
    return {value: not is_after[position] for value, position in place.items()}


def _check_possible(above: Mapping[Value, Optional[Tuple[Value, ...]]], needed: Sequence[Value],
                    nbytes: Mapping[Value, Optional[int]]) -> None:
    """Every needed value can be had; before the flow, whose sums would overflow otherwise."""
    lost: Dict[Value, Optional[Value]] = {}  # of each value the one for want of which it cannot be had
    for value, reads in above.items():
        if nbytes.get(value) is not None:
            lost[value] = None
        else:
            missing = [value] if reads is None else [lost[item] for item in reads if lost[item] is not None]
            lost[value] = missing[0] if missing else None
    for value in needed:
        if lost[value] is not None:
            raise ArgumentValueError(f"value {value!r} is needed, but {lost[value]!r} can neither be kept nor computed "
                                     "again")


def _recomputed(above: Mapping[Value, Optional[Tuple[Value, ...]]], needed: Sequence[Value],
                before_cut: Mapping[Value, bool]) -> Tuple[Value, ...]:
    """The values after the cut that the needed ones are computed from, each after what it reads."""
    found = {}
    waiting = [value for value in needed if not before_cut[value]]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found[value] = True
            waiting.extend(item for item in above[value] or () if not before_cut[item])
    return tuple(value for value in above if value in found)
