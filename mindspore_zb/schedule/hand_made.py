"""The schedules that are made by hand, by name."""

from typing import Callable, Dict

from mindspore_zb.schedule.one_f_one_b import one_f_one_b
from mindspore_zb.schedule.programs import Schedule
from mindspore_zb.schedule.zb_h1 import zb_h1
from mindspore_zb.schedule.zb_h2 import zb_h2
from mindspore_zb.schedule.zb_v import zb_v

GENERATORS: Dict[str, Callable[[int, int, int], Schedule]] = {
    "1f1b": one_f_one_b, "zb-h1": zb_h1, "zb-h2": zb_h2, "zb-v": zb_v}
"""Each takes the number of ranks, of micro-batches, and of the parts of each W."""
