"""Two stages per rank, and one micro-batch after the other: slow, with the least memory that there can be."""

from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.communication import with_communication
from mindspore_zb.schedule.placement import stages_of_rank
from mindspore_zb.schedule.programs import Schedule
from mindspore_zb.schedule.weight_parts import weight_actions


def one_by_one(ranks: int, microbatches: int, weight_parts: int = 1) -> Schedule:
    """The stages of ZB-V; each W stands right behind its B, so that a rank holds what one W needs at a time.

    >>> print(one_by_one(1, 1))
    one-by-one: 1 rank, 1 micro-batch, 2 chunks
    rank 0: 0F0 1F0 1B0 1W0 0B0 0W0
    """
    computations = []
    for rank in range(ranks):
        down, up = stages_of_rank(rank, ranks, 2)
        computations.append([])
        for number in range(microbatches):
            computations[-1] += [Action(down, "F", number), Action(up, "F", number)]
            for stage in (up, down):
                computations[-1] += [Action(stage, "B", number), *weight_actions(stage, number, weight_parts)]
    return with_communication("one-by-one", microbatches, computations, chunks=2)
