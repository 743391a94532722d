"""``GradFunction``: the order of calls, the state between them and the shape of their results."""

import contextlib
import enum
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from mindspore_zb.arguments import InputLayout, OutputLayout, Weights
from mindspore_zb.engines.base import Description, Recording
from mindspore_zb.errors import ArgumentValueError, StateError
from mindspore_zb.tensors import ones, zeros
from mindspore_zb.weight_group import GroupEntry, WeightGroup


class State(enum.Enum):
    """Where a :class:`GradFunction` stands."""

    FRESH = "fresh"
    SPLIT = "dx computed"
    RELEASED = "released"


@dataclass(frozen=True)
class Request:
    """What ``forward_and_gradfn`` was asked for.

    Attributes:
        weights: the weights.
        asks_inputs: whether input gradients were asked for (``grad_position`` is not None).
        input_layout, output_layout: how gradients and sens nest.
        input_meta: shape and dtype of each input tensor that gets a gradient.
    """

    weights: Weights
    asks_inputs: bool
    input_layout: InputLayout
    output_layout: OutputLayout
    input_meta: Tuple[Tuple[tuple, Any], ...]


class GradFunction:
    """The backward of one forward pass, whole or in two halves.

    Made by :func:`~mindspore_zb.forward_and_gradfn`. The halves are :meth:`compute_input_grad` (dx) and, later,
    :meth:`compute_weight_grad` (dw); calling the object runs the unsplit backward instead.

    ======================== ====================== ========================================= ======================
    call                     fresh                  after dx                                  after dw
    ======================== ====================== ========================================= ======================
    ``compute_input_grad``   runs                   error: already computed                   error: graph released
    ``compute_weight_grad``  error: dx comes first  runs; again and again with ``keep_graph`` error: graph released
    ``__call__``             runs                   error: the split has begun                error: graph released
    ======================== ====================== ========================================= ======================

    Source: the split into B and W of Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.
    """

    def __init__(self, recording: Recording, request: Request, engine: str = "pynative",
                 fallback_reason: Optional[str] = None):
        self._recording: Optional[Recording] = recording
        self._request = request
        self._engine = engine
        self._fallback_reason = fallback_reason
        self._state = State.FRESH
        self._groups: Optional[Tuple[GroupEntry, ...]] = None
        self._done: set = set()
        self._lock = threading.Lock()
        self._runner: Optional[int] = None

    @property
    def engine(self) -> str:
        """Which engine recorded the forward: ``"pynative"`` or ``"graph"``."""
        return self._engine

    @property
    def fallback_reason(self) -> Optional[str]:
        """Why the graph engine did not do it though ``fn`` is compiled; None if there is nothing to tell."""
        return self._fallback_reason

    @property
    def state(self) -> str:
        """``"fresh"``, ``"dx computed"`` or ``"released"``."""
        return self._state.value

    def compute_input_grad(self, sens: Any = None) -> Any:
        """Run dx: the gradients of the inputs, and nothing else.

        Args:
            sens: gradients of the outputs, nested, shaped and typed like them. None stands for ones; None in one
                place gives that output no gradient.

        Returns:
            The gradients in the shape that ``grad_position`` asks for; None in the places of non-tensors and of
            integer tensors; zeros for an input that the outputs do not depend on. A gradient may share memory with
            gradients that dw still reads: do not change it in place before dw. ``sens`` itself is free again.

        Raises:
            StateError: dx was computed already, or the graph was released.
            ArgumentValueError, ArgumentTypeError: ``sens`` does not fit, or ``grad_position`` is None.
        """
        with self._alone():
            self._check_alive()
            if self._state is State.SPLIT:
                raise StateError("the input gradients were already computed: call compute_weight_grad next")
            if not self._request.asks_inputs:
                raise ArgumentValueError("grad_position is None, so there is no input gradient: call the GradFunction "
                                         "itself to get the weight gradients")
            entries = self._check_sens(sens)
            self._group_list()
            try:
                grads = self._recording.input_grads(entries)
            except BaseException:
                self._release()
                raise
            self._state = State.SPLIT
            return self._shape_inputs(grads)

    def compute_weight_grad(self, keep_graph: bool = False) -> Any:
        """Run dw: the gradients of the weights, from what dx left.

        Args:
            keep_graph: keep what dw needs, so that it can be called again; else everything is freed.

        Returns:
            One tensor for a single Parameter, else a tuple in the order of ``weights``; zeros for a weight that the
            outputs do not depend on or that asks for no gradient. None for a weight whose group was computed alone
            (:attr:`weight_groups`): its gradient was handed out then. ``()`` without weights.

        Raises:
            StateError: dx was not computed yet, or the graph was released.
        """
        with self._alone():
            self._check_after_dx("compute_weight_grad")
            groups = self._group_list()
            remaining = [number for number in range(len(groups)) if number not in self._done]
            grads = self._run_groups(remaining, keep_graph)
            if not keep_graph:
                self._release()
            return self._request.weights.shape_grads(grads)

    def __call__(self, sens: Any = None, keep_graph: bool = False) -> Any:
        """Run the unsplit backward.

        Returns:
            dx, dw or ``(dx, dw)``, as ``grad_position`` and ``weights`` ask for; see :meth:`compute_input_grad` and
            :meth:`compute_weight_grad`.

        Raises:
            StateError: the split has begun, or the graph was released.
            ArgumentValueError, ArgumentTypeError: ``sens`` does not fit.
        """
        with self._alone():
            self._check_alive()
            if self._state is State.SPLIT:
                raise StateError("the split has begun: compute_input_grad was called, call compute_weight_grad next")
            entries = self._check_sens(sens)
            try:
                input_grads, weight_grads = self._recording.all_grads(entries, keep_graph)
            except BaseException:
                self._release()
                raise
            if not keep_graph:
                self._release()
            parameters = self._request.weights.parameters
            dw = self._request.weights.shape_grads([_zeros_for(parameter) if grad is None else grad
                                                    for grad, parameter in zip(weight_grads, parameters)]) \
                if parameters else ()
            if not self._request.asks_inputs:
                return dw
            dx = self._shape_inputs(input_grads)
            return (dx, dw) if parameters else dx

    @property
    def weight_groups(self) -> Tuple[WeightGroup, ...]:
        """The groups of weights whose dw share work, in the order in which dw runs best.

        Each can be computed alone (:meth:`WeightGroup.compute`), in any order, once dx is there. Together they hold
        every weight once; weights that the outputs do not depend on form a last group of their own, of zeros.
        """
        if self._groups is None:
            self._check_alive()
        return tuple(WeightGroup(self, number) for number in range(len(self._group_list())))

    def describe(self) -> Tuple[Description, Request]:
        """What :func:`~mindspore_zb.explain` tells in a legible form.

        Raises:
            StateError: the graph was released.
        """
        if self._state is State.RELEASED:
            raise StateError("the graph was released, so there is nothing left to explain: explain it before its last "
                             "backward")
        return self._recording.describe(), self._request

    def held_storages(self) -> Dict[int, int]:
        """Address and bytes of each storage that is held at this moment besides what MindSpore's own nodes saved:
        gradients that wait for dw, and the values between compiled pieces; weights left out. Empty once released."""
        return {} if self._recording is None else self._recording.held_storages()

    def watch_nodes(self, tell: Callable[[str], None]) -> None:
        """Have ``tell`` called with the name of each operation right before its backward runs, from now on; compiled
        pieces tell nothing.

        Raises:
            StateError: the graph was released.
        """
        self._check_alive()
        self._recording.watch_nodes(tell)

    @property
    def nbytes(self) -> int:
        """Bytes that wait for dw, each storage once; see :attr:`WeightGroup.nbytes`. 0 before dx and after dw."""
        if self._state is not State.SPLIT:
            return 0
        return self._recording.held_bytes([group.native for group in self._groups if group.native is not None])

    def release(self) -> None:
        """Let go of the graph and all it holds, at once. Calling it again does nothing.

        Raises:
            StateError: called from a hook of a backward of this very object.
        """
        with self._alone():
            self._release()

    def _release(self) -> None:
        if self._recording is not None:
            self._recording.release()
            self._recording = None
        self._state = State.RELEASED

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One call at a time: other threads wait, and a hook of a running backward must not call in again."""
        if self._runner == threading.get_ident():
            raise StateError("a backward of this GradFunction is running: its own hooks cannot call it")
        with self._lock:
            self._runner = threading.get_ident()
            try:
                yield
            finally:
                self._runner = None

    def _group_list(self) -> Tuple[GroupEntry, ...]:
        if self._groups is None:
            groups = [GroupEntry(info.weights, info.boundaries, number)
                      for number, info in enumerate(self._recording.groups())]
            reached = {weight for group in groups for weight in group.weights}
            rest = tuple(place for place in range(len(self._request.weights.parameters)) if place not in reached)
            if rest:
                groups.append(GroupEntry(rest, (), None))
            self._groups = tuple(groups)
        return self._groups

    def _run_groups(self, numbers: Sequence[int], keep_graph: bool) -> List[Optional[Any]]:
        """Gradients by position of the weight; None for weights of other groups."""
        parameters = self._request.weights.parameters
        groups = [self._groups[number] for number in numbers]
        native = [group.native for group in groups if group.native is not None]
        try:
            found = dict(self._recording.weight_grads(native, keep_graph)) if native else {}
        except BaseException:
            self._release()
            raise
        grads: List[Optional[Any]] = [None] * len(parameters)
        for group in groups:
            for place in group.weights:
                grad = found.get(place)
                grads[place] = _zeros_for(parameters[place]) if grad is None else grad
        return grads

    def _group_bytes(self, number: int) -> int:
        native = self._groups[number].native
        if self._state is not State.SPLIT or number in self._done or native is None:
            return 0
        return self._recording.held_bytes([native])

    def _is_group_done(self, number: int) -> bool:
        return self._state is State.RELEASED or number in self._done

    def _compute_group(self, number: int, keep_graph: bool) -> Tuple[Any, ...]:
        with self._alone():
            self._check_after_dx(f"weight_groups[{number}].compute")
            if number in self._done:
                raise StateError(f"weight_groups[{number}] was already computed and has freed its part of the graph")
            grads = self._run_groups([number], keep_graph)
            if not keep_graph:
                self._done.add(number)
                if len(self._done) == len(self._groups):
                    self._release()
            return tuple(grads[place] for place in self._groups[number].weights)

    def _check_alive(self) -> None:
        if self._state is State.RELEASED:
            raise StateError("the graph was released: run forward_and_gradfn again")

    def _check_after_dx(self, call: str) -> None:
        self._check_alive()
        if self._state is State.FRESH:
            raise StateError(f"{call} needs compute_input_grad first" if self._request.asks_inputs else
                             f"{call} needs input gradients, but grad_position is None: call the GradFunction itself")

    def _check_sens(self, sens: Any) -> List[Optional[Any]]:
        return self._request.output_layout.check_sens(sens, ones)

    def _shape_inputs(self, grads: Sequence[Optional[Any]]) -> Any:
        return self._request.input_layout.shape_grads(
            [zeros(*meta) if grad is None else grad for grad, meta in zip(grads, self._request.input_meta)])


def _zeros_for(parameter: Any) -> Any:
    return zeros(parameter.shape, parameter.dtype)
