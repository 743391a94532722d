"""What recompute saves and costs on a net: bytes of saved tensors, and times as ratios of interleaved runs."""

import contextlib
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Tuple

from mindspore_zb.api import forward_and_gradfn
from mindspore_zb.checks import check_count
from mindspore_zb.engines.pynative.native import sync
from mindspore_zb.errors import ArgumentValueError
from mindspore_zb.memory.ledger import SavedTensorLedger
from mindspore_zb.memory.recompute import apply_recompute
from mindspore_zb.memory.turns import in_turn

WITHOUT = "none"


@dataclass(frozen=True)
class RecomputeCost:
    """One policy, measured.

    Attributes:
        policy: its name; ``"none"`` is the net as it is.
        forward_bytes: bytes of saved tensors that are alive after the forward, weights not counted.
        dx_bytes: the same after dx.
        forward_seconds, backward_seconds: medians of the forward, and of dx and dw together.
        time_ratio: forward, dx and dw against those of ``"none"``: the median of the ratios of the rounds.
    """

    policy: str
    forward_bytes: int
    dx_bytes: int
    forward_seconds: float
    backward_seconds: float
    time_ratio: float


def measure_recompute(fn: Callable[..., Any], inputs: Tuple[Any, ...], weights: Any, blocks: Any,
                      policies: Optional[Mapping[str, Mapping[str, Any]]] = None,
                      rounds: int = 5) -> Tuple[RecomputeCost, ...]:
    """Run forward, dx and dw under each policy in turn, and without.

    Args:
        fn, inputs, weights: as for :func:`~mindspore_zb.forward_and_gradfn`.
        blocks: the blocks for :func:`apply_recompute`.
        policies: for each name the arguments of :func:`apply_recompute` behind ``blocks``. Default: all three.
        rounds: how often each is timed, after one run to warm up. 0 leaves times at nan.

    Returns:
        ``"none"`` first, then the policies.

    Raises:
        ArgumentTypeError, ArgumentValueError: see :func:`apply_recompute`; or ``rounds`` is no such number, or a
            policy is called ``"none"``.

    Example:
        >>> from mindspore import nn, ops
        >>> from mindspore_zb.memory.recompute_costs import measure_recompute
        >>> net = nn.SequentialCell([nn.SequentialCell(nn.Dense(8, 8), nn.Tanh()) for _ in range(9)])
        >>> costs = measure_recompute(net, (ops.ones((2, 8)),), net.trainable_params(), net,
        ...                           {"full": {}, "every 3rd": {"policy": "every"}}, rounds=0)
        >>> [(cost.policy, cost.forward_bytes // (2 * 8 * 4)) for cost in costs]
        [('none', 10), ('full', 9), ('every 3rd', 3)]
    """
    rounds = check_count("rounds", rounds, least=0)
    if policies is None:
        policies = {policy: {"policy": policy} for policy in ("full", "every", "selective")}
    if WITHOUT in policies:
        raise ArgumentValueError(f"no policy can be called {WITHOUT!r}: that is the net as it is")
    weights = (weights,) if hasattr(weights, "requires_grad") else tuple(weights)
    ways: Dict[str, Callable[[], ContextManager[Any]]] = {WITHOUT: contextlib.nullcontext}
    for name, arguments in policies.items():
        ways[name] = lambda arguments=arguments: apply_recompute(blocks, **arguments)
    saved = {name: _bytes(way, fn, inputs, weights) for name, way in ways.items()}
    times = in_turn({name: lambda way=way: _seconds(way, fn, inputs, weights) for name, way in ways.items()}, rounds,
                    warmup=1 if rounds else 0)
    return tuple(_cost(name, saved[name], times[name], times[WITHOUT]) for name in ways)


def _cost(name: str, saved: Tuple[int, int], times: List[Tuple[float, float]],
          without: List[Tuple[float, float]]) -> RecomputeCost:
    if not times:
        return RecomputeCost(name, *saved, float("nan"), float("nan"), float("nan"))
    return RecomputeCost(name, *saved, statistics.median(forward for forward, _ in times),
                         statistics.median(backward for _, backward in times),
                         statistics.median(sum(one) / sum(other) for one, other in zip(times, without)))


def _bytes(way: Callable[[], ContextManager[Any]], fn: Callable[..., Any], inputs: tuple,
           weights: tuple) -> Tuple[int, int]:
    ledger = SavedTensorLedger(ignore=weights)
    with way(), ledger.watch():
        _, grad_fn = forward_and_gradfn(fn, *inputs, weights=weights)
    after_forward = ledger.alive_bytes()
    grad_fn.compute_input_grad()
    after_dx = ledger.alive_bytes()
    grad_fn.compute_weight_grad()
    return after_forward, after_dx


def _seconds(way: Callable[[], ContextManager[Any]], fn: Callable[..., Any], inputs: tuple,
             weights: tuple) -> Tuple[float, float]:
    with way():
        sync()
        start = time.perf_counter()
        _, grad_fn = forward_and_gradfn(fn, *inputs, weights=weights)
        sync()
        between = time.perf_counter()
        grad_fn.compute_input_grad()
        grad_fn.compute_weight_grad()
        sync()
        return between - start, time.perf_counter() - between
