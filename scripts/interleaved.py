"""Compare the times of several ways to do the same work, fairly: interleaved runs, ratios of each round."""

import statistics
import time
from typing import Callable, Dict, List

from waiting import waiting_gently

from mindspore_zb.memory import synchronize
from mindspore_zb.memory.turns import in_turn


def times_of(ways: Dict[str, Callable[[], Dict[str, float]]], rounds: int, warmup: int = 2) -> Dict[str, List[float]]:
    """Run all ways in turn, ``rounds`` times. Each returns named seconds; ``"way name"`` has their list.

    The order turns round in every other round, and the collector runs between the ways, not within them.
    """
    results: Dict[str, List[float]] = {}
    for name, measured in in_turn(ways, rounds, warmup).items():
        for found in measured:
            for key, seconds in found.items():
                results.setdefault(f"{name} {key}", []).append(seconds)
    return results


class Stopwatch:
    """Seconds since the last reading, each read after everything issued has run."""

    def __init__(self) -> None:
        with waiting_gently():
            synchronize()
        self._start = time.perf_counter()

    def read(self) -> float:
        """Seconds since the start or the last reading; starts again."""
        with waiting_gently():
            synchronize()
        now = time.perf_counter()
        seconds, self._start = now - self._start, now
        return seconds


def ratio(numerator: List[float], denominator: List[float]) -> float:
    """The median of the ratios of the rounds."""
    return statistics.median(one / other for one, other in zip(numerator, denominator))


def milliseconds(seconds: List[float]) -> float:
    """The median, in milliseconds."""
    return statistics.median(seconds) * 1e3
