"""A stage: a part of the model, run micro-batch by micro-batch as F, B and W."""

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mindspore_zb.api import check_mode, run_forward
from mindspore_zb.arguments import check_weights
from mindspore_zb.checks import a_kind_of
from mindspore_zb.errors import ArgumentTypeError, StateError
from mindspore_zb.grad_function import GradFunction
from mindspore_zb.pipeline.metas import MessageMeta
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import detached, is_tensor, zeros


@dataclass(frozen=True)
class Stage:
    """A part of the model and what is known of it.

    The first stage is called with the inputs of the pipeline, every other one with what the stage before returned, as
    one argument, and then the extra arguments of :meth:`Pipeline.step`; the last one with the targets after that, and
    it returns the loss of the micro-batch, a mean over it, as one number. Only tensors pass between stages, nested in
    tuples, lists and dicts.

    Attributes:
        fn: a Cell or any callable.
        weights: its weights: one Parameter or an iterable; None for the trainable parameters of a Cell, and no weights
            of anything else.
        takes: what it takes from the stage before, :class:`TensorMeta` nested like it. Compared with what that stage
            gives, before the first step.
        gives: what it returns, likewise. A stage without ``gives`` is called once before the first step, on zeros,
            in evaluation mode if it is a Cell, to learn it.
        mode: "auto", "pynative" or "graph": the engine that splits its backward.

    Raises:
        ArgumentTypeError, ArgumentValueError: one of them cannot be used.

    >>> from mindspore import nn
    >>> [weight.name for weight in Stage(nn.Dense(2, 2)).weights]
    ['weight', 'bias']
    """

    fn: Callable[..., Any]
    weights: Any = None
    takes: Any = None
    gives: Any = None
    mode: str = "auto"

    def __post_init__(self):
        if not callable(self.fn):
            raise ArgumentTypeError(f"fn of a stage must be callable, not {a_kind_of(self.fn)}")
        check_mode(self.mode)
        weights = self.weights
        if weights is None:
            weights = self.fn.trainable_params() if hasattr(self.fn, "trainable_params") else ()
        object.__setattr__(self, "weights", tuple(check_weights(weights).parameters))
        for name in ("takes", "gives"):
            if getattr(self, name) is not None:
                MessageMeta.of(getattr(self, name), name)  # raises

    def new_flight(self, takes: Optional[MessageMeta]) -> "Flight":
        """What runs one micro-batch; ``takes`` is what comes from the stage before, None for the first one."""
        return Flight(self, takes)


class Flight:
    """One micro-batch in a stage, from its F to its W.

    Args:
        takes: what the stage takes from another stage, None for the first one. The inputs of the first stage get no
            gradient: nobody would use it.
    """

    def __init__(self, stage: Stage, takes: Optional[MessageMeta]):
        self._stage = stage
        self._has_dx = takes is not None and bool(takes.gradient_places)
        self._grad_fn: Optional[GradFunction] = None
        self._sens: Any = None
        self._state = "new"
        self._parts_done = 0

    def forward(self, args: tuple) -> Any:
        """F: what the stage returns."""
        if not self._has_dx and not self._stage.weights:
            out = without_gradients(self._stage.fn, args)
        else:
            out, self._grad_fn = run_forward(self._stage.fn, args, {}, self._stage.weights or None, False,
                                             0 if self._has_dx else None, self._stage.mode)
        self._state = "forward done"
        return out

    def input_grad(self, sens: Any) -> List[Any]:
        """B: the gradients of those tensors taken that have one."""
        self._state = "dx done"
        if self._grad_fn is None:
            return []
        if not self._has_dx:
            self._sens = sens  # all the work is in W
            return []
        dx = self._grad_fn.compute_input_grad(sens)
        if not self._stage.weights:
            self._grad_fn.release()
            self._grad_fn = None
        return [grad for grad in flat_gradients(dx) if grad is not None]

    def weight_grad(self, part: int, parts: int) -> Tuple[Sequence[Any], Sequence[Any]]:
        """A part of W: weights, and their gradients. The parts may come in any order."""
        weights, grads = self._weight_grad(part, parts)
        self._parts_done += 1
        if self._parts_done == parts:
            self._state, self._grad_fn, self._sens = "done", None, None
        return weights, grads

    def _weight_grad(self, part: int, parts: int) -> Tuple[Sequence[Any], Sequence[Any]]:
        weights = self._stage.weights
        if self._grad_fn is None or (not self._has_dx and self._parts_done):  # then the first part does it all
            return (), ()
        if not self._has_dx:
            sens, self._sens = self._sens, None
            return weights, self._grad_fn(sens)
        if parts == 1:
            return weights, self._grad_fn.compute_weight_grad()
        groups = self._grad_fn.weight_groups
        chosen = groups[part * len(groups) // parts:(part + 1) * len(groups) // parts]
        computed = [(group.weights, group.compute()) for group in chosen]
        return ([weight for found, _ in computed for weight in found],
                [grad for _, grads in computed for grad in grads])

    @property
    def done(self) -> bool:
        """Whether all parts of W have been run."""
        return self._state == "done"

    @property
    def held(self) -> str:
        """What is alive: "whole" activations, the "rest" that only dw needs, or "nothing"."""
        if self._grad_fn is None or self._grad_fn.state == "released":
            return "nothing"
        return "whole" if self._grad_fn.state == "fresh" else "rest"

    def release(self) -> None:
        """Let go of everything."""
        if self._grad_fn is not None:
            self._grad_fn.release()
            self._grad_fn = None
        self._sens = None

    def check_ready(self, wanted: str) -> None:
        """Raise StateError unless the flight has come so far."""
        if self._state != wanted:
            raise StateError(f"the micro-batch is at {self._state!r}, not at {wanted!r}: the schedule is out of order")


def flat_gradients(dx: Any) -> List[Any]:
    """The leaves of nested gradients, None included."""
    return flatten(dx)[0]


def without_gradients(fn: Callable[..., Any], args: tuple) -> Any:
    """``fn(*args)``; outside of a forward of ``mindspore_zb`` nothing is recorded."""
    leaves, structure = flatten(fn(*args))
    return structure.unflatten([detached(leaf) if is_tensor(leaf) else leaf for leaf in leaves])


def trial_output(stage: Stage, args: tuple) -> Any:
    """What a stage returns for such arguments: run in evaluation mode, so that no statistics or masks move on."""
    cells: Dict[int, Tuple[Any, bool]] = {}
    if hasattr(stage.fn, "cells_and_names"):
        cells = {id(cell): (cell, cell.training) for _, cell in stage.fn.cells_and_names()}
    try:
        for cell, _ in cells.values():
            cell.training = False
        return without_gradients(stage.fn, args)
    finally:
        for cell, training in cells.values():
            cell.training = training


def zeros_like_gradients(takes: MessageMeta) -> List[Any]:
    """Gradients of a message that nothing depends on."""
    return [zeros(takes.leaves[place].shape, takes.leaves[place].framework_dtype) for place in takes.gradient_places]
