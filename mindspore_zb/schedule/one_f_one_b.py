"""1F1B: the schedule that others are measured by. Its backward is not split."""

from typing import List

from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.communication import with_communication
from mindspore_zb.schedule.programs import Schedule
from mindspore_zb.schedule.weight_parts import weight_actions


def one_f_one_b(ranks: int, microbatches: int, weight_parts: int = 1) -> Schedule:
    """Each rank runs ahead as many F as there are ranks after it, then one F and one backward in turn.

    dx leaves after dw, as a backward that is not split gives both at its end: a bubble of (p-1)(T_F + T_B + T_W) and
    p M_B on the first rank. Source: arXiv 2401.10241, section 2.1.
    """
    return with_communication("1f1b", microbatches, [
        _computations(rank, ranks - rank - 1, microbatches, weight_parts) for rank in range(ranks)
    ], gradients_leave_after="W")


def _computations(stage: int, ahead: int, microbatches: int, weight_parts: int) -> List[Action]:
    actions = [Action(stage, "F", microbatch) for microbatch in range(min(ahead, microbatches))]
    for microbatch in range(microbatches):
        if microbatch + ahead < microbatches:
            actions.append(Action(stage, "F", microbatch + ahead))
        actions += [Action(stage, "B", microbatch), *weight_actions(stage, microbatch, weight_parts)]
    return actions
