"""ZB-H2: up to twice the memory of 1F1B, no bubble if F, B and W take equal times."""

from mindspore_zb.schedule.communication import with_communication
from mindspore_zb.schedule.delayed_weights import delayed_weights
from mindspore_zb.schedule.programs import Schedule


def zb_h2(ranks: int, microbatches: int, weight_parts: int = 1) -> Schedule:
    """As ZB-H1 with twice as many F ahead, to fill the start, and dw twice as late.

    A bubble of (p-1)(T_F + T_B - 2 T_W); rank s holds (2p-2s-1) M_B + 2s M_W. With T_comm per message, for m a
    multiple of p, the bubble grows by 2(p-1) T_comm. Ranks end as much later as they start later: the next step follows
    without a pause. Source: arXiv 2401.10241, section 2.2.2.
    """
    return with_communication("zb-h2", microbatches, [
        delayed_weights(rank, 2 * (ranks - rank - 1), 2 * rank, microbatches, weight_parts) for rank in range(ranks)])
