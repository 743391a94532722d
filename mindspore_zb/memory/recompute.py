"""Recompute blocks of a Cell: keep their inputs, and compute what they saved again when the backward comes.

================ ==================================================== ================================
policy           kept of each block                                   computed again
================ ==================================================== ================================
``"full"``       its inputs                                           the block
``"every"``      the inputs of every k-th block                       k blocks together
``"selective"``  its inputs, and the results of its linear layers     norms, attention scores, softmax,
                                                                      activations, dropout
================ ==================================================== ================================

Masks of dropout and other random numbers are kept under each policy, as they cannot be drawn twice, and so is what
``@jit`` functions inside a block give and save, as nobody can see what they draw. ``"selective"`` pays where attention
scores are large; a block that saves little besides the inputs of its layers may keep more with it than without:
:func:`~mindspore_zb.memory.measure_recompute` tells.

Sources: ``"every"``: Chen et al., arXiv 1604.06174, section 4.1; ``"selective"``: Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 5.
"""

import math
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Type

from mindspore import mint, nn

from mindspore_zb.api import is_compiled
from mindspore_zb.engines.pynative.native import is_recording
from mindspore_zb.engines.pynative.observe import is_graph_cell, recompute_of, set_recompute
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, StateError, UnsupportedError
from mindspore_zb.memory.replay import Block, Recorder, Segment
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import is_tensor

POLICIES = ("full", "every", "selective")

LINEAR_LAYERS: Tuple[Type[nn.Cell], ...] = tuple(getattr(package, name) for package, names in (
    (nn, ("Dense", "Conv1d", "Conv2d", "Conv3d", "Conv1dTranspose", "Conv2dTranspose", "Conv3dTranspose")),
    (mint.nn, ("Linear", "Conv2d", "Conv3d", "ConvTranspose2d"))) for name in names if hasattr(package, name))
"""The layers whose results ``"selective"`` keeps."""


class RecomputeHandle:
    """Recompute that was applied to some blocks; also a context that removes it at its end.

    Attributes:
        blocks: the Cells.
        policy: the policy.
        every: how many blocks are computed again together; 1 unless the policy is ``"every"``.
    """

    def __init__(self, blocks: Sequence[Any], policy: str, every: int, stand_ins: Dict[Any, Any]):
        self.blocks: Tuple[Any, ...] = tuple(blocks)
        self.policy = policy
        self.every = every
        self._stand_ins = stand_ins
        for cell, stand_in in stand_ins.items():
            set_recompute(cell, stand_in)

    def remove(self) -> None:
        """Take it off: forwards from now on save what they would. Those in flight are still computed again. Calling
        it again does nothing."""
        for cell, stand_in in self._stand_ins.items():
            if recompute_of(cell) is stand_in:
                set_recompute(cell, None)
        self._stand_ins = {}

    def __enter__(self) -> "RecomputeHandle":
        return self

    def __exit__(self, *_error: Any) -> None:
        self.remove()


