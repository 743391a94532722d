"""When each action of a schedule starts and ends, and what memory it takes, under given costs."""

from dataclasses import dataclass
from typing import List, Tuple

from mindspore_zb.checks import check_kind
from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.costs import Costs, StageCosts
from mindspore_zb.schedule.dry_run import possible_order
from mindspore_zb.schedule.programs import Schedule


@dataclass(frozen=True)
class TimedAction:
    """An action of a rank with its start and end. A receive lasts as long as the rank waits in it; a send no time."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """What became of a schedule under given costs; times and memory in the units of the costs.

    Attributes:
        timeline: for each rank its actions with start and end, in order; the first computation of all starts at 0.
        spans: for each rank the time from the start of its first computation to the end of its last.
        makespan: the longest of the spans.
        total_time: the time from the first start to the last end of all ranks. It is longer than the makespan where
            ranks start and end late together, as in ZB-H2, and one step follows another without a pause.
        bubble_rate: ``(makespan - work) / makespan`` with the work m(T_F + T_B + T_W) of the rank that has most of it.
        peak_memory: for each rank the most activation memory that it holds at once.
    """

    schedule: Schedule
    costs: Costs
    timeline: Tuple[Tuple[TimedAction, ...], ...]
    spans: Tuple[float, ...]
    makespan: float
    total_time: float
    bubble_rate: float
    peak_memory: Tuple[float, ...]

    def entries(self) -> List[Tuple[int, Action, float, float]]:
        """``(rank, action, start, end)`` of every action: what pictures and traces are made from."""
        return [(timed.rank, timed.action, timed.start, timed.end) for timeline in self.timeline for timed in timeline]


def simulate(schedule: Schedule, costs: Costs) -> Simulation:
    """Run a schedule under given costs, every action as soon as its rank and its message are there.

    Definitions are those of arXiv 2401.10241, sections 2 and 5.3; T_B is dx alone. Linear in the number of actions.
    Whether everything is computed once, and in a possible order on each rank, is for
    :func:`~mindspore_zb.schedule.validation.validate` to say.

    Raises:
        ArgumentTypeError: no schedule, or no costs.
        ScheduleError: the ranks wait for each other for ever, or have stages of others.
        ArgumentValueError: costs for another number of ranks.

    >>> from mindspore_zb.schedule import generate
    >>> run = simulate(generate("1f1b", stages=4, microbatches=8), Costs(f=1, b=1, w=1))
    >>> run.makespan, round(run.bubble_rate, 4), run.peak_memory
    (33.0, 0.2727, (4.0, 3.0, 2.0, 1.0))
    """
    check_kind("schedule", schedule, Schedule)
    stage_costs = check_kind("costs", costs, Costs).stage_costs(schedule.ranks, schedule.chunks)
    timeline = _times(schedule, stage_costs)
    spans, ends, starts = [], [], []
    for timed in timeline:
        busy = [entry for entry in timed if entry.action.computes]
        starts.append(busy[0].start if busy else 0.0)
        ends.append(busy[-1].end if busy else 0.0)
        spans.append(ends[-1] - starts[-1])
    makespan = max(spans)
    work = schedule.microbatches * max(stage_costs.work())
    return Simulation(
        schedule=schedule, costs=costs, timeline=timeline, spans=tuple(spans), makespan=makespan,
        total_time=max(ends) - min(starts),
        bubble_rate=max(makespan - work, 0.0) / makespan if makespan else 0.0,  # below 0 only by rounding
        peak_memory=tuple(max(memory, default=0.0) for memory in memory_by_action(schedule, stage_costs)))


def _times(schedule: Schedule, costs: StageCosts) -> Tuple[Tuple[TimedAction, ...], ...]:
    now = [0.0] * schedule.ranks
    arrivals = {}
    timeline: List[List[TimedAction]] = [[] for _ in now]
    for rank, action in possible_order(schedule):
        start = end = now[rank]
        if action.sends:
            peer = schedule.peer(action)
            arrivals[action.counterpart] = start + costs.hops[min(rank, peer)]
        elif action.receives:
            end = max(start, arrivals[action])
        else:
            end = start + duration(action, costs)
        now[rank] = end
        timeline[rank].append(TimedAction(rank, action, start, end))
    return tuple(map(tuple, timeline))


def duration(action: Action, costs: StageCosts) -> float:
    """How long a computation takes; the parts of a W have equal shares."""
    if action.kind == "F":
        return costs.f[action.stage]
    if action.kind == "B":
        return costs.b[action.stage]
    return costs.w[action.stage] / action.parts


def memory_by_action(schedule: Schedule, costs: StageCosts) -> List[List[float]]:
    """For each rank the activation memory that it holds during each of its actions.

    F makes M_B of its stage; B leaves M_W of that; W, part by part, leaves nothing. Source: arXiv 2401.10241,
    section 2.
    """
    memory = []
    for actions in schedule.actions:
        held = 0.0
        memory.append([])
        for action in actions:
            stage = action.stage
            during, after = held, held
            if action.kind == "F":
                during = after = held + costs.m_b[stage]
            elif action.kind == "B":
                after = held + costs.m_w[stage] - costs.m_b[stage]
                during = max(held, after)
            elif action.kind == "W":
                after = held - costs.m_w[stage] / action.parts
            memory[-1].append(during)
            held = after
    return memory
