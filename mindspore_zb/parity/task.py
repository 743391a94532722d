"""What is to be compared, checked, with the state that every run starts from."""

from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np
from mindspore import Tensor

from mindspore_zb.arguments import check_grad_position, check_weights
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.parity.state import SavedState, fresh, without_jit
from mindspore_zb.parity.unsplit import pairs_of
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import is_differentiable


@dataclass(frozen=True)
class Task:
    """Arguments of :func:`~mindspore_zb.parity.compare_engines`, checked.

    Attributes:
        sens: nested like the differentiated output, or None.
        starts: the tensors of ``sens`` in the order of the outputs.
        state: what to restore before each run.
    """

    fn: Callable[..., Any]
    inputs: tuple
    kwargs: Dict[str, Any]
    weights: Tuple[Any, ...]
    has_aux: bool
    grad_position: Any
    sens: Any
    starts: Tuple[Any, ...]
    state: SavedState
    micro_batches: int
    tolerance: Optional[float]


def prepare(fn: Callable[..., Any], inputs: Sequence[Any], weights: Any, kwargs: Optional[Dict[str, Any]],
            grad_position: Any, has_aux: bool, sens: Any, micro_batches: int, tolerance: Optional[float]) -> Task:
    """Check the arguments and run ``fn`` once, to see what it returns.

    Raises:
        ArgumentTypeError, ArgumentValueError: one cannot be used. What ``fn`` raises passes through.
    """
    _check(fn, inputs, kwargs, sens, micro_batches, tolerance)
    parameters = check_weights(weights).parameters
    position = check_grad_position(grad_position, len(inputs))
    if position is None and not parameters:
        raise ArgumentValueError("weights is empty and grad_position is None: there is nothing to compare")
    state = SavedState(fn, parameters)
    try:
        with without_jit():
            out = fn(*fresh(tuple(inputs)), **fresh(kwargs or {}))
    finally:
        state.restore()
    if has_aux and (not isinstance(out, (tuple, list)) or not out):
        raise ArgumentTypeError(f"with has_aux, fn must return a tuple (out, *aux), but it returned a "
                                f"{type(out).__name__}")
    out = out[0] if has_aux else out
    sens = _random_sens(out) if isinstance(sens, str) else sens
    try:
        starts = tuple(entry for _, entry in pairs_of(out, sens))
    except (TypeError, KeyError, IndexError) as error:
        raise ArgumentValueError("sens does not nest like the outputs of fn") from error
    return Task(fn, tuple(inputs), dict(kwargs or {}), parameters, has_aux, position, sens, starts, state,
                micro_batches, tolerance)


def _check(fn: Any, inputs: Any, kwargs: Any, sens: Any, micro_batches: Any, tolerance: Any) -> None:
    if not callable(fn):
        raise ArgumentTypeError(f"fn must be callable, not a {type(fn).__name__}")
    if not isinstance(inputs, (tuple, list)):
        raise ArgumentTypeError(f"inputs must be a tuple of the arguments of fn, not a {type(inputs).__name__}")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise ArgumentTypeError(f"kwargs must be a dict, not a {type(kwargs).__name__}")
    if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
        raise ArgumentValueError(f"micro_batches must be an int from 1, not {micro_batches!r}")
    if tolerance is not None and not (isinstance(tolerance, (int, float)) and 0 <= tolerance < np.inf):
        raise ArgumentValueError(f"tolerance must be a number from 0, not {tolerance!r}")
    if isinstance(sens, str) and sens != "random":
        raise ArgumentValueError(f"sens must be 'random', None or nested tensors, not {sens!r}")


def _random_sens(out: Any) -> Any:
    leaves, structure = flatten(out)
    rng = np.random.default_rng(2401)
    return structure.unflatten([Tensor(rng.standard_normal(tuple(leaf.shape)).astype(np.float32)).astype(leaf.dtype)
                                if is_differentiable(leaf) else None for leaf in leaves])
