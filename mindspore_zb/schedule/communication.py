"""Sends and receives between the computations, so that no rank waits for ever.

A send stands right behind what makes its message. A receive stands right before what needs its message; where the
sender sent others before it to the same rank, they are received before it, as messages keep their order. A receive
thus waits only for what was sent before the message that is needed anyway, and adds neither a deadlock nor a delay.
"""

from collections import deque
from typing import Deque, Dict, List, Sequence, Tuple

from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.placement import rank_of_stage
from mindspore_zb.schedule.programs import Schedule


def with_communication(name: str, microbatches: int, computations: Sequence[Sequence[Action]], chunks: int = 1,
                       gradients_leave_after: str = "B") -> Schedule:
    """A schedule of the given computations of each rank, with the sends and receives they need.

    Args:
        gradients_leave_after: "B", or "W" for a backward that is not split and so gives dx and dw together.
    """
    ranks = len(computations)
    programs = [_with_sends(actions, ranks, ranks * chunks, gradients_leave_after) for actions in computations]
    queues: Dict[Tuple[int, int], Deque[Action]] = {}
    for rank, actions in enumerate(programs):
        for action in actions:
            if action.sends:
                pair = rank, rank_of_stage(action.other_stage, ranks)
                queues.setdefault(pair, deque()).append(action.counterpart)
    programs = [_with_receives(rank, actions, ranks, ranks * chunks, queues) for rank, actions in enumerate(programs)]
    return Schedule(name, microbatches, tuple(map(tuple, programs)), chunks)


def message_of(action: Action, ranks: int, stages: int, verb: str) -> Tuple[Action, ...]:
    """The send (or receive, by ``verb``) that a computation makes (or needs), if there is one: none to the same rank.

    >>> message_of(Action(1, "F", 0), 3, 3, "SEND"), message_of(Action(0, "F", 0), 3, 3, "RECV")
    ((Action(stage=1, kind='SEND_F', microbatch=0, part=0, parts=1),), ())
    """
    if action.kind == "W":
        return ()
    message = Action(action.stage, f"{verb}_{action.kind}", action.microbatch)
    other = message.other_stage
    if not 0 <= other < stages or rank_of_stage(other, ranks) == rank_of_stage(action.stage, ranks):
        return ()
    return (message,)


def _with_sends(actions: Sequence[Action], ranks: int, stages: int, gradients_leave_after: str) -> List[Action]:
    program = []
    for action in actions:
        program.append(action)
        if action.kind == "F" or action.kind == gradients_leave_after == "B":
            program += message_of(action, ranks, stages, "SEND")
        elif action.kind == gradients_leave_after == "W" and action.part == action.parts - 1:
            program += message_of(Action(action.stage, "B", action.microbatch), ranks, stages, "SEND")
    return program


def _with_receives(rank: int, actions: Sequence[Action], ranks: int, stages: int,
                   queues: Dict[Tuple[int, int], Deque[Action]]) -> List[Action]:
    received = set()
    program = []
    for action in actions:
        for needed in message_of(action, ranks, stages, "RECV") if action.computes else ():
            queue = queues.get((rank_of_stage(needed.other_stage, ranks), rank), deque())
            while needed not in received and queue:
                program.append(queue.popleft())
                received.add(program[-1])
        program.append(action)
    return program
