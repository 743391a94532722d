"""Runs in turn, so that whatever else the machine does falls on all of them alike."""

import gc
from typing import Callable, Dict, List, Mapping, TypeVar

Measured = TypeVar("Measured")


def in_turn(ways: Mapping[str, Callable[[], Measured]], rounds: int, warmup: int) -> Dict[str, List[Measured]]:
    """What each way returned in each round.

    The order turns round in every other round, and the collector runs between the ways, not within them.

    Args:
        ways: what to run, by name.
        rounds: how often.
        warmup: how many rounds run before those, whose results are dropped.

    >>> calls = []
    >>> in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2, warmup=1)
    {'a': [None, None], 'b': [None, None]}
    >>> "".join(calls)
    'baabba'
    """
    found: Dict[str, List[Measured]] = {name: [] for name in ways}
    enabled = gc.isenabled()
    for number in range(warmup + rounds):
        for name in ways if number % 2 else reversed(list(ways)):
            gc.collect()
            gc.disable()
            try:
                measured = ways[name]()
            finally:
                if enabled:
                    gc.enable()
            if number >= warmup:
                found[name].append(measured)
    return found
