"""ZB-H1: the memory of 1F1B, a third of its bubble."""

from mindspore_zb.schedule.communication import with_communication
from mindspore_zb.schedule.delayed_weights import delayed_weights
from mindspore_zb.schedule.programs import Schedule


def zb_h1(ranks: int, microbatches: int, weight_parts: int = 1) -> Schedule:
    """As 1F1B, but dx leaves before dw, and rank s runs dw s micro-batches late, so that it fills the end.

    A bubble of (p-1)(T_F + T_B - T_W); rank s holds (p-s) M_B + s M_W. With T_comm per message, for m a multiple of p,
    the bubble grows by 4(p-1) T_comm, if T_W is at least 2 T_comm: the way to the next rank and back fits behind a W
    only, as no more micro-batches are in flight. Source: arXiv 2401.10241, section 2.2.1.
    """
    return with_communication("zb-h1", microbatches, [
        delayed_weights(rank, ranks - rank - 1, rank, microbatches, weight_parts) for rank in range(ranks)])
