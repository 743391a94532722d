"""What happens when compiled code cannot be split by the graph engine: one warning, or an error if it was asked for."""

import warnings
import weakref
from typing import Any, Callable, Set

from mindspore_zb.errors import UnsupportedError


class FallbackWarning(UserWarning):
    """A compiled function is run by the PyNative engine; told once per function."""


_TOLD: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()
_TOLD_NAMES: Set[str] = set()


def refuse_or_warn(fn: Callable[..., Any], mode: str, reason: str) -> None:
    """Warn that ``fn`` falls back to the PyNative engine; once for each function.

    Raises:
        UnsupportedError: ``mode`` is ``"graph"``, so that nothing else than the graph engine will do.
    """
    name = _name(fn)
    if mode == "graph":
        raise UnsupportedError(f"mode='graph', but {name} cannot be compiled and split: {reason}")
    if not _is_first(fn, name):
        return
    warnings.warn(f"{name} is compiled, but is split by the PyNative engine: {reason}", FallbackWarning, stacklevel=4)


def warn_of_block(block: Any, reason: str) -> None:
    """Warn that a compiled Cell or function inside an eager net is not split by pieces of its own; once for each class
    of Cells and for each function."""
    function = getattr(block, "__func__", block)
    if _is_first(function if hasattr(function, "__name__") else type(block), _name(block)):
        warnings.warn(f"{_name(block)} inside an eager net cannot be split by compiled pieces of its own: {reason}",
                      FallbackWarning, stacklevel=2)


def _is_first(fn: Callable[..., Any], name: str) -> bool:
    target = getattr(fn, "__self__", fn)
    try:
        if target in _TOLD:
            return False
        _TOLD[target] = True
    except TypeError:  # no weak references, or no hash
        if name in _TOLD_NAMES:
            return False
        _TOLD_NAMES.add(name)
    return True


def _name(fn: Callable[..., Any]) -> str:
    fn = getattr(fn, "func", fn)
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__
