"""What holds memory, from when to when."""

from mindspore_zb.engines.pynative.native import sync as synchronize
from mindspore_zb.memory.guard import Guard, guard
from mindspore_zb.memory.leaks import Leak, LeakFinder, LeakReport
from mindspore_zb.memory.ledger import SavedTensorLedger

__all__ = ["Guard", "Leak", "LeakFinder", "LeakReport", "SavedTensorLedger", "guard", "synchronize"]
