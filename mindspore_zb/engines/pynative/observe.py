"""Watch the forward for what its grad nodes do not tell: tensor hooks and recompute.

Both are seen by standing in for a name of MindSpore while ``fn`` runs; the name is put back when the last forward in
flight has ended.
"""

import contextlib
import importlib
import threading
from typing import Any, Callable, Iterator, List

from mindspore import Tensor

from mindspore_zb.engines.pynative.native import grad_edge

_recompute = importlib.import_module("mindspore.common.recompute")  # the package exports a function of the same name

HAS_SESSIONS = hasattr(_recompute, "_recompute_session_ctx")
"""MindSpore 2.10 keeps what was recomputed over several backward runs, 2.9 recomputes in each."""


class Observation:
    """What happened in one forward pass.

    Attributes:
        hooked: nodes of tensors that got a hook (``Tensor.register_hook``); running such a node twice would run the
            hook twice.
        recomputed: whether something is recomputed without reentrance (``recompute(..., use_reentrant=False)``).
    """

    __slots__ = ("hooked", "recomputed")

    def __init__(self) -> None:
        self.hooked: List[Any] = []
        self.recomputed = False


@contextlib.contextmanager
def observe_forward() -> Iterator[Observation]:
    """Yields an :class:`Observation` that fills while the block runs, from this thread only."""
    observation = Observation()
    outer = getattr(_ACTIVE, "observation", None)
    _ACTIVE.observation = observation
    _STAND_INS.enter()
    try:
        yield observation
    finally:
        _STAND_INS.leave()
        _ACTIVE.observation = outer


class _StandIns:
    """Replaces attributes while at least one forward is watched, and puts them back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched = 0
        self._replaced: List[tuple] = []

    def enter(self) -> None:
        with self._lock:
            self._watched += 1
            if self._watched == 1:
                self._replace(Tensor, "register_hook", _watched_register_hook)
                self._replace(_recompute, "_RecomputeHandle" if HAS_SESSIONS else "_RecomputeState", _watched_recompute)

    def leave(self) -> None:
        with self._lock:
            self._watched -= 1
            if not self._watched:
                while self._replaced:
                    owner, name, original = self._replaced.pop()
                    setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, stand_in: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._replaced.append((owner, name, original))
        setattr(owner, name, stand_in(original))


_ACTIVE = threading.local()
_STAND_INS = _StandIns()


def _watched_register_hook(original: Any) -> Any:
    def register_hook(self, hook):
        observation = getattr(_ACTIVE, "observation", None)
        edge = None if observation is None else grad_edge(self)
        if edge is not None:
            observation.hooked.append(edge[0])
        return original(self, hook)

    return register_hook


def _watched_recompute(original: Any) -> Any:
    class WatchedRecompute(original):
        """Made by ``mindspore.recompute`` for each block that is recomputed without reentrance."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            observation = getattr(_ACTIVE, "observation", None)
            if observation is not None:
                observation.recomputed = True

    return WatchedRecompute


@contextlib.contextmanager
def recompute_session(session: Any, keep: bool) -> Iterator[None]:
    """Share what is recomputed between the backward runs of one ``session``; ``keep`` it for further runs."""
    if session is None or not HAS_SESSIONS:
        yield
    else:
        with _recompute._recompute_session_ctx(session, keep):
            yield


def end_recompute_session(session: Any) -> None:
    """Forget what was recomputed in ``session``."""
    if session is not None and HAS_SESSIONS:
        _recompute._clear_recompute_session(session)
