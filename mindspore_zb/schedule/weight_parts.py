"""A W as one action, or cut into parts that can be spread over several gaps."""

from typing import Iterable, List

from mindspore_zb.schedule.actions import Action


def weight_actions(stage: int, microbatch: int, parts: int) -> List[Action]:
    """The W of a micro-batch, in ``parts`` actions.

    >>> [str(action) for action in weight_actions(2, 0, 3)]
    ['2W0.0/3', '2W0.1/3', '2W0.2/3']
    """
    return [Action(stage, "W", microbatch, part, parts) for part in range(parts)]


def all_weight_actions(stage: int, microbatches: Iterable[int], parts: int) -> List[Action]:
    """The W of several micro-batches, one after another."""
    return [action for microbatch in microbatches for action in weight_actions(stage, microbatch, parts)]
