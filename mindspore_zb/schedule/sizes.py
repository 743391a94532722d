"""How large schedules may be: nothing here runs for long without a word."""

from mindspore_zb.counted import counted
from mindspore_zb.errors import ArgumentValueError

MOST_COMPUTATIONS = 500_000
"""The most F, B and W of a schedule that is made here: it takes seconds."""
MOST_SEARCHED = 60_000
"""The most of them in each of the schedules that a search tries: that may take a while."""


def computations(stages: int, microbatches: int, chunks: int, weight_parts: int) -> int:
    """How many F, B and W a schedule has.

    >>> computations(4, 8, 1, 1)
    96
    """
    return stages * microbatches * chunks * (2 + weight_parts)


def check_size(stages: int, microbatches: int, chunks: int, weight_parts: int, *, searched: bool = False,
               advice: str = "take fewer of one of them") -> None:
    """Raise ArgumentValueError if a schedule, or a search among such, is too large.

    >>> check_size(1000, 1000, 1, 1)
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.ArgumentValueError: 1000 ranks and 1000 micro-batches make a schedule of 3000000 computations, \
but 500000 are the most that is made: take fewer of one of them
    """
    number, most = computations(stages, microbatches, chunks, weight_parts), MOST_COMPUTATIONS
    what = "made"
    if searched and number > MOST_SEARCHED:
        most, what = MOST_SEARCHED, "searched among"
    if number > most:
        sizes = [counted(stages, "rank"), counted(microbatches, "micro-batch")]
        sizes += [counted(chunks, "chunk")] * (chunks > 1) + [f"W in {weight_parts} parts"] * (weight_parts > 1)
        raise ArgumentValueError(f"{', '.join(sizes[:-1])} and {sizes[-1]} make a schedule of {number} computations, "
                                 f"but {most} are the most that is {what}: {advice}")
