"""Wait for MindSpore without taking the core away from what is waited for: it waits by spinning."""

import contextlib
import os
import threading
from typing import Iterator

LOWEST = 19


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