def apply_recompute(blocks: Any, policy: str = "full", every: Optional[int] = None,
                    keep: Iterable[Type[nn.Cell]] = ()) -> RecomputeHandle:
    """Compute what these blocks save for the backward once more, in the backward, instead of keeping it.

    Gradients are those without recompute, to the last bit; dropout and other random operations of MindSpore, and the
    global generators of numpy and Python give the same numbers again. A block must compute the same the second time:
    one that reads a clock, a counter of its own or a generator object (``np.random.default_rng()``) does not, and
    nothing notices. Each block runs once more for dx and dw together, when dx first needs it; after
    dx what dw needs is alive, as without recompute. It works inside :func:`~mindspore_zb.forward_and_gradfn` and with
    MindSpore's own ``grad`` and ``value_and_grad``. The Cells' classes, ``construct``, Parameters and hooks stay as
    they are; copies of them are not recomputed. Forward hooks on a block run once, those on its sub-Cells once more.

    Args:
        blocks: the Cells, in the order of their calls: a CellList or SequentialCell, an iterable of Cells, or one
            Cell.
        policy: ``"full"``, ``"every"`` or ``"selective"``; see the table above.
        every: k of the policy ``"every"``. Default: the square root of the number of blocks, rounded. A block whose
            input is not, as it is, what the block before it returned begins a new k.
        keep: further classes of layers whose results ``"selective"`` keeps, besides :data:`LINEAR_LAYERS`.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument cannot be used; the message names it.
        StateError: a block is recomputed already.
        UnsupportedError: a block is compiled (``options(graph_recompute=...)`` is for those) or has a ``bprop``.
            Later, in the backward: a block did other operations the second time.

    Example:
        >>> from mindspore import nn, ops
        >>> from mindspore_zb import forward_and_gradfn
        >>> from mindspore_zb.memory import SavedTensorLedger, apply_recompute
        >>> net = nn.SequentialCell([nn.SequentialCell(nn.Dense(8, 8), nn.GELU()) for _ in range(4)])
        >>> x, weights = ops.ones((2, 8)), net.trainable_params()
        >>> ledger = SavedTensorLedger(ignore=weights)
        >>> with apply_recompute(net, "full"), ledger.watch():
        ...     out, grad_fn = forward_and_gradfn(net, x, weights=weights)
        >>> ledger.alive_bytes()  # the inputs of 4 blocks, 2 * 8 numbers of 4 bytes
        256
        >>> dx, dw = grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()
    """
    cells = _cells_of(blocks)
    if policy not in POLICIES:
        raise ArgumentValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
    length = _length(policy, every, len(cells))
    layers = _layer_classes(policy, keep)
    for place, cell in enumerate(cells):
        _check_block(cell, _name(cell, place))
    _check_apart(cells)
    plan = _Plan(length)
    stand_ins: Dict[Any, Any] = {}
    for place, cell in enumerate(cells):
        kept = _kept_layers(cell, layers, _name(cell, place)) if policy == "selective" else ()
        stand_ins[cell] = _Recomputed(Block(cell, _name(cell, place), _statistics(cell), kept), place, plan)
    return RecomputeHandle(cells, policy, length, stand_ins)


class _Recomputed:
    """Runs in place of a block's ``construct``. A copy of the block gets none."""

    def __init__(self, block: Block, position: int, plan: "_Plan"):
        self._block, self._position, self._plan = block, position, plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not is_recording():
            return self._block.cell.construct(*args, **kwargs)
        segment, linked = self._plan.segment_for(self._position, flatten((args, kwargs))[0])
        result = Recorder(segment).run(self._block, args, kwargs, linked)
        self._plan.ran(self._position, segment, flatten(result)[0])
        return result

    def __deepcopy__(self, _memo: dict) -> None:
        return None

    def __reduce__(self) -> tuple:
        return type(None), ()


@dataclass(frozen=True)
class _Last:
    """The last call of a thread."""

    position: int
    segment: "weakref.ref[Segment]"
    outputs: Tuple["weakref.ref[Any]", ...]


class _Plan:
    """Which calls are computed again together.

    Args:
        length: how many blocks follow each other at most.
    """

    def __init__(self, length: int):
        self._length = length
        self._thread = threading.local()

    def segment_for(self, position: int, inputs: Sequence[Any]) -> Tuple[Segment, Dict[int, int]]:
        """The segment of a call, and which of its inputs are outputs of the call before it: numbers by identity."""
        last: Optional[_Last] = getattr(self._thread, "last", None)
        segment = None if last is None else last.segment()
        if position % self._length and segment is not None and last.position == position - 1 and not segment.filled:
            given = {id(tensor) for tensor in inputs}
            linked = {id(output): place for place, output in enumerate(reference() for reference in last.outputs)
                      if output is not None and id(output) in given}
            if linked:
                return segment, linked
        return Segment(), {}

    def ran(self, position: int, segment: Segment, outputs: Sequence[Any]) -> None:
        """Remember a call, without keeping anything of it alive."""
        if self._length > 1:
            self._thread.last = _Last(position, weakref.ref(segment), tuple(
                weakref.ref(output) if is_tensor(output) else _nothing for output in outputs))


def _nothing() -> None:
    """In place of a reference to what is no tensor."""


