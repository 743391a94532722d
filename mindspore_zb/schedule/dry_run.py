"""In which order the actions of all ranks can be run, or why they cannot."""

from collections import deque
from typing import Deque, Dict, List, Tuple

from mindspore_zb.errors import ScheduleError
from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.placement import rank_of_stage
from mindspore_zb.schedule.programs import Schedule


def possible_order(schedule: Schedule) -> List[Tuple[int, Action]]:
    """All actions with their ranks, each behind what it waits for: the actions before it on its rank and, for a
    receive, the send. Linear in the number of actions.

    Raises:
        ScheduleError: an action is of another rank's stage; a receive meets another message than its own; or some
            ranks wait for ever. The message names each of them, its action and what it waits for.
    """
    _check_places(schedule)
    ranks = schedule.ranks
    place = [0] * ranks
    mail: Dict[Tuple[int, int], Deque[Action]] = {(one, other): deque() for one in range(ranks)
                                                  for other in (one - 1, one + 1)}
    order: List[Tuple[int, Action]] = []
    todo = list(range(ranks))
    while todo:
        rank = todo.pop()
        actions = schedule.actions[rank]
        while place[rank] < len(actions):
            action = actions[place[rank]]
            if action.sends:
                peer = rank_of_stage(action.other_stage, ranks)
                _box(mail, schedule, rank, action, rank, peer).append(action)
                todo.append(peer)
            elif action.receives:
                box = _box(mail, schedule, rank, action, rank_of_stage(action.other_stage, ranks), rank)
                if not box:
                    break
                _check_message(rank, action, box.popleft())
            order.append((rank, action))
            place[rank] += 1
    if len(order) < sum(map(len, schedule.actions)):
        raise ScheduleError(_deadlock(schedule, place))
    return order


def _check_places(schedule: Schedule) -> None:
    for rank, actions in enumerate(schedule.actions):
        stages = schedule.stages_of(rank)
        for action in actions:
            if action.stage not in stages:
                raise ScheduleError(f"rank {rank} cannot run {action}: it holds only {_named(stages)}")


def _named(stages: Tuple[int, ...]) -> str:
    return f"stage{'s' if len(stages) > 1 else ''} {' and '.join(map(str, stages))}"


def _box(mail: Dict[Tuple[int, int], Deque[Action]], schedule: Schedule, rank: int, action: Action, sender: int,
         receiver: int) -> Deque[Action]:
    if not 0 <= action.other_stage < schedule.stages or (sender, receiver) not in mail:
        raise ScheduleError(f"rank {rank} cannot run {action}: there is no neighbour at its other end")
    return mail[sender, receiver]


def _check_message(rank: int, action: Action, sent: Action) -> None:
    if sent != action.counterpart:
        raise ScheduleError(f"crossing communication: rank {rank} waits in {action} for {action.counterpart}, but the "
                            f"next message from there is {sent}, and messages keep their order")


def _deadlock(schedule: Schedule, place: List[int]) -> str:
    waits = []
    for rank, actions in enumerate(schedule.actions):
        if place[rank] == len(actions):
            continue
        send = actions[place[rank]].counterpart
        peer = schedule.rank_of(send.stage)
        rest = schedule.actions[peer][place[peer]:]
        if send in rest:
            why = f"which rank {peer} runs after {rest[0]}"
        else:
            why = f"which rank {peer} does not run"
        waits.append(f"rank {rank} waits in {actions[place[rank]]} for {send}, {why}")
    return f"deadlock: {'; '.join(waits)}"
