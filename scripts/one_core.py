"""Keep a benchmark to one core and its waiting out of the way. Import this before MindSpore.

MindSpore waits by spinning. With as many kernel threads as cores, the waiting thread takes the core away from a kernel,
for a whole tick of the scheduler at a time: times then come in steps of 4 ms, and say more about who waited where than
about the work. On one core a kernel has one thread, and a waiting thread of the lowest priority costs next to nothing.
"""

import contextlib
import os
import threading
from typing import Iterator

LOWEST = 19

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@contextlib.contextmanager
def waiting_gently() -> Iterator[None]:
    """Give the calling thread the lowest priority, if it may come back from it (as root it may)."""
    thread = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread, LOWEST)
        allowed = True
    except (AttributeError, PermissionError):
        allowed = False
    try:
        yield
    finally:
        if allowed:
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, thread, 0)
