"""What holds memory, from when to when, and how to hold less."""

from typing import TYPE_CHECKING

from mindspore_zb.engines.pynative.native import sync as synchronize
from mindspore_zb.lazy import lazy_names
from mindspore_zb.memory.ledger import SavedTensorLedger

if TYPE_CHECKING:
    from mindspore_zb.memory.guarding import Guard, guard
    from mindspore_zb.memory.leaks import Leak, LeakFinder, LeakReport
    from mindspore_zb.memory.recompute import RecomputeHandle, apply_recompute
    from mindspore_zb.memory.recompute_costs import RecomputeCost, measure_recompute
    from mindspore_zb.memory.recompute_price import RecomputePrice, recompute_price
    from mindspore_zb.memory.report import MemoryTimeline
    from mindspore_zb.memory.timeline import memory_timeline
    from mindspore_zb.memory.transformer_block import MeasuredBlock, measure_block

__all__ = ["Guard", "Leak", "LeakFinder", "LeakReport", "MeasuredBlock", "MemoryTimeline", "RecomputeCost",
           "RecomputeHandle", "RecomputePrice", "SavedTensorLedger", "apply_recompute", "guard", "measure_block",
           "measure_recompute", "memory_timeline", "recompute_price", "synchronize"]

_MODULES = {"Guard": "memory.guarding", "Leak": "memory.leaks", "LeakFinder": "memory.leaks",
            "LeakReport": "memory.leaks", "MeasuredBlock": "memory.transformer_block",
            "MemoryTimeline": "memory.report", "RecomputeCost": "memory.recompute_costs",
            "RecomputeHandle": "memory.recompute", "RecomputePrice": "memory.recompute_price",
            "apply_recompute": "memory.recompute", "guard": "memory.guarding",
            "measure_block": "memory.transformer_block", "measure_recompute": "memory.recompute_costs",
            "memory_timeline": "memory.timeline", "recompute_price": "memory.recompute_price"}

__getattr__, __dir__ = lazy_names(globals(), _MODULES)
