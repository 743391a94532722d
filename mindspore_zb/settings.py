"""Settings that hold for the forwards started inside a ``with`` block."""

import contextlib
import os
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Iterator, Optional, Union

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError


RECOMPUTE_POLICIES = ("none", "views", "elementwise", "cheap", "selective")


@dataclass(frozen=True)
class Options:
    """The settings.

    Attributes:
        free_early: run dx in passes, so that everything that only dx needs is freed while dx runs. With False dx is
            one run and what an activation right below a matmul saved may stay until dw; a little faster for nets of
            many tiny operations.
        split_blocks: split compiled Cells and functions inside an eager net by compiled pieces of their own, one of dw
            each (with ``graph_pieces=None`` one per group). With False each is one node, which computes all its
            gradients during dx.
        graph_pieces: into how many pieces of about equal size compiled dw is gathered; ``"auto"`` for at most four,
            None for one per group.
        graph_recompute: what the compiled backward computes again rather than to save it: ``"none"``, ``"views"``,
            ``"elementwise"``, ``"cheap"`` or ``"selective"``.
        graph_cache: a directory where compiled pieces are kept for other processes, which need not compile then;
            None for none. It is made when it is first needed, and grows until somebody empties it. Like a directory of
            Python's compiled files it must be writable by nobody who is not trusted.
    """

    free_early: bool = True
    graph_pieces: Union[int, str, None] = "auto"
    graph_recompute: str = "none"
    split_blocks: bool = True
    graph_cache: Optional[str] = None


_CURRENT: ContextVar[Options] = ContextVar("mindspore_zb_options", default=Options())


def current_options() -> Options:
    """The settings that hold here."""
    return _CURRENT.get()


@contextlib.contextmanager
def options(**changes: Any) -> Iterator[Options]:
    """Change settings for the forwards inside the block; see :class:`Options`.

    Raises:
        ArgumentTypeError: there is no such setting, or its value has the wrong type.
        ArgumentValueError: its value is none of those that it may have.

    >>> with options(free_early=False) as inside:
    ...     inside.free_early
    False
    """
    for name, value in changes.items():
        if name not in Options.__dataclass_fields__:
            known = ", ".join(Options.__dataclass_fields__)
            raise ArgumentTypeError(f"there is no setting {name!r}; settings: {known}")
        changes[name] = _checked(name, value)
    token = _CURRENT.set(replace(_CURRENT.get(), **changes))
    try:
        yield _CURRENT.get()
    finally:
        _CURRENT.reset(token)


def _checked(name: str, value: Any) -> Any:
    """The value of a setting, if it may have it."""
    if name == "graph_pieces":
        if value not in (None, "auto") and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ArgumentTypeError(f"graph_pieces must be a positive int, 'auto' or None, not {value!r}")
    elif name == "graph_recompute":
        if value not in RECOMPUTE_POLICIES:
            raise ArgumentValueError(f"graph_recompute must be one of {', '.join(RECOMPUTE_POLICIES)}, not {value!r}")
    elif name == "graph_cache":
        return _checked_directory(value)
    elif not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be True or False, not {value!r}")
    return value


def _checked_directory(value: Any) -> Optional[str]:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise ArgumentTypeError(f"graph_cache must be the path of a directory or None, not {value!r}")
    path = os.fspath(value)
    if not path or os.path.exists(path) and not os.path.isdir(path):
        raise ArgumentValueError(f"graph_cache must be the path of a directory or None, but {path!r} is none")
    return os.path.abspath(path)
