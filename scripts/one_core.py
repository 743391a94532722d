"""Keep a benchmark to one core. Import this before MindSpore.

MindSpore waits by spinning. With as many kernel threads as cores, the waiting thread takes the core away from a kernel,
for a whole tick of the scheduler at a time: times then come in steps of 4 ms, and say more about who waited where than
about the work. On one core a kernel has one thread, and a waiting thread of the lowest priority (``waiting.py``) costs
next to nothing.

Not for compiled graphs of a few milliseconds: there it is MindSpore itself that waits, and at the priority of the rest.
"""

import os

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
