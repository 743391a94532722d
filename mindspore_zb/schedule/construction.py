"""From the F and B of each rank to a whole schedule: W are put in while the times are found.

A W goes where its rank would wait, where its memory is needed, where more W wait than the shape allows, and at the
end. Source: the heuristic of arXiv 2401.10241, section 3.1, here with numbers per rank and for any order of F and B.
"""

import math
from collections import deque
from typing import Deque, Dict, List, Sequence, Tuple

from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.placement import rank_of_stage
from mindspore_zb.schedule.shapes import TOLERANCE, Orders, Shape, Task, orders_of

F, B, W = "FBW"


class Construction:
    """A schedule in the making: each rank takes its next action as soon as it is known when that can start.

    Attributes:
        orders: for each rank its computations as ``(kind, stage)``; each kind takes the micro-batches in order.
        spans: for each rank the time from its first start to its last end.
        complete: whether everything could be placed within the memory limit.
    """

    def __init__(self, task: Task, shape: Shape):
        mail = _Mail(task)
        ranks = [_Rank(task, shape, rank, order, mail) for rank, order in enumerate(orders_of(shape, task))]
        todo, queued = deque(range(len(ranks))), set(range(len(ranks)))
        while todo:
            rank = todo.popleft()
            queued.discard(rank)
            if ranks[rank].advance():
                for other in (rank + 1, rank - 1):  # it has sent them something
                    if 0 <= other < len(ranks) and other not in queued:
                        queued.add(other)
                        todo.append(other)
        self.complete = all(rank.finished for rank in ranks)
        self.orders = [rank.order for rank in ranks]
        self.spans = [rank.end - rank.start for rank in ranks]

    def measure(self) -> Tuple[float, float]:
        """What the search makes small: the longest span, then the sum of all."""
        return (max(self.spans), sum(self.spans)) if self.complete else (math.inf, math.inf)


class _Mail:
    """When the inputs and the gradients of each stage are there, micro-batch after micro-batch.

    Attributes:
        inputs, gradients: for each stage the times that are known so far.
        next_hop, before_hop: for each stage the time of a message to the next stage, and to the one before.
    """

    def __init__(self, task: Task):
        costs = task.costs
        self.stages = costs.ranks * task.chunks
        place = [rank_of_stage(stage, costs.ranks) for stage in range(self.stages)]
        hops = [0.0 if one == other else costs.hops[min(one, other)] for one, other in zip(place, place[1:])]
        self.next_hop, self.before_hop = [*hops, 0.0], [0.0, *hops]
        at_once = [0.0] * task.microbatches  # the first inputs are there; the last stage's own F makes its gradient
        self.inputs: List[List[float]] = [list(at_once), *([] for _ in range(self.stages))]
        self.gradients: List[List[float]] = [*([] for _ in range(self.stages - 1)), list(at_once), []]


class _Rank:
    """One rank: its clock, its memory, and what it has done."""

    def __init__(self, task: Task, shape: Shape, rank: int, todo: Sequence[Tuple[str, int]], mail: _Mail):
        self._costs, self._mail, self._parts, self._limit = task.costs, mail, task.weight_parts, task.limit
        self._lag = shape.lag[rank] * task.weight_parts
        self._fill = shape.fill * (1 - TOLERANCE)
        self._todo, self._place = todo, 0
        self._done: Dict[Tuple[str, int], int] = {step: 0 for step in todo}
        self._waiting: Deque[int] = deque()
        """The stages of the W, or parts of W, that wait."""
        self._held = 0.0
        self.order: List[Tuple[str, int]] = []
        self.start, self.end = math.inf, 0.0
        self.finished = False

    def advance(self) -> bool:
        """Take actions until it is not known when the next can start. Whether any was taken."""
        first = self._place
        while self._place < len(self._todo):
            step = kind, stage = self._todo[self._place]
            ready = (self._mail.inputs if kind == F else self._mail.gradients)[stage]
            done = self._done[step]
            if done >= len(ready) or not self._take(kind, stage, ready[done]):
                return self._place > first
            self._done[step] = done + 1
            self._place += 1
            self.order.append(step)
            if kind == B and len(self._waiting) > self._lag:
                self._run_weights(len(self._waiting) - self._lag)
        if self.finished:
            return False
        self._run_weights(len(self._waiting))
        self.finished = True
        return True

    def _take(self, kind: str, stage: int, ready: float) -> bool:
        """Run an F or a B, and W before it. False if there is no room for it."""
        costs, mail = self._costs, self._mail
        if self._waiting and ready > self.end:
            self._fill_gap(ready)
        growth = costs.m_b[stage] if kind == F else costs.m_w[stage] - costs.m_b[stage]
        while self._waiting and self._held + growth > self._limit:
            self._run_weights(1)
        if self._held + growth > self._limit and growth > 0:
            return False
        self._held += growth
        if ready > self.end:
            self.end = ready
        if kind == F:
            self.start = min(self.start, self.end)
            self.end += costs.f[stage]
            mail.inputs[stage + 1].append(self.end + mail.next_hop[stage])
            return True
        self.end += costs.b[stage]
        mail.gradients[stage - 1].append(self.end + mail.before_hop[stage])
        self._waiting.extend([stage] * self._parts)
        return True

    def _fill_gap(self, ready: float) -> None:
        while self._waiting:
            weight = self._costs.w[self._waiting[0]] / self._parts
            if ready <= self.end or ready - self.end < weight * self._fill:
                return
            self._run_weights(1)

    def _run_weights(self, count: int) -> None:
        costs, parts = self._costs, self._parts
        for _ in range(count):
            stage = self._waiting.popleft()
            self.end += costs.w[stage] / parts
            self._held -= costs.m_w[stage] / parts
            self.order.append((W, stage))


def computations_of(orders: Orders, weight_parts: int) -> List[List[Action]]:
    """The actions of each rank from its computations in order.

    >>> order = [("F", 0), ("B", 0), ("W", 0), ("W", 0)]
    >>> [[str(action) for action in actions] for actions in computations_of([order], 2)]
    [['0F0', '0B0', '0W0.0/2', '0W0.1/2']]
    """
    computations = []
    for order in orders:
        done: Dict[Tuple[str, int], int] = {}
        computations.append([])
        for kind, stage in order:
            number = done.get((kind, stage), 0)
            done[kind, stage] = number + 1
            if kind == W:
                computations[-1].append(Action(stage, W, *divmod(number, weight_parts), weight_parts))
            else:
                computations[-1].append(Action(stage, kind, number))
    return computations
