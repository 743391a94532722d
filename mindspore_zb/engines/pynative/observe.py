"""Watch the forward for what its grad nodes do not tell: tensor hooks, recompute, and calls of compiled blocks.

All are seen by standing in for a name of MindSpore while ``fn`` runs; the name is put back when the last forward in
flight has ended.
"""

import contextlib
import copy
import functools
import importlib
import threading
from types import MethodType
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from mindspore import Tensor, nn
from mindspore.common._grad_function import _Function
from mindspore.ops.composite import base as _gradients

from mindspore_zb.engines.pynative.native import PyNativeExecutor, grad_edge, is_python_node, top_cell
from mindspore_zb.engines.pynative.stand_ins import Replacement, StandIns
from mindspore_zb.errors import UnsupportedError

try:
    from mindspore.graph.api import _JitExecutor
except ImportError:
    from mindspore.common.api import _JitExecutor

_vjp = importlib.import_module("mindspore.ops.function.grad.grad_func")
_recompute = importlib.import_module("mindspore.common.recompute")  # the package exports a function of the same name

HAS_SESSIONS = hasattr(_recompute, "_recompute_session_ctx")
"""MindSpore 2.10 keeps what was recomputed over several backward runs, 2.9 recomputes in each."""


Intercept = Callable[[Any, tuple, dict, Callable[[], Any]], Any]
"""Called with ``(block, args, kwargs, proceed)`` in place of a compiled block; ``proceed()`` is the call as meant."""


class Observation:
    """What happened in one forward pass.

    Attributes:
        intercept: what is called in place of compiled blocks; None to leave them alone.
        hooked: nodes of tensors that got a hook (``Tensor.register_hook``); running such a node twice would run the
            hook twice.
        recomputed: whether something is recomputed without reentrance (``recompute(..., use_reentrant=False)``).
        reentrant: the calls that are recomputed with reentrance, in order; filled when the forward has ended.
        reentrant_cells: the Cells of these calls while it runs.
    """

    __slots__ = ("intercept", "hooked", "recomputed", "reentrant", "reentrant_cells")

    def __init__(self, intercept: Optional[Intercept] = None) -> None:
        self.intercept = intercept
        self.hooked: List[Any] = []
        self.recomputed = False
        self.reentrant: List["ReentrantCall"] = []
        self.reentrant_cells: List[Any] = []

    def take_reentrant_calls(self) -> None:
        """Take the arguments of this forward's calls off their Cells' stacks, the last call first."""
        while self.reentrant_cells:
            self.reentrant.insert(0, ReentrantCall(self.reentrant_cells.pop()))


class ReentrantCall:
    """The arguments of one call that is recomputed with reentrance.

    MindSpore keeps them on a stack of the Cell, which gives another micro-batch's arguments unless the last forward is
    the first to go back. Here each forward takes its own off the stack, and puts them there while its backward runs.
    """

    _STACKS = ("args", "kwargs")
    _STATES = ("cpu_rng_state", "amp_strategy")

    def __init__(self, cell: Any):
        self._cell = cell
        self._top = [getattr(cell, name).pop() for name in self._STACKS]
        self._states = [getattr(cell, name) for name in self._STATES]

    def put_back(self) -> None:
        """Make this call the next to be recomputed by its Cell."""
        for name, item in zip(self._STACKS, self._top):
            getattr(self._cell, name).append(copy.copy(item))
        for name, state in zip(self._STATES, self._states):
            setattr(self._cell, name, state)

    def depth(self) -> int:
        """How many calls lie on the Cell's stack."""
        return len(self._cell.args)

    def shrink(self, depth: int) -> None:
        """Take off what a backward that failed, or did not need this call, left on the stack."""
        for name in self._STACKS:
            del getattr(self._cell, name)[depth:]


@contextlib.contextmanager
def reentrant_arguments(calls: Sequence[ReentrantCall]) -> Iterator[None]:
    """Have the arguments of these calls on their Cells' stacks while a backward runs."""
    depths = [call.depth() for call in calls]
    for call in calls:
        call.put_back()
    try:
        yield
    finally:
        for call, depth in zip(calls, depths):
            call.shrink(depth)


@contextlib.contextmanager
def observe_forward(intercept: Optional[Intercept] = None) -> Iterator[Observation]:
    """Yields an :class:`Observation` that fills while the block runs, from this thread only."""
    observation = Observation(intercept)
    outer = getattr(_ACTIVE, "observation", None)
    _ACTIVE.observation = observation
    _STAND_INS.enter()
    try:
        yield observation
    finally:
        _STAND_INS.leave()
        _ACTIVE.observation = outer
        observation.intercept = None  # the observation outlives the forward, and what it calls holds fn
        observation.take_reentrant_calls()


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """What happens inside belongs to no forward."""
    observation = getattr(_ACTIVE, "observation", None)
    _ACTIVE.observation = None
    try:
        yield
    finally:
        _ACTIVE.observation = observation


