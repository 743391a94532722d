"""Stand in for names of MindSpore for a while."""

import threading
from typing import Any, Callable, Dict, Iterable, Tuple

Replacement = Tuple[Any, str, Callable[[Any], Any]]
"""``(owner, name, stand_in)``, where ``stand_in`` makes the new attribute of the one before."""


class StandIns:
    """Replaces attributes of classes and modules while somebody needs it, and puts them back.

    Several may replace the same attribute and come and go in any order, as their threads do: each wraps the ones that
    came before it, and the last to go leaves the attribute as it was.

    Args:
        replacements: called when somebody enters; gives what to replace. What is replaced already stays so.
    """

    def __init__(self, replacements: Callable[[], Iterable[Replacement]]) -> None:
        self._replacements = replacements
        self._inside = 0

    def enter(self) -> None:
        """Replace them, unless they are already."""
        with _LOCK:
            self._inside += 1
            for owner, name, stand_in in self._replacements():
                attribute = _REPLACED.get((owner, name))
                if attribute is None:
                    attribute = _REPLACED[owner, name] = _Attribute(owner, name)
                if self not in attribute.stand_ins:
                    attribute.stand_ins[self] = stand_in
                    attribute.renew()

    def leave(self) -> None:
        """Put them back, if this was the last to leave."""
        with _LOCK:
            self._inside -= 1
            if self._inside:
                return
            for key, attribute in list(_REPLACED.items()):
                if attribute.stand_ins.pop(self, None) is not None:
                    attribute.renew()
                if not attribute.stand_ins:
                    del _REPLACED[key]


class _Attribute:
    """An attribute that somebody stands in for."""

    def __init__(self, owner: Any, name: str):
        self._owner, self._name = owner, name
        self._own = name in vars(owner)
        self._original = vars(owner).get(name, getattr(owner, name))
        self.stand_ins: Dict[StandIns, Callable[[Any], Any]] = {}

    def renew(self) -> None:
        """Set the attribute to the original one behind all stand-ins."""
        value = self._original
        for stand_in in self.stand_ins.values():
            value = stand_in(value)
        setattr(self._owner, self._name, value)
        if not self.stand_ins and not self._own:
            delattr(self._owner, self._name)


_LOCK = threading.Lock()
_REPLACED: Dict[Tuple[Any, str], _Attribute] = {}
