"""What :class:`~mindspore_zb.GradFunction` asks of an engine."""

import abc
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple


@dataclass(frozen=True)
class BoundaryInfo:
    """A node where dw of a group starts: its operation, and the slots of its edges that lead to the weights."""

    name: str
    slots: Tuple[int, ...]


@dataclass(frozen=True)
class GroupInfo:
    """A group of weights as seen from outside the engine: ``weights`` are positions in the request."""

    weights: Tuple[int, ...]
    boundaries: Tuple[BoundaryInfo, ...]


class Recording(abc.ABC):
    """One forward pass, recorded, and its two half backwards. Knows tensors in flat lists only.

    The caller keeps the order: :meth:`input_grads` once, then every group, or :meth:`all_grads`.
    """

    @abc.abstractmethod
    def groups(self) -> Tuple[GroupInfo, ...]:
        """The groups of weights, in the order in which dw runs best. Every reached weight is in exactly one."""

    @abc.abstractmethod
    def input_grads(self, sens: Sequence[Any]) -> List[Optional[Any]]:
        """Run dx. ``sens``: the gradient of each output, None for none. Returns the gradient of each input, None if
        the outputs do not depend on it. Frees what only dx needed."""

    @abc.abstractmethod
    def weight_grads(self, groups: Sequence[int], keep_graph: bool) -> List[Tuple[int, Optional[Any]]]:
        """Run dw of these groups. Returns ``(position of the weight, gradient or None)``; frees what they used unless
        ``keep_graph``."""

    @abc.abstractmethod
    def all_grads(self, sens: Sequence[Any], keep_graph: bool) -> Tuple[List[Optional[Any]], List[Optional[Any]]]:
        """The unsplit backward: gradients of the inputs and of the weights."""

    @abc.abstractmethod
    def held_bytes(self, group: int) -> int:
        """Bytes that dw of this group still holds."""

    @abc.abstractmethod
    def describe(self) -> Any:
        """The graph and its plan, for ``explain``."""

    @abc.abstractmethod
    def release(self) -> None:
        """Let go of everything. May be called again, and after an error."""
