"""What a search tries: the numbers that make a schedule, and what it has to do in all of them."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Iterator, List, Optional, Sequence, Tuple

from mindspore_zb.schedule.costs import StageCosts
from mindspore_zb.schedule.zb_v import zb_v

TOLERANCE = 1e-9
"""Relative: sums of floats may miss a limit by rounding alone."""
FILLS = (1.0, 0.5, 0.0)
FLIGHT_SCALES = (1.0, 0.5, 0.75, 0.25, 0.9, 1.1, 1.25)
LAG_SCALES = (1.0, 0.5, 0.75, 0.25, 0.0, 1.5, 2.0)

Orders = Sequence[Sequence[Tuple[str, int]]]
"""For each rank its F and B in order, as ``(kind, stage)``; each kind of a stage takes the micro-batches in order."""


@dataclass(frozen=True)
class Task:
    """What every schedule of a search has to do.

    Attributes:
        chunks: how many stages each rank has.
        costs: of these stages.
    """

    chunks: int
    costs: StageCosts
    microbatches: int
    memory_limit: Optional[float]
    weight_parts: int

    @property
    def limit(self) -> float:
        """The memory limit with room for rounding."""
        return math.inf if self.memory_limit is None else self.memory_limit * (1 + TOLERANCE)

    def most_in_flight(self) -> List[int]:
        """For ranks of one stage: how many micro-batches may be in flight, by memory and by the ranks before."""
        most = []
        bound = self.microbatches
        for before, after in zip(self.costs.m_b, self.costs.m_w):
            room = self.limit - max(after - before, 0.0)
            if before > 0 and room < before * bound:
                bound = math.floor(room / before)
            most.append(bound if room >= 0 else 0)
        return most


@dataclass(frozen=True)
class Shape:
    """The numbers that make a schedule.

    Attributes:
        chunks: how many stages each rank has. Two have the F and B of ZB-V.
        in_flight: with one stage, for each rank how many micro-batches may be between their F and their B; no rank has
            more than the rank before, or they would wait for each other for ever.
        lag: for each rank how many W wait, at most, before the first of them is run.
        fill: a W goes into a gap that is at least this share of it.
    """

    chunks: int
    in_flight: Tuple[int, ...]
    lag: Tuple[int, ...]
    fill: float = 1.0


def orders_of(shape: Shape, task: Task) -> Orders:
    """The F and B of each rank."""
    if shape.chunks == 2:
        return _orders_of_v(task.costs.ranks, task.microbatches)
    return [_alternating(rank, ahead, task.microbatches) for rank, ahead in enumerate(shape.in_flight)]


@lru_cache(maxsize=4)
def _orders_of_v(ranks: int, microbatches: int) -> Orders:
    schedule = zb_v(ranks, microbatches)
    return tuple(tuple((action.kind, action.stage) for action in schedule.computations(rank) if action.kind != "W")
                 for rank in range(ranks))


def _alternating(stage: int, ahead: int, microbatches: int) -> List[Tuple[str, int]]:
    """``ahead`` F, then B and F in turn, then the remaining B.

    >>> "".join(kind for kind, _ in _alternating(0, 2, 4))
    'FFBFBFBB'
    """
    forward, backward = ("F", stage), ("B", stage)
    return [forward] * ahead + [backward, forward] * (microbatches - ahead) + [backward] * ahead


def first_shapes(task: Task) -> Iterator[Shape]:
    """Shapes by the ways of the messages: so many F before the first B that they fill the time until it comes, and so
    many W left over that they fill the end; and shares of both, and as much of both as memory allows.
    """
    costs, ranks = task.costs, task.costs.ranks
    rounds = [costs.f[stage] + costs.b[stage] for stage in range(ranks)]
    hops = [0.0, *(2 * hop for hop in costs.hops)]
    before = [sum(rounds[:rank]) + sum(hops[:rank + 1]) for rank in range(ranks)]
    after = [sum(rounds[rank + 1:]) + sum(hops[rank + 1:]) for rank in range(ranks)]
    pace = max(costs.f[:ranks])
    every = (task.microbatches * task.chunks,) * ranks
    for fill in FILLS:
        yield bounded(Shape(task.chunks, every, every, fill), task)
    for fill in FILLS:
        for flight in FLIGHT_SCALES if task.chunks == 1 else (1.0,):
            for lag in LAG_SCALES:
                yield bounded(Shape(
                    task.chunks, tuple(1 + _ratio(flight * time, pace) for time in after),
                    tuple(_ratio(lag * time, weight) for time, weight in zip(before, costs.w)), fill), task)


def _ratio(time: float, unit: float) -> int:
    return round(min(time / unit, 1e6)) if unit > 0 else 0


def bounded(shape: Shape, task: Task) -> Shape:
    """The shape within memory, the number of micro-batches, and without a rank that has more in flight than before.

    It does not matter any more what is in flight where the shape has the F and B of ZB-V.
    """
    in_flight: List[int] = []
    if shape.chunks == 1:
        for wanted, most in zip(shape.in_flight, task.most_in_flight()):
            in_flight.append(min(max(wanted, 1), most, *in_flight[-1:]))
    most_waiting = task.microbatches * task.chunks
    return replace(shape, in_flight=tuple(in_flight), lag=tuple(min(max(lag, 0), most_waiting) for lag in shape.lag))


def neighbours(shape: Shape, task: Task) -> Iterator[Shape]:
    """Shapes that differ in one number on one rank, or on all ranks up to it or from it on."""
    ranks = task.costs.ranks
    for step in (1, -1, 2, -2, 4, -4):
        for rank in range(ranks):
            for places in ([rank], range(rank), range(rank, ranks)):
                yield bounded(replace(shape, lag=_moved(shape.lag, places, step)), task)
                yield bounded(replace(shape, in_flight=_moved(shape.in_flight, places, step)), task)
    for fill in FILLS:
        yield replace(shape, fill=fill)


def _moved(numbers: Sequence[int], places: Sequence[int], step: int) -> Tuple[int, ...]:
    return tuple(number + step if place in places else number for place, number in enumerate(numbers))
