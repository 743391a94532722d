"""The best schedule that a memory limit allows, under given costs."""

import math
from dataclasses import replace
from typing import Callable, Dict, List, Optional, Tuple

from mindspore_zb.checks import check_count, check_kind, check_number, kind_of
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, ScheduleError
from mindspore_zb.schedule.communication import with_communication
from mindspore_zb.schedule.construction import Construction, computations_of
from mindspore_zb.schedule.costs import Costs
from mindspore_zb.schedule.hand_made import GENERATORS
from mindspore_zb.schedule.one_by_one import one_by_one
from mindspore_zb.schedule.placement import stages_of_rank
from mindspore_zb.schedule.programs import Schedule
from mindspore_zb.schedule.shapes import TOLERANCE, Shape, Task, first_shapes, neighbours
from mindspore_zb.schedule.simulation import Simulation, simulate
from mindspore_zb.schedule.sizes import check_size, computations
from mindspore_zb.schedule.validation import fits

WORK = 2_000_000
"""How many computations a search places, about; the bound on its time. A clock would make ranks disagree."""
LEAST_TRIED = 200
"""But at least so many schedules."""
STARTS = 3
"""From how many of the first shapes the search goes on."""
REPORT_EVERY = 20

Progress = Callable[[int, int, float], None]


def search(costs: Costs, stages: int, microbatches: int, memory_limit: Optional[float] = None, *, chunks: int = 2,
           weight_parts: int = 1, progress: Optional[Progress] = None) -> Schedule:
    """The best schedule found for given costs: never worse than the best one of the catalogue that fits the limit.

    Args:
        costs: times and memory; ``memory_limit`` is in the same unit as their ``m_b``.
        stages: p, the number of ranks.
        microbatches: m.
        memory_limit: the most activation memory of a rank; None for no limit.
        chunks: the most stages that a rank may hold: 2 admits ZB-V beside schedules of one stage per rank.
        weight_parts: in how many parts each W is cut, so that they fit into smaller gaps.
        progress: called with ``(computations placed, at most, lowest bubble rate so far)`` now and then and at the
            end.

    Returns:
        The schedule, named "auto" and what it was made from. The same arguments give the same schedule.

    Raises:
        ScheduleError: nothing fits the limit.
        ArgumentTypeError, ArgumentValueError: an argument cannot be used, or the schedules would have more computations
            than :mod:`~mindspore_zb.schedule.sizes` allows: it would take minutes.

    Source: the heuristic of arXiv 2401.10241, section 3.1, followed by local improvement.

    >>> costs = Costs(f=2, b=2, w=1, m_b=1, m_w=0.5)
    >>> simulate(search(costs, stages=4, microbatches=12, memory_limit=8), costs).bubble_rate < 0.05
    True
    """
    _check_arguments(costs, stages, microbatches, memory_limit, chunks, weight_parts, progress)
    ready = _best_by_hand(costs, stages, microbatches, memory_limit, chunks, weight_parts)
    tasks = {number: Task(number, costs.stage_costs(stages, number), microbatches, memory_limit, weight_parts)
             for number in range(1, chunks + 1)}
    walk = _Walk(tasks, ready, progress)
    walk.explore()
    if ready is not None and (walk.best is None or ready.makespan <= walk.best[0][0]):
        return replace(ready.schedule, name=f"auto: {ready.schedule.name}")
    if walk.best is None:
        raise ScheduleError(_nothing_fits(list(tasks.values())))
    shape = walk.best[1]
    orders = Construction(tasks[shape.chunks], shape).orders
    return with_communication("auto", microbatches, computations_of(orders, weight_parts), shape.chunks)


def _check_arguments(costs: Costs, stages: int, microbatches: int, memory_limit: Optional[float], chunks: int,
                     weight_parts: int, progress: Optional[Progress]) -> None:
    check_kind("costs", costs, Costs)
    for name, value in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks),
                        ("weight_parts", weight_parts)):
        check_count(name, value)
    if chunks > 2:
        raise ArgumentValueError(f"chunks is 1 or 2, not {chunks}: no schedule here has more stages per rank")
    if memory_limit is not None:
        check_number("memory_limit", memory_limit, positive=True, hint=", or None for no limit")
    if progress is not None and not callable(progress):
        raise ArgumentTypeError(f"progress is a function, or None for none, not {kind_of(progress)}")
    check_size(stages, microbatches, chunks, weight_parts, searched=True,
               advice="take fewer of one of them, or a schedule by hand such as generate('zb-h2', ...)")


