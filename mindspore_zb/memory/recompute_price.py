"""What recompute in the graph engine saves, and what it costs."""

import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence

from mindspore_zb.api import run_forward
from mindspore_zb.checks import check_count
from mindspore_zb.engines.pynative.native import sync
from mindspore_zb.errors import ArgumentValueError, UnsupportedError
from mindspore_zb.memory.turns import in_turn
from mindspore_zb.settings import RECOMPUTE_POLICIES, options

WARMUP = 2
"""Rounds that are not counted: the first one compiles."""


@dataclass(frozen=True)
class RecomputePrice:
    """One policy beside ``"none"``.

    Attributes:
        policy: the value of ``options(graph_recompute=...)``.
        saved_bytes: bytes that cross from the forward to dx and dw under the policy; parameters left out.
        unsaved_bytes: the same with ``"none"``.
        seconds: median time of forward, dx and dw together under the policy.
        unsaved_seconds: the same with ``"none"``.
        ratio: the median over all rounds of the former time over the latter, both of one round.
        rounds: how many rounds were measured.
    """

    policy: str
    saved_bytes: int
    unsaved_bytes: int
    seconds: float
    unsaved_seconds: float
    ratio: float
    rounds: int


def recompute_price(fn: Callable[..., Any], inputs: Sequence[Any], weights: Any = None, policy: str = "cheap", *,
                    kwargs: Optional[Dict[str, Any]] = None, grad_position: Any = 0, has_aux: bool = False,
                    sens: Any = None, rounds: int = 10) -> RecomputePrice:
    """Measure a policy of recompute and ``"none"`` in turn.

    ``fn`` runs once for each policy and round, compiled: what it writes into Parameters, it writes as often.

    Args:
        fn, inputs, weights, kwargs, grad_position, has_aux: as for :func:`~mindspore_zb.forward_and_gradfn`.
        policy: one of those of ``options(graph_recompute=...)``.
        sens: as for ``compute_input_grad``.
        rounds: how many rounds are measured, after two others.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument cannot be used; what ``fn`` raises passes through.
        UnsupportedError: ``fn`` cannot be compiled; the message says why.

    Example:
        >>> from mindspore import nn, ops
        >>> net = nn.SequentialCell(nn.Dense(8, 8), nn.GELU(), nn.Dense(8, 8))
        >>> price = recompute_price(net, (ops.ones((4, 8)),), net.trainable_params(), rounds=1)
        >>> price.saved_bytes < price.unsaved_bytes
        True
    """
    if policy not in RECOMPUTE_POLICIES:
        raise ArgumentValueError(f"policy must be one of {', '.join(RECOMPUTE_POLICIES)}, not {policy!r}")
    rounds = check_count("rounds", rounds)
    saved: Dict[str, int] = {}

    def step(chosen: str) -> float:
        sync()
        start = time.perf_counter()
        with options(graph_recompute=chosen):
            _, grad_fn = run_forward(fn, tuple(inputs), dict(kwargs or {}), weights, has_aux, grad_position, "graph")
        saved[chosen] = _crossing(grad_fn)
        if grad_position is None:
            grads = grad_fn(sens)
        else:
            grads = grad_fn.compute_input_grad(sens), grad_fn.compute_weight_grad()
        sync()
        seconds = time.perf_counter() - start
        del grads
        return seconds

    times = in_turn({chosen: lambda chosen=chosen: step(chosen) for chosen in ("none", policy)}, rounds, WARMUP)
    ratios = [one / other for one, other in zip(times[policy], times["none"])]
    return RecomputePrice(policy, saved[policy], saved["none"], statistics.median(times[policy]),
                          statistics.median(times["none"]), statistics.median(ratios), rounds)


def _crossing(grad_fn: Any) -> int:
    description, _ = grad_fn.describe()
    if description.saved_bytes is None:
        raise UnsupportedError(f"there is no recompute in the PyNative engine, which ran it: {grad_fn.fallback_reason}")
    return description.saved_bytes
