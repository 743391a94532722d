"""Bytes in use as MindSpore's allocator reports them: the only module that asks the device.

Written for devices whose allocator reports what it does; where it reports nothing, there is no meter, and bytes are
counted from the tensors themselves.
"""

from dataclasses import dataclass
from typing import Any, Optional

import mindspore as ms

from mindspore_zb.engines.pynative.native import sync
from mindspore_zb.tensors import ones

_NEEDED = ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats")


@dataclass(frozen=True)
class DeviceBytes:
    """What the allocator reports.

    Attributes:
        allocated: bytes in use now: everything, weights included.
        peak: the most since the last :meth:`DeviceMeter.start`.
    """

    allocated: int
    peak: int


class DeviceMeter:
    """Reads the allocator; made by :func:`device_meter`."""

    def __init__(self, runtime: Any):
        self._runtime = runtime

    def start(self) -> None:
        """Count the peak from here on."""
        sync()
        self._runtime.reset_peak_memory_stats()

    def read(self) -> DeviceBytes:
        """What is in use once everything has been issued: the allocator gives and takes when operations are issued."""
        sync()
        return DeviceBytes(self._runtime.memory_allocated(), self._runtime.max_memory_allocated())


def device_meter() -> Optional[DeviceMeter]:
    """A meter; None where MindSpore's allocator reports nothing even while a tensor is alive.

    >>> meter = device_meter()
    >>> meter is None or meter.read().allocated > 0
    True
    """
    runtime = getattr(ms, "runtime", None)
    if not all(hasattr(runtime, name) for name in _NEEDED):
        return None
    probe = ones((1024,), ms.float32)
    meter = DeviceMeter(runtime)
    return meter if meter.read().allocated >= probe.nbytes else None