@contextlib.contextmanager
def watching_cells() -> Iterator[List[nn.Cell]]:
    """Yields a list that holds, while a forward of this thread runs, the Cells that are being called, the innermost
    last. Inside of compiled code nothing is called."""
    outer = getattr(_ACTIVE, "cells", None)
    _ACTIVE.cells = []
    try:
        yield _ACTIVE.cells
    finally:
        _ACTIVE.cells = outer


@contextlib.contextmanager
def catching_compiled(catch: Optional[Callable[[Callable[[], Any]], Any]]) -> Iterator[None]:
    """Calls of ``@jit`` functions inside, of this thread, go to ``catch(proceed)``; to nothing with None."""
    outer = getattr(_ACTIVE, "catch", None)
    _ACTIVE.catch = catch
    _STAND_INS.enter()
    try:
        yield
    finally:
        _STAND_INS.leave()
        _ACTIVE.catch = outer


def _watched_names() -> Iterator[Replacement]:
    yield Tensor, "register_hook", _watched_register_hook
    yield _Function, "apply", _watched_apply
    yield _recompute, "_RecomputeHandle" if HAS_SESSIONS else "_RecomputeState", _watched_recompute
    yield _recompute._RecomputeCell, "construct", _watched_reentrant
    yield PyNativeExecutor, "call_custom_bprop", _in_top_cell
    yield _JitExecutor, "__call__", _watched_jit
    yield _gradients, "_pynative_func_grad_forward", _refused_gradient
    yield _vjp, "_pynative_func_grad_forward", _refused_gradient
    # Not always: a method of the base class of all Cells is dear to replace.
    if _GRAPH_CELLS or getattr(_ACTIVE, "cells", None) is not None:
        yield nn.Cell, "__call__", _watched_cell


_GRAPH_CELLS: List[bool] = []
"""Not empty once any Cell was decorated to be split by the graph engine."""


def watch_graph_cells() -> None:
    """From the next forward on, look for Cells that were decorated to be split by the graph engine."""
    _GRAPH_CELLS[:] = [True]


def is_graph_cell(cell: nn.Cell) -> bool:
    """Whether a Cell was so decorated, or its class."""
    method = vars(cell).get("forward_and_gradfn") or getattr(type(cell), "forward_and_gradfn", None)
    return getattr(method, "zero_bubble_mode", None) == "graph"


def recompute_of(cell: nn.Cell) -> Any:
    """What runs in place of the ``construct`` of a Cell where gradients are recorded; None if nothing does.

    ``Cell.recompute()`` sets it, and :mod:`mindspore_zb.memory.recompute`.
    """
    return cell._recompute_cell


def set_recompute(cell: nn.Cell, stand_in: Any) -> None:
    """Run this in place of the ``construct`` of a Cell where gradients are recorded; None for ``construct`` itself."""
    cell._recompute_cell = stand_in


_ACTIVE = threading.local()
_STAND_INS = StandIns(_watched_names)


def _watched_register_hook(original: Any) -> Any:
    def register_hook(self, hook):
        observation = getattr(_ACTIVE, "observation", None)
        edge = None if observation is None else grad_edge(self)
        if edge is not None:
            observation.hooked.append(edge[0])
        return original(self, hook)

    return register_hook


def _watched_apply(original: Any) -> Any:
    """``_Function.apply`` with a view between each output and its users.

    The node of a ``_Function`` lives only as long as an output or an edge to it, whoever holds the node, and does not
    tell the shapes of its outputs. The view's node does both better, and so no run needs to start at the former.
    Bound methods that were taken before (``my_op = MyFunction.apply``) pass this by: see ``_bare_functions`` in
    ``planner.py``.
    """
    @functools.wraps(original.__func__)
    def apply(cls, *args, **kwargs):
        result = original.__func__(cls, *args, **kwargs)
        if getattr(_ACTIVE, "observation", None) is None or cls.__module__.startswith(_KNOWING_THEIR_NODES):
            return result
        given = [*args, *kwargs.values()]
        if isinstance(result, (tuple, list)):
            return type(result)(_unless_given(output, given) for output in result)
        return _unless_given(result, given)

    return classmethod(apply)


_KNOWING_THEIR_NODES = ("mindspore.", "mindspore_zb.")
"""Whose operations get no view: MindSpore's own, such as those of recompute, and blocks, where a view would cost a wait
for MindSpore's threads in each."""


def _unless_given(output: Any, given: Sequence[Any]) -> Any:
    """The output behind a view; a changed argument that is returned stays itself."""
    return output if any(output is value for value in given) else behind_view(output)


def behind_view(output: Any) -> Any:
    """A view of what a ``_Function`` gave; anything else as it is."""
    edge = grad_edge(output) if isinstance(output, Tensor) else None
    return output.view(output.shape) if edge is not None and is_python_node(edge[0]) else output


