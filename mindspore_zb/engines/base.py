"""What :class:`~mindspore_zb.GradFunction` asks of an engine."""

import abc
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple


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


Shape = Tuple[int, ...]


@dataclass(frozen=True)
class NodeDescription:
    """One step of the backward.

    Attributes:
        name: the operation; "" for a leaf.
        edges: ``(child, slot)`` of each edge, None for a place without gradient.
        shapes: the shape behind each slot, None for one that is not known; empty once dx has run.
    """

    name: str
    edges: Tuple[Optional[Tuple[int, int]], ...]
    shapes: Tuple[Optional[Shape], ...] = ()


@dataclass(frozen=True)
class GroupDescription:
    """What dw of a group runs and holds; the numbers are places in :attr:`Description.nodes`.

    Attributes:
        boundaries: ``(node, edges)`` where dw starts, and which of the node's edges lead to the weights.
        roots: ``(node, slot)`` outside dx where an output's gradient enters directly.
        nodes: what dw runs besides the boundaries, the weights' leaves included.
        ready: whether the gradients are computed whole during dx.
        captured_bytes: gradients that wait for dw, each storage once; 0 before dx and after dw.
        activation_bytes: saved activations that wait for dw; see ``WeightGroup.nbytes``.
    """

    boundaries: Tuple[Tuple[int, Tuple[int, ...]], ...]
    roots: Tuple[Tuple[int, int], ...]
    nodes: Tuple[int, ...]
    ready: bool
    captured_bytes: int
    activation_bytes: int


@dataclass(frozen=True)
class Description:
    """A backward graph and its split as plain data: it keeps no tensor and no node alive.

    Attributes:
        nodes: the nodes; a node's number is its place here.
        roots: ``(node, slot)`` of each output with history.
        inputs, weights: leaf node of each input and weight, None for one the outputs do not depend on.
        closure: the nodes that dx runs, ascending.
        eager: boundary nodes whose weight gradients are caught while dx runs them.
        passes: in how many runs dx is computed.
        groups: in the order of :meth:`Recording.groups`.
        held_bytes: what all groups together hold, each storage once.
        saved_bytes: of compiled code, the bytes of values that cross from the forward to dx and dw, inputs included,
            parameters left out; None where nothing is compiled.
        unsaved_bytes: the same if nothing were computed again in the backward.
    """

    nodes: Tuple[NodeDescription, ...]
    roots: Tuple[Tuple[int, int], ...]
    inputs: Tuple[Optional[int], ...]
    weights: Tuple[Optional[int], ...]
    closure: Tuple[int, ...]
    eager: Tuple[int, ...]
    passes: int
    groups: Tuple[GroupDescription, ...]
    held_bytes: int
    saved_bytes: Optional[int] = None
    unsaved_bytes: Optional[int] = None


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
    def held_bytes(self, groups: Sequence[int]) -> int:
        """Bytes that wait for dw of these groups: captured gradients and saved activations, each storage once."""

    @abc.abstractmethod
    def held_storages(self) -> Dict[int, int]:
        """Address and bytes of each storage that is held at this moment besides what MindSpore's own nodes saved:
        captured gradients, and the values between compiled pieces; parameters left out."""

    def watch_nodes(self, tell: Callable[[str], None]) -> None:
        """Have ``tell`` called with the name of each operation right before its backward runs, from now on. Compiled
        pieces tell nothing."""

    @abc.abstractmethod
    def describe(self) -> Description:
        """The graph and its plan, for ``explain``. Shapes are told before dx only: they go with the forward."""

    @abc.abstractmethod
    def release(self) -> None:
        """Let go of everything. May be called again, and after an error."""
