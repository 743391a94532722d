"""ZB-H1: the memory of 1F1B, a third of its bubble."""

from mindspore_zb.schedule.communication import with_communication
from mindspore_zb.schedule.delayed_weights import delayed_weights
from mindspore_zb.schedule.programs import Schedule


def zb_h1(ranks: int, microbatches: int, weight_parts: int = 1) -> Schedule:
    """As 1F1B, but dx leaves before dw, and rank s runs dw s micro-batches late, so that it fills the end.

    A bubble of (p-1)(T_F + T_B - T_W); rank s holds (p-s) M_B + s M_W. With T_comm per message, for m a multiple of p
    from 2p on, the bubble grows by 4(p-1) T_comm, if T_W is at least 2 T_comm. If T_W is shorter it grows by
    ((p-1) m/p - p)(2 T_comm - T_W) more: only p micro-batches are in flight, and the way of one through all ranks and
    back, with the W that ends its hold on memory, takes longer than the work on p of them. No schedule with this
    memory avoids that; for two ranks ``tests/schedule/test_h1_limit.py`` looks through all of them.
    Source: arXiv 2401.10241, section 2.2.1.
    """
    return with_communication("zb-h1", microbatches, [
        delayed_weights(rank, ranks - rank - 1, rank, microbatches, weight_parts) for rank in range(ranks)])