def _cells_of(blocks: Any) -> List[Any]:
    if isinstance(blocks, (nn.CellList, nn.SequentialCell)):
        cells = list(blocks.cells())
    elif isinstance(blocks, nn.Cell):
        cells = [blocks]
    elif isinstance(blocks, (str, bytes)) or not hasattr(blocks, "__iter__"):
        raise ArgumentTypeError(f"blocks must be Cells, not a {type(blocks).__name__}")
    else:
        cells = list(blocks)
    if not cells:
        raise ArgumentValueError("blocks is empty: there is nothing to recompute")
    for place, cell in enumerate(cells):
        if not isinstance(cell, nn.Cell):
            raise ArgumentTypeError(f"blocks[{place}] must be a Cell, not a {type(cell).__name__}")
    return cells


def _length(policy: str, every: Any, count: int) -> int:
    if policy != "every":
        if every is not None:
            raise ArgumentValueError(f"every is for the policy 'every', not for {policy!r}")
        return 1
    if every is None:
        return max(1, round(math.sqrt(count)))
    if isinstance(every, bool) or not isinstance(every, int):
        raise ArgumentTypeError(f"every must be a positive int, not {every!r}")
    if every < 1:
        raise ArgumentValueError(f"every must be a positive int, not {every}")
    return every


def _layer_classes(policy: str, keep: Any) -> Tuple[type, ...]:
    classes = tuple(keep) if isinstance(keep, (tuple, list)) else (keep,)
    for kind in classes:
        if not isinstance(kind, type) or not issubclass(kind, nn.Cell):
            raise ArgumentTypeError(f"keep must be classes of Cells, not {kind!r}")
    if classes and policy != "selective":
        raise ArgumentValueError(f"keep is for the policy 'selective', not for {policy!r}")
    return (*LINEAR_LAYERS, *classes)


def _check_block(cell: Any, name: str) -> None:
    for path, inner in cell.cells_and_names():
        part = f"{name}.{path}" if path else name
        if recompute_of(inner) is not None:
            raise StateError(f"{part} is recomputed already: take that off first")
        if is_compiled(inner) or is_graph_cell(inner):
            raise UnsupportedError(f"{part} is compiled, and compiled code is not computed again by blocks: use "
                                   "mindspore_zb.options(graph_recompute=...) for it")
    if callable(getattr(cell, "bprop", None)):
        raise UnsupportedError(f"{name} has a bprop of its own, which recompute would pass by")


def _check_apart(cells: Sequence[Any]) -> None:
    places: Dict[int, int] = {}
    for place, cell in enumerate(cells):
        if id(cell) in places:
            raise ArgumentValueError(f"blocks[{place}] is the same Cell as blocks[{places[id(cell)]}]: give each once")
        places[id(cell)] = place
    for place, cell in enumerate(cells):
        for _, inner in cell.cells_and_names():
            if inner is not cell and id(inner) in places:
                raise ArgumentValueError(f"blocks[{places[id(inner)]}] is a part of blocks[{place}]: it would be "
                                         "computed again twice")


def _kept_layers(cell: Any, layers: Tuple[type, ...], name: str) -> Tuple[Any, ...]:
    found: List[Any] = []
    inside: List[str] = []
    for path, inner in cell.cells_and_names():
        if path and isinstance(inner, layers) and not any(path.startswith(f"{outer}.") for outer in inside):
            inside.append(path)
            found.append(inner)
    if not found:
        raise ArgumentValueError(f"{name} has no linear layer inside whose result could be kept: use the policy "
                                 "'full', or name its layers in keep")
    return tuple(found)


def _statistics(cell: Any) -> Tuple[Any, ...]:
    """What the batch normalisations in a Cell change when they run."""
    found: Dict[int, Any] = {}
    for _, inner in cell.cells_and_names():
        if any("BatchNorm" in kind.__name__ for kind in type(inner).__mro__):
            for tensor in (*inner.get_parameters(expand=False), *inner.buffers(recurse=False)):
                if not tensor.requires_grad:
                    found[id(tensor)] = tensor
    return tuple(found.values())


def _name(cell: Any, place: int) -> str:
    return f"blocks[{place}] ({type(cell).__name__})"
