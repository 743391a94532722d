"""T_F, T_B and T_W of a stage, for the schedules."""

import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterable

from mindspore_zb.api import run_forward
from mindspore_zb.checks import check_count, check_number, check_text, kind_of
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.memory import synchronize
from mindspore_zb.pipeline.stages import Stage
from mindspore_zb.schedule import Costs


MOST_ROUNDS = 10_000
"""The most micro-batches that are measured."""


@dataclass(frozen=True)
class StageTimes:
    """Medians in seconds of the forward, of dx alone, and of dw; ``engine`` says what split the backward.

    Raises:
        ArgumentTypeError, ArgumentValueError: times that are none.
    """

    f: float
    b: float
    w: float
    engine: str

    def __post_init__(self):
        for name in "fbw":
            object.__setattr__(self, name, check_number(name, getattr(self, name)))
        check_text("engine", self.engine)

    def costs(self, comm: float = 0.0) -> Costs:
        """As costs of the schedules, in seconds.

        >>> StageTimes(2.0, 2.0, 1.0, "pynative").costs().w
        1.0
        """
        return Costs(f=self.f, b=self.b, w=self.w, comm=comm)


def stage_times(fn: Callable[..., Any], inputs: tuple, weights: Iterable[Any] = None, *, mode: str = "auto",
                rounds: int = 10, warmup: int = 3) -> StageTimes:
    """Measure F, B and W of one micro-batch.

    Args:
        fn, weights, mode: as of a :class:`Stage`.
        inputs: the arguments of ``fn``; dx is that of the first one.
        rounds: how many are measured, after ``warmup`` others.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument cannot be used; what ``fn`` raises passes through.

    >>> from mindspore import nn, ops
    >>> times = stage_times(nn.Dense(4, 4), (ops.ones((2, 4)),), rounds=2)
    >>> times.f > 0 and times.b > 0 and times.w > 0
    True
    """
    rounds, warmup = check_count("rounds", rounds, most=MOST_ROUNDS), check_count("warmup", warmup, 0, MOST_ROUNDS)
    if not isinstance(inputs, (tuple, list)):
        raise ArgumentTypeError(f"inputs must be the arguments of fn in a tuple, not {kind_of(inputs)}")
    if not inputs:
        raise ArgumentValueError("inputs must be the arguments of fn in a tuple, at least one")
    stage = Stage(fn, weights, mode=mode)
    seconds = []
    for number in range(warmup + rounds):
        synchronize()
        start = time.perf_counter()
        _, grad_fn = run_forward(stage.fn, tuple(inputs), {}, stage.weights or None, False, 0, mode)
        synchronize()
        forward = time.perf_counter()
        dx = grad_fn.compute_input_grad()
        synchronize()
        backward = time.perf_counter()
        dw = grad_fn.compute_weight_grad()
        synchronize()
        end = time.perf_counter()
        del dx, dw
        if number >= warmup:
            seconds.append((forward - start, backward - forward, end - backward))
    return StageTimes(*(statistics.median(column) for column in zip(*seconds)), engine=grad_fn.engine)
