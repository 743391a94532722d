"""What holds memory, from when to when."""

from mindspore_zb.engines.pynative.native import sync as synchronize
from mindspore_zb.memory.ledger import SavedTensorLedger
from mindspore_zb.memory.recompute import RecomputeHandle, apply_recompute

__all__ = ["RecomputeHandle", "SavedTensorLedger", "apply_recompute", "synchronize"]
