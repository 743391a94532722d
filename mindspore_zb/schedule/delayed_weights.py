"""What ZB-H1 and ZB-H2 have in common: more or fewer F ahead, and W that lag behind B."""

from typing import List

from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.weight_parts import all_weight_actions


def delayed_weights(stage: int, ahead: int, lag: int, microbatches: int, weight_parts: int) -> List[Action]:
    """The computations of one stage: ``ahead`` F to begin with, then for each micro-batch an F, the B, and the W of
    ``lag`` micro-batches before; the remaining W at the end.

    >>> " ".join(map(str, delayed_weights(1, 1, 1, 3, 1)))
    '1F0 1F1 1B0 1F2 1B1 1W0 1B2 1W1 1W2'
    """
    actions = [Action(stage, "F", microbatch) for microbatch in range(min(ahead, microbatches))]
    for microbatch in range(microbatches):
        if microbatch + ahead < microbatches:
            actions.append(Action(stage, "F", microbatch + ahead))
        actions.append(Action(stage, "B", microbatch))
        if microbatch >= lag:
            actions += all_weight_actions(stage, [microbatch - lag], weight_parts)
    return actions + all_weight_actions(stage, range(max(microbatches - lag, 0), microbatches), weight_parts)
