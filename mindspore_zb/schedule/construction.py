"""A schedule of one chunk per rank from a few numbers, timed while it is made.

Source: the heuristic of arXiv 2401.10241, section 3.1, here with the numbers per rank.
"""

import math
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.costs import StageCosts
from mindspore_zb.schedule.validation import TOLERANCE

F, B, W = "FBW"


@dataclass(frozen=True)
class Shape:
    """The numbers that make a schedule.

    Attributes:
        in_flight: for each rank how many micro-batches may be between their F and their B; no rank has more than the
            rank before, or they would wait for each other for ever.
        lag: for each rank how many W wait, at most, before the first of them is run.
        fill: a W goes into a gap that is at least this share of it.
    """

    in_flight: Tuple[int, ...]
    lag: Tuple[int, ...]
    fill: float = 1.0


@dataclass(frozen=True)
class Task:
    """What every schedule of a search has to do, in numbers."""

    costs: StageCosts
    microbatches: int
    memory_limit: Optional[float]
    weight_parts: int

    def most_in_flight(self) -> List[int]:
        """For each rank how many micro-batches may be in flight, by memory and by the ranks before."""
        most = []
        bound = self.microbatches
        for memory, after in zip(self.costs.m_b, self.costs.m_w):
            if self.memory_limit is not None and max(memory, after) > 0:
                room = self.memory_limit * (1 + TOLERANCE) - max(after - memory, 0.0)
                bound = min(bound, math.floor(room / memory) if memory else self.microbatches)
            most.append(bound)
        return most


class Construction:
    """A schedule in the making: each rank takes its next action as soon as it is known when that can start.

    Attributes:
        orders: for each rank the kinds of its computations in order; each kind takes the micro-batches in order.
        spans: for each rank the time from its first start to its last end.
    """

    def __init__(self, task: Task, shape: Shape):
        ranks = task.costs.ranks
        self._arrived: Dict[str, List[List[float]]] = {
            F: [[0.0] * task.microbatches, *([] for _ in range(ranks - 1))],
            B: [*([] for _ in range(ranks - 1)), None]}  # the last rank's own F starts its B
        limit = math.inf if task.memory_limit is None else task.memory_limit * (1 + TOLERANCE)
        self._ranks = [_Rank(task, shape, rank, limit, self._arrived) for rank in range(ranks)]
        moved = True
        while moved:
            moved = False
            for rank in self._ranks:
                moved = rank.advance() or moved
        self.complete = all(rank.finished for rank in self._ranks)
        self.orders = [rank.order for rank in self._ranks]
        self.spans = [rank.end - rank.start for rank in self._ranks]

    def measure(self) -> Tuple[float, float]:
        """What the search makes small: the longest span, then the sum of all."""
        return (max(self.spans), sum(self.spans)) if self.complete else (math.inf, math.inf)


class _Rank:
    """One rank: its clock, its memory, and what it has done."""

    def __init__(self, task: Task, shape: Shape, rank: int, limit: float, arrived: Dict[str, List[List[float]]]):
        costs = task.costs
        self._microbatches, self._parts, self._limit = task.microbatches, task.weight_parts, limit
        self._f, self._b, self._w = costs.f[rank], costs.b[rank], costs.w[rank] / task.weight_parts
        self._m_b, self._m_w = costs.m_b[rank], costs.m_w[rank]
        self._in_flight, self._lag = shape.in_flight[rank], shape.lag[rank] * task.weight_parts
        self._gap = max(self._w * shape.fill * (1 - TOLERANCE), 0.0)
        self._inputs, self._gradients = arrived[F][rank], arrived[B][rank]
        last = rank == costs.ranks - 1
        self._next, self._hop_down = (None, 0.0) if last else (arrived[F][rank + 1], costs.hops[rank])
        self._before, self._hop_up = (arrived[B][rank - 1], costs.hops[rank - 1]) if rank else (None, 0.0)
        self.order: List[str] = []
        self.start, self.end = math.inf, 0.0
        self._forwards = self._backwards = self._waiting = 0
        self.finished = False

    def advance(self) -> bool:
        """Take actions until it is not known when the next can start. Whether any was taken."""
        moved = False
        while not self.finished:
            if self._backwards == self._microbatches:
                self._run_weights(self._waiting)
                self.finished = True
            elif self._wants_forward():
                if self._forwards >= len(self._inputs):
                    return moved
                self._forward(self._inputs[self._forwards])
            elif self._forwards == self._backwards:
                return moved  # no room for a single micro-batch
            else:
                if self._gradients is not None and self._backwards >= len(self._gradients):
                    return moved
                self._backward(0.0 if self._gradients is None else self._gradients[self._backwards])
            moved = True
        return moved

    def _wants_forward(self) -> bool:
        return self._forwards < self._microbatches and self._forwards - self._backwards < self._in_flight

    def _forward(self, ready: float) -> None:
        self._fill_gap(ready)
        self._make_room(self._m_b)
        start = max(self.end, ready)
        self.start = min(self.start, start)
        self.end = start + self._f
        self._forwards += 1
        self.order.append(F)
        if self._next is not None:
            self._next.append(self.end + self._hop_down)

    def _backward(self, ready: float) -> None:
        self._fill_gap(ready)
        self._make_room(max(self._m_w - self._m_b, 0.0))
        self.end = max(self.end, ready) + self._b
        self._backwards += 1
        self.order.append(B)
        if self._before is not None:
            self._before.append(self.end + self._hop_up)
        self._waiting += self._parts
        if self._waiting > self._lag:
            self._run_weights(self._waiting - self._lag)

    def _fill_gap(self, ready: float) -> None:
        while self._waiting and ready - self.end >= self._gap and ready > self.end:
            self._run_weights(1)

    def _make_room(self, memory: float) -> None:
        held = (self._forwards - self._backwards) * self._m_b + self._waiting * self._m_w / self._parts
        while self._waiting and held + memory > self._limit:
            self._run_weights(1)
            held -= self._m_w / self._parts

    def _run_weights(self, count: int) -> None:
        self.end += count * self._w
        self._waiting -= count
        self.order += [W] * count


def computations_of(orders: List[List[str]], weight_parts: int) -> List[List[Action]]:
    """The actions of each rank from the kinds of its computations in order.

    >>> [[str(action) for action in actions] for actions in computations_of([["F", "B", "W", "W"]], 2)]
    [['0F0', '0B0', '0W0.0/2', '0W0.1/2']]
    """
    computations = []
    for rank, order in enumerate(orders):
        done = {F: 0, B: 0, W: 0}
        computations.append([])
        for kind in order:
            microbatch, part = divmod(done[kind], weight_parts if kind == W else 1)
            done[kind] += 1
            computations[-1].append(Action(rank, kind, microbatch, part, weight_parts) if kind == W
                                    else Action(rank, kind, microbatch))
    return computations
