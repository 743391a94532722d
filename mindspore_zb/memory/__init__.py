"""What holds memory, from when to when."""

from mindspore_zb.engines.pynative.native import sync as synchronize
from mindspore_zb.memory.ledger import SavedTensorLedger
from mindspore_zb.memory.recompute import RecomputeHandle, apply_recompute
from mindspore_zb.memory.recompute_costs import RecomputeCost, measure_recompute

__all__ = ["RecomputeCost", "RecomputeHandle", "SavedTensorLedger", "apply_recompute", "measure_recompute",
           "synchronize"]
