"""Whether a schedule can be run and computes everything once."""

from collections import defaultdict
from typing import DefaultDict, Iterator, List, Optional, Sequence, Tuple

from mindspore_zb.checks import check_kind, check_number
from mindspore_zb.counted import counted
from mindspore_zb.errors import ScheduleError
from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.communication import message_of
from mindspore_zb.schedule.costs import Costs
from mindspore_zb.schedule.dry_run import possible_order
from mindspore_zb.schedule.programs import Schedule
from mindspore_zb.schedule.simulation import memory_by_action

TOLERANCE = 1e-9
"""Relative; sums of floats may exceed a limit by rounding alone."""


def validate(schedule: Schedule, costs: Optional[Costs] = None, memory_limit: Optional[float] = None) -> None:
    """Raise :class:`ScheduleError` unless a schedule can be run and computes everything once.

    Checked, in this order:

    * every stage runs F, B and W of every micro-batch once, on its own rank; a W may be cut into parts;
    * every message between ranks is sent once and received once, and nothing else is;
    * every action comes after what it needs on its own rank;
    * messages are received in the order in which they are sent, and no ranks wait for each other for ever;
    * with ``memory_limit``: no rank holds more than that, under ``costs`` (default: those of :class:`Costs`).

    The message names the rank, the action, and what it waits for. Linear in the number of actions.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument cannot be used.
        ScheduleError: one of the above is not so.

    >>> from dataclasses import replace
    >>> from mindspore_zb.schedule import generate
    >>> schedule = generate("zb-h1", stages=2, microbatches=2)
    >>> validate(schedule)
    >>> validate(replace(schedule, actions=(schedule.actions[0], schedule.actions[1][:-1])))
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.ScheduleError: rank 1 never runs 1W1
    """
    _check_arguments(schedule, costs, memory_limit)
    for rank, actions in enumerate(schedule.actions):
        _check_once(schedule, rank, actions)
        _check_needs(schedule, rank, actions)
    possible_order(schedule)
    if memory_limit is not None:
        _check_memory(schedule, costs or Costs(), memory_limit)


def _check_arguments(schedule: Schedule, costs: Optional[Costs], memory_limit: Optional[float]) -> None:
    check_kind("schedule", schedule, Schedule)
    if costs is not None:
        check_kind("costs", costs, Costs, "a Costs or None")
    if memory_limit is not None:
        check_number("memory_limit", memory_limit, hint=", or None for no limit")


def fits(memory: float, limit: Optional[float]) -> bool:
    """Whether memory stays within a limit, but for rounding.

    >>> fits(0.1 + 0.2, 0.3), fits(0.31, 0.3), fits(1e9, None)
    (True, False, True)
    """
    return limit is None or memory <= limit + TOLERANCE * abs(limit)


def _check_once(schedule: Schedule, rank: int, actions: Sequence[Action]) -> None:
    """The rank runs what it must, each action once, and nothing else."""
    kinds = {stage: _kinds(schedule, stage) for stage in schedule.stages_of(rank)}
    seen = set()
    run: DefaultDict[Tuple[int, str, int], List[Action]] = defaultdict(list)
    for action in actions:
        key = action.stage, action.kind, action.microbatch, action.part
        if action.kind not in kinds.get(action.stage, ()) or action.microbatch >= schedule.microbatches:
            raise ScheduleError(f"rank {rank} runs {action}, {_why_unexpected(schedule, rank, action)}")
        if key in seen:
            raise ScheduleError(f"rank {rank} runs {action} twice")
        seen.add(key)
        run[key[:3]].append(action)
    for stage, kind, microbatch in _expected(schedule, rank):
        found = run.get((stage, kind, microbatch))
        if not found:  # at the latest when there are no more actions, however many are expected
            raise ScheduleError(f"rank {rank} never runs {Action(stage, kind, microbatch)}")
        parts = found[0].parts
        for action in found:
            if action.parts != parts:
                raise ScheduleError(f"rank {rank} runs both {found[0]} and {action}, which are parts of different cuts")
        for part in range(parts):
            if (stage, kind, microbatch, part) not in seen:
                raise ScheduleError(f"rank {rank} never runs {Action(stage, kind, microbatch, part, parts)}")


def _kinds(schedule: Schedule, stage: int) -> List[str]:
    """What a stage does with each micro-batch."""
    kinds = []
    for kind in ("F", "B", "W"):
        kinds.append(kind)
        for verb in ("RECV", "SEND"):
            kinds += [message.kind for message in message_of(Action(stage, kind, 0), schedule.ranks, schedule.stages,
                                                             verb)]
    return kinds


def _expected(schedule: Schedule, rank: int) -> Iterator[Tuple[int, str, int]]:
    for stage in schedule.stages_of(rank):
        kinds = _kinds(schedule, stage)
        for microbatch in range(schedule.microbatches):
            for kind in kinds:
                yield stage, kind, microbatch


def _why_unexpected(schedule: Schedule, rank: int, action: Action) -> str:
    if action.stage >= schedule.stages:
        return f"but there {_only(schedule.stages, 'stage')}"
    if action.microbatch >= schedule.microbatches:
        return f"but there {_only(schedule.microbatches, 'micro-batch')}"
    if schedule.rank_of(action.stage) != rank:
        return f"which belongs on rank {schedule.rank_of(action.stage)}"
    return "but there is no other rank at its other end"


def _only(number: int, thing: str) -> str:
    return f"{'is' if number == 1 else 'are'} only {counted(number, thing)}"


def _needs(schedule: Schedule, action: Action) -> List[Tuple[int, str, int]]:
    """What an action needs on its own rank, as ``(stage, kind, micro-batch)``."""
    stage, microbatch = action.stage, action.microbatch
    if action.receives:
        return []
    if action.sends:
        return [(stage, action.kind[-1], microbatch)]
    if action.kind == "W":
        return [(stage, "B", microbatch)]
    needs = [(stage, "F", microbatch)] if action.kind == "B" else []
    before = stage - 1 if action.kind == "F" else stage + 1
    messages = message_of(action, schedule.ranks, schedule.stages, "RECV")
    if messages:
        needs.append((stage, messages[0].kind, microbatch))
    elif 0 <= before < schedule.stages:
        needs.append((before, action.kind, microbatch))
    return needs


def _check_needs(schedule: Schedule, rank: int, actions: Sequence[Action]) -> None:
    done = set()
    for action in actions:
        for need in _needs(schedule, action):
            if need not in done:
                raise ScheduleError(f"rank {rank} runs {action} too early: it waits for {Action(*need)}, which comes "
                                    "after it")
        done.add((action.stage, action.kind, action.microbatch))


def _check_memory(schedule: Schedule, costs: Costs, limit: float) -> None:
    memory = memory_by_action(schedule, costs.stage_costs(schedule.ranks, schedule.chunks))
    for rank, actions in enumerate(schedule.actions):
        for action, held in zip(actions, memory[rank]):
            if not fits(held, limit):
                raise ScheduleError(f"rank {rank} holds {held:g} at {action}, more than the memory limit {limit:g}")