def _watched_recompute(original: Any) -> Any:
    class WatchedRecompute(original):
        """Made by ``mindspore.recompute`` for each block that is recomputed without reentrance."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            observation = getattr(_ACTIVE, "observation", None)
            if observation is not None:
                observation.recomputed = True

    return WatchedRecompute


def _watched_reentrant(original: Any) -> Any:
    def construct(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        observation = getattr(_ACTIVE, "observation", None)
        if observation is not None:
            observation.reentrant_cells.append(self)
        return result

    return construct


def _in_top_cell(original: Any) -> Any:
    def call_custom_bprop(self, *args, **kwargs):
        if getattr(_ACTIVE, "observation", None) is None:
            return original(self, *args, **kwargs)
        with top_cell():
            return original(self, *args, **kwargs)

    return call_custom_bprop


def _refused_gradient(original: Any) -> Any:
    """What ``ms.grad(fn)`` runs first: in a forward of ours the gradient would come without history, as a constant."""
    def forward(*args, **kwargs):
        if getattr(_ACTIVE, "observation", None) is not None:
            raise UnsupportedError("fn takes a gradient inside (ms.grad, value_and_grad, vjp or GradOperation), which "
                                   "would count as a constant: take it in a function of its own under @jit, or compile "
                                   "all of fn with mode='graph'")
        return original(*args, **kwargs)

    return forward


def _interceptor() -> Optional[Intercept]:
    observation = getattr(_ACTIVE, "observation", None)
    return None if observation is None else observation.intercept


def _watched_jit(original: Any) -> Any:
    def __call__(self, *args, **kwargs):
        catch = getattr(_ACTIVE, "catch", None)
        if catch is not None:
            return catch(functools.partial(original, self, *args, **kwargs))
        intercept = _interceptor()
        block = None if intercept is None else _block_behind(self)
        if block is None:
            return original(self, *args, **kwargs)
        inputs = args if self.obj is None else args[1:]
        return intercept(block, inputs, kwargs, functools.partial(original, self, *args, **kwargs))

    return __call__


def _block_behind(executor: Any) -> Any:
    """The Cell, bound method or function that ``@jit`` runs.

    None if it was given settings of its own, or is a method that its own Cell has overridden: MindSpore looks methods
    up by name.
    """
    if getattr(executor.fn, "amp_strategy", None) is not None:
        return None
    owner, name = executor.obj, executor.fn.__name__
    if owner is None:
        return executor.fn
    method = getattr(type(owner), name, None)
    if not isinstance(owner, nn.Cell) or getattr(method, "__wrapped__", method) is not executor.fn or \
            name in vars(owner):
        return None
    return owner if name == "construct" else MethodType(executor.fn, owner)


def _watched_cell(original: Any) -> Any:
    def call(self, args, kwargs):
        intercept = _interceptor() if is_graph_cell(self) else None
        if intercept is None or self._recompute_cell is not None:
            return original(self, *args, **kwargs)
        return intercept(self, args, kwargs, functools.partial(original, self, *args, **kwargs))

    @functools.wraps(original)
    def __call__(self, *args, **kwargs):
        running = getattr(_ACTIVE, "cells", None)
        if running is None:
            return call(self, args, kwargs)
        running.append(self)
        try:
            return call(self, args, kwargs)
        finally:
            running.pop()

    return __call__


@contextlib.contextmanager
def recompute_session(session: Any, keep: bool) -> Iterator[None]:
    """Share what is recomputed between the backward runs of one ``session``; ``keep`` it for further runs."""
    if session is None or not HAS_SESSIONS:
        yield
    else:
        with _recompute._recompute_session_ctx(session, keep):
            yield


def end_recompute_session(session: Any) -> None:
    """Forget what was recomputed in ``session``."""
    if session is not None and HAS_SESSIONS:
        _recompute._clear_recompute_session(session)


OPAQUE_CALLS = ((_JitExecutor, "__call__", "@jit"), (nn.Cell, "_call_custom_bprop", "custom bprop"),
                (_recompute, "recompute_without_reentrant", "recompute"), (_Function, "apply", "_Function"))
"""``(owner, name, kind)`` of what calls something whose backward reads more than saved tensors; see ``opaque.py``."""

RECOMPUTE_HOOKS = (_recompute._CreatePlaceholderHook, _recompute._RecomputationHook)
"""MindSpore's own hooks for saved tensors, of blocks that are recomputed without reentrance."""


def called_by(kind: str, args: tuple, kwargs: dict) -> Optional[Tuple[str, Any, tuple]]:
    """What a call of :data:`OPAQUE_CALLS` runs: its kind, the Cell or function, and its arguments; None for MindSpore's
    and our own operations."""
    if kind == "@jit":
        executor, inputs = args[0], args[1:]
        return kind, executor.fn if executor.obj is None else executor.obj, \
            (inputs if executor.obj is None else inputs[1:], kwargs)
    if kind == "custom bprop":
        cell = args[0]
        if isinstance(cell, _recompute._RecomputeCell):
            return "recompute", getattr(cell.net, "function", cell.net), (args[1:], kwargs)
        return kind, cell, (args[1:], kwargs)
    if kind == "recompute":
        return kind, args[0], (args[4:], kwargs)
    return None if args[0].__module__.startswith(_KNOWING_THEIR_NODES) else (kind, args[0], ())