def _best_by_hand(costs: Costs, stages: int, microbatches: int, limit: Optional[float], chunks: int,
                  weight_parts: int) -> Optional[Simulation]:
    """Of the catalogue; if none of it fits and ranks may have two stages, one that needs the least memory."""
    best = None
    for make in GENERATORS.values():
        schedule = make(stages, microbatches, weight_parts)
        if schedule.chunks <= chunks:
            run = simulate(schedule, costs)
            if fits(max(run.peak_memory), limit) and (best is None or run.makespan < best.makespan):
                best = run
    if best is None and chunks == 2:
        run = simulate(one_by_one(stages, microbatches, weight_parts), costs)
        if fits(max(run.peak_memory), limit):
            best = run
    return best


def _nothing_fits(tasks: List[Task]) -> str:
    limit, (need, rank) = tasks[0].memory_limit, min(map(_least_memory, tasks), key=lambda least: least[0])
    return f"no schedule fits a memory limit of {limit:g}: one micro-batch alone takes {need:g} on rank {rank}"


def _least_memory(task: Task) -> Tuple[float, int]:
    """What any schedule takes, and on which rank: one micro-batch at its largest, if each W stands behind its B."""
    need = []
    for rank in range(task.costs.ranks):
        held, most = 0.0, 0.0
        for stage in stages_of_rank(rank, task.costs.ranks, task.chunks):
            most = max(most, held + task.costs.m_b[stage], held + task.costs.m_w[stage])
            held += task.costs.m_b[stage]
        need.append(most)
    return max(need), need.index(max(need))


class _Walk:
    """From shape to better shape, within a bounded amount of work; a shape is tried once."""

    def __init__(self, tasks: Dict[int, Task], ready: Optional[Simulation], progress: Optional[Progress]):
        self._tasks = tasks
        self._progress = progress
        self._measures: Dict[Shape, Tuple[float, float]] = {}
        self._sizes = {chunks: computations(task.costs.ranks, task.microbatches, chunks, task.weight_parts)
                       for chunks, task in tasks.items()}
        self._placed, self._most = 0, max(WORK, LEAST_TRIED * max(self._sizes.values()))
        self._lowest_possible = max(task.microbatches * max(task.costs.work()) for task in tasks.values())
        self._lowest = math.inf if ready is None else ready.makespan
        self.best: Optional[Tuple[Tuple[float, float], Shape]] = None

    def explore(self) -> None:
        """Try the first shapes, then the neighbours of the best of them until none is better or the work is done."""
        for task in self._tasks.values():
            if task.chunks > 1 or min(task.most_in_flight()) >= 1:
                for shape in first_shapes(task):
                    self._measure(shape)
        starts = sorted(self._measures, key=self._measures.__getitem__)[:STARTS]  # stable: the first of equals
        for shape in starts:
            self._descend(shape)
        self._report()

    def _descend(self, shape: Shape) -> None:
        task = self._tasks[shape.chunks]
        better: List[Shape] = [shape]
        while better:
            shape = better.pop()
            reached = self._measures[shape]
            for other in neighbours(shape, task):
                if self._placed >= self._most or self._lowest <= self._lowest_possible * (1 + TOLERANCE):
                    return
                self._placed += task.costs.ranks  # with very many ranks, to make a shape is work as well
                if self._measure(other) < reached:
                    better.append(other)
                    break

    def _measure(self, shape: Shape) -> Tuple[float, float]:
        if shape not in self._measures:
            construction = Construction(self._tasks[shape.chunks], shape)
            measure = construction.measure()
            self._measures[shape] = measure
            self._placed += self._sizes[shape.chunks]
            if construction.complete and (self.best is None or measure < self.best[0]):
                self.best = measure, shape
                self._lowest = min(self._lowest, measure[0])
            if len(self._measures) % REPORT_EVERY == 0:
                self._report()
        return self._measures[shape]

    def _report(self) -> None:
        if self._progress is not None and math.isfinite(self._lowest):
            idle = max(self._lowest - self._lowest_possible, 0.0)
            rate = idle / self._lowest if self._lowest else 0.0
            self._progress(min(self._placed, self._most), self._most, rate)
