"""Look at the local variables of running functions, and leave nothing behind."""

import inspect
import sys
from contextlib import contextmanager
from types import FrameType
from typing import Any, Iterator, Mapping, Optional

_SNAPSHOTS = sys.version_info < (3, 13)  # until then `f_locals` copies the variables, and the frame keeps the copy
_OURS = 4  # the frame's, the one here, that of the block and the argument of getrefcount


def frames_from(frame: Optional[FrameType]) -> Iterator[FrameType]:
    """A frame and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@contextmanager
def local_variables(frame: FrameType) -> Iterator[Mapping[str, Any]]:
    """The local variables of a frame, by name, for the time of the block.

    A function's frame would keep the objects that were looked at until it ends, also when the function has long given
    the name to another one: so the copy is emptied, unless the function has taken hold of it itself by ``locals()``.
    """
    found = frame.f_locals
    try:
        yield found
    finally:
        if _SNAPSHOTS and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(found) <= _OURS:
            found.clear()


def local_variable(frame: FrameType, name: str) -> Any:
    """One local variable; None if there is none of this name."""
    found = frame.f_locals
    value = found.get(name)
    if _SNAPSHOTS and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(found) <= _OURS - 1:
        found.clear()
    return value
