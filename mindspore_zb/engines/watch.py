"""Who is told what a forward keeps for its backward, where MindSpore's own hooks for saved tensors do not see it."""

import abc
import contextlib
import threading
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

Check = Callable[[], None]


class Watcher(abc.ABC):
    """Is told of the forwards of its thread."""

    @abc.abstractmethod
    def compiled(self, recording: Any) -> Optional[Callable[[Any, Dict[str, Any]], None]]:
        """A compiled forward ran.

        Args:
            recording: a :class:`~mindspore_zb.engines.graph.recording.GraphRecording`.

        Returns:
            What is called with each piece of its backward and the values that it is about to read; may be None.
        """

    def opaque(self, call: "OpaqueCall") -> Optional[Callable[[Sequence[Any]], Optional[Check]]]:
        """Something is about to run whose backward reads tensors that no hook sees.

        Returns:
            What is called when it has run, with the further tensors that it kept by itself; that in turn returns what
            is called when its backward begins. Both may be None.
        """
        return None

    def made(self, grad_fn: Any) -> None:
        """A GradFunction was made."""


class OpaqueCall:
    """A call whose backward reads its arguments, Parameters or own attributes, and not only saved tensors.

    Attributes:
        kind: ``"@jit"``, ``"custom bprop"``, ``"recompute"`` or ``"_Function"``.
        owner: the Cell, function or bound method that is called.
        tensors: the tensors among its arguments.
    """

    __slots__ = ("kind", "owner", "tensors")

    def __init__(self, kind: str, owner: Any, tensors: Sequence[Any]):
        self.kind = kind
        self.owner = owner
        self.tensors = tensors


_ACTIVE = threading.local()


def current_watcher() -> Optional[Watcher]:
    """The watcher of the thread."""
    return getattr(_ACTIVE, "watcher", None)


@contextlib.contextmanager
def watching(watcher: Optional[Watcher]) -> Iterator[None]:
    """Tell ``watcher`` of the forwards inside; with None, nobody."""
    outer = current_watcher()
    _ACTIVE.watcher = watcher
    try:
        yield
    finally:
        _ACTIVE.watcher = outer
