"""The one lock of all engines."""

import threading
from typing import Any

SERIAL: Any = threading.RLock()
"""Held by every forward and backward. The grad flag of MindSpore 2.9 is one for the process; in 2.10 it is not, but
what a forward records beside another thread's forward or backward is lost at times, and the gradients wrong. Two
compiled graphs that run in two threads wait for each other for ever."""
