"""Settings that hold for the forwards started inside a ``with`` block."""

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Iterator, Union

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError


RECOMPUTE_POLICIES = ("none", "views", "elementwise", "cheap")


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
    """

    free_early: bool = True
    graph_pieces: Union[int, str, None] = "auto"
    graph_recompute: str = "none"
    split_blocks: bool = True


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
        _check(name, value)
    token = _CURRENT.set(replace(_CURRENT.get(), **changes))
    try:
        yield _CURRENT.get()
    finally:
        _CURRENT.reset(token)


def _check(name: str, value: Any) -> None:
    if name == "graph_pieces":
        if value not in (None, "auto") and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ArgumentTypeError(f"graph_pieces must be a positive int, 'auto' or None, not {value!r}")
    elif name == "graph_recompute":
        if value not in RECOMPUTE_POLICIES:
            raise ArgumentValueError(f"graph_recompute must be one of {', '.join(RECOMPUTE_POLICIES)}, not {value!r}")
    elif not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be True or False, not {value!r}")
