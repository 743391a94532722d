"""Stand in for names of MindSpore for a while."""

import threading
from typing import Any, Callable, Dict, Iterable, Tuple


class StandIns:
    """Replaces attributes of classes and modules while somebody needs it, and puts them back.

    Args:
        replacements: called when somebody enters; gives ``(owner, name, stand_in)``, where ``stand_in`` makes the new
            attribute of the original one. What is replaced already stays so.
    """

    def __init__(self, replacements: Callable[[], Iterable[Tuple[Any, str, Callable[[Any], Any]]]]) -> None:
        self._replacements = replacements
        self._lock = threading.Lock()
        self._inside = 0
        self._replaced: Dict[Tuple[Any, str], Tuple[Any, bool]] = {}

    def enter(self) -> None:
        """Replace them, unless they are already."""
        with self._lock:
            self._inside += 1
            for owner, name, stand_in in self._replacements():
                if (owner, name) not in self._replaced:
                    original = vars(owner).get(name, getattr(owner, name))
                    self._replaced[owner, name] = original, name in vars(owner)
                    setattr(owner, name, stand_in(original))

    def leave(self) -> None:
        """Put them back, if this was the last to leave."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                while self._replaced:
                    (owner, name), (original, own) = self._replaced.popitem()
                    setattr(owner, name, original)
                    if not own:
                        delattr(owner, name)
