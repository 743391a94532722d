"""What holds memory, from when to when."""

from typing import TYPE_CHECKING

from mindspore_zb.engines.pynative.native import sync as synchronize
from mindspore_zb.lazy import lazy_names
from mindspore_zb.memory.ledger import SavedTensorLedger

if TYPE_CHECKING:
    from mindspore_zb.memory.recompute_price import RecomputePrice, recompute_price
    from mindspore_zb.memory.report import MemoryTimeline
    from mindspore_zb.memory.timeline import memory_timeline
    from mindspore_zb.memory.transformer_block import MeasuredBlock, measure_block

__all__ = ["MeasuredBlock", "MemoryTimeline", "RecomputePrice", "SavedTensorLedger", "measure_block",
           "memory_timeline", "recompute_price", "synchronize"]

_MODULES = {"MeasuredBlock": "memory.transformer_block", "MemoryTimeline": "memory.report",
            "RecomputePrice": "memory.recompute_price", "measure_block": "memory.transformer_block",
            "memory_timeline": "memory.timeline", "recompute_price": "memory.recompute_price"}

__getattr__, __dir__ = lazy_names(globals(), _MODULES)
