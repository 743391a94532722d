"""The schedules that are made by hand, by name."""

from typing import Any, Callable, Dict

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.schedule.one_f_one_b import one_f_one_b
from mindspore_zb.schedule.programs import Schedule
from mindspore_zb.schedule.zb_h1 import zb_h1
from mindspore_zb.schedule.zb_h2 import zb_h2
from mindspore_zb.schedule.zb_v import zb_v

GENERATORS: Dict[str, Callable[[int, int, int], Schedule]] = {
    "1f1b": one_f_one_b, "zb-h1": zb_h1, "zb-h2": zb_h2, "zb-v": zb_v}
"""Each takes the number of ranks, of micro-batches, and of the parts of each W."""


def check_count(name: str, value: Any) -> None:
    """Raise unless ``value`` is an integer from 1.

    >>> check_count("stages", 0)
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.ArgumentValueError: stages is at least 1, not 0
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(f"{name} is an integer, not {type(value).__name__}")
    if value < 1:
        raise ArgumentValueError(f"{name} is at least 1, not {value}")
