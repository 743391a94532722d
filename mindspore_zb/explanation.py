"""``explain``: the backward graph of one forward and its split, as plain data, as text and as a drawing."""

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mindspore_zb.draw.text import explanation_text
from mindspore_zb.engines.base import Description, GroupDescription, Shape
from mindspore_zb.errors import ArgumentTypeError
from mindspore_zb.grad_function import GradFunction, Request

DX, BOUNDARY, EAGER_BOUNDARY, WEIGHT_SIDE, INPUT, WEIGHT, UNUSED = ROLES = (
    "dx", "boundary", "eager boundary", "weight side", "input", "weight", "unused")
"""What a node does: it is run by dx only; it is where dw starts; the same, but its weight gradients are caught while dx
runs it; it is run by dw only; it is the leaf of an input or weight; no gradient that was asked for needs it."""


@dataclass(frozen=True)
class ExplainedLeaf:
    """An input or a weight.

    Attributes:
        name: ``inputs[0]``, or the Parameter's name.
        shape, dtype: of the tensor.
        node: its number in the graph; None if the outputs do not depend on it.
    """

    name: str
    shape: Shape
    dtype: str
    node: Optional[int]


@dataclass(frozen=True)
class ExplainedNode:
    """A node of the backward graph; its number is its place in :attr:`Explanation.nodes`.

    Attributes:
        name: the operation, or the name of the input or weight.
        role: one of :data:`ROLES`.
        edges: ``(child, slot)`` where it sends its gradients, None for a place without.
        shapes: the shape behind each slot, empty where not known.
        group: the group of weights whose dw runs it; None if dw does not.
        weight_edges: of a boundary: the places in ``edges`` that lead to the group's weights.
        root_slots: the slots where gradients of outputs enter.
    """

    name: str
    role: str
    edges: Tuple[Optional[Tuple[int, int]], ...]
    shapes: Tuple[Optional[Shape], ...]
    group: Optional[int]
    weight_edges: Tuple[int, ...]
    root_slots: Tuple[int, ...]


@dataclass(frozen=True)
class ExplainedGroup:
    """A group of weights, as in :attr:`GradFunction.weight_groups`.

    Attributes:
        weights: their names.
        boundaries: ``(node, edges)`` where dw starts, and which of the node's edges lead to the weights.
        ready: whether its gradients are computed whole during dx.
        done: whether it was computed and has freed what it held.
        reached: whether the outputs depend on its weights; if not, their gradients are zeros.
        captured_bytes, activation_bytes: what waits for its dw after dx; see :attr:`WeightGroup.nbytes`.
    """

    weights: Tuple[str, ...]
    boundaries: Tuple[Tuple[int, Tuple[int, ...]], ...]
    ready: bool
    done: bool
    reached: bool
    captured_bytes: int
    activation_bytes: int


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain` returns: plain data, which keeps nothing of the graph alive. ``str`` makes it legible.

    Attributes:
        engine, fallback_reason, state: as of the :class:`GradFunction`.
        inputs, weights: the leaves that were asked for, in order.
        nodes: the graph.
        roots: ``(node, slot)`` of each output with history.
        groups: the groups of weights, in the order in which dw runs best.
        closure: how many nodes dx runs.
        passes: in how many runs dx is computed.
        held_bytes: what all groups hold together, each storage once.
    """

    engine: str
    fallback_reason: Optional[str]
    state: str
    inputs: Tuple[ExplainedLeaf, ...]
    weights: Tuple[ExplainedLeaf, ...]
    nodes: Tuple[ExplainedNode, ...]
    roots: Tuple[Tuple[int, int], ...]
    groups: Tuple[ExplainedGroup, ...]
    closure: int
    passes: int
    held_bytes: int

    def text(self, max_nodes: Optional[int] = 200) -> str:
        """A header, a table of the groups and the graph from its outputs down.

        Args:
            max_nodes: how many groups and how many nodes are printed at most, None for all.
        """
        return explanation_text(self, max_nodes)

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> Dict[str, Any]:
        """The same as dicts, tuples, strings and numbers, fit for ``json.dumps``."""
        return asdict(self)

    def draw(self, path: Any, max_nodes: int = 300) -> None:
        """Draw the graph; needs matplotlib.

        Args:
            path: the file to write; its suffix chooses PNG or SVG.
            max_nodes: a larger graph is cut below its first nodes, and the picture says so.

        Raises:
            ArgumentValueError: ``path`` has another suffix or cannot be written, or ``max_nodes`` is below 1.
            ArgumentTypeError: ``path`` is no path.
            UnsupportedError: matplotlib is not installed.
        """
        from mindspore_zb.draw.graph import draw_explanation
        draw_explanation(self, path, max_nodes)


def explain(grad_fn: GradFunction) -> Explanation:
    """Tell how the backward of one forward is split: before dx, or between dx and the last dw.

    Before dx every node has its shapes and no group holds bytes yet; after dx it is the other way round.

    Args:
        grad_fn: from :func:`~mindspore_zb.forward_and_gradfn`.

    Raises:
        ArgumentTypeError: it is no :class:`GradFunction`.
        StateError: its graph was released.

    Example:
        >>> from mindspore import nn, ops
        >>> from mindspore_zb import explain, forward_and_gradfn
        >>> net = nn.Dense(4, 3, has_bias=False)
        >>> out, grad_fn = forward_and_gradfn(net, ops.ones((2, 4)), weights=net.trainable_params())
        >>> explanation = explain(grad_fn)
        >>> [(node.name, node.role, node.shapes) for node in explanation.nodes]
        [('MatMul', 'boundary', ((2, 3),)), ('inputs[0]', 'input', ((2, 4),)), ('weight', 'weight', ((3, 4),))]
        >>> _ = grad_fn.compute_input_grad()
        >>> explain(grad_fn).groups[0].captured_bytes, explain(grad_fn).groups[0].activation_bytes
        (24, 32)
    """
    if not isinstance(grad_fn, GradFunction):
        raise ArgumentTypeError(f"explain takes a GradFunction, not a {type(grad_fn).__name__}")
    description, request = grad_fn.describe()
    inputs, weights = _leaves(description, request)
    return Explanation(
        engine=grad_fn.engine, fallback_reason=grad_fn.fallback_reason, state=grad_fn.state,
        inputs=inputs, weights=weights, nodes=_nodes(description, inputs, weights), roots=description.roots,
        groups=_groups(description, weights, grad_fn), closure=len(description.closure), passes=description.passes,
        held_bytes=description.held_bytes)


def _leaves(description: Description, request: Request) -> Tuple[Tuple[ExplainedLeaf, ...], Tuple[ExplainedLeaf, ...]]:
    inputs = tuple(ExplainedLeaf(name, tuple(shape), str(dtype), node) for name, (shape, dtype), node in zip(
        request.input_layout.names(), request.input_meta, description.inputs))
    weights = tuple(ExplainedLeaf(parameter.name, tuple(parameter.shape), str(parameter.dtype), node)
                    for parameter, node in zip(request.weights.parameters, description.weights))
    return inputs, weights


def _nodes(description: Description, inputs: Sequence[ExplainedLeaf],
           weights: Sequence[ExplainedLeaf]) -> Tuple[ExplainedNode, ...]:
    roles = _roles(description)
    leaves = {leaf.node: leaf for leaf in (*inputs, *weights) if leaf.node is not None}
    groups = {node: number for number, group in enumerate(description.groups) for node in _run_by(group)}
    weight_edges = {node: edges for group in description.groups for node, edges in group.boundaries}
    slots: Dict[int, List[int]] = {}
    for node, slot in sorted(set(description.roots)):
        slots.setdefault(node, []).append(slot)
    nodes = []
    for number, node in enumerate(description.nodes):
        leaf = leaves.get(number)
        nodes.append(ExplainedNode(
            name=leaf.name if leaf else node.name or "leaf", role=roles[number], edges=node.edges,
            shapes=(leaf.shape,) if leaf else node.shapes, group=groups.get(number),
            weight_edges=weight_edges.get(number, ()), root_slots=tuple(slots.get(number, ()))))
    return tuple(nodes)


def _run_by(group: GroupDescription) -> Tuple[int, ...]:
    return (*(node for node, _ in group.boundaries), *group.nodes)


def _roles(description: Description) -> List[str]:
    """The more special role wins: a boundary is also run by dx, a leaf also by its group."""
    roles = [UNUSED] * len(description.nodes)
    eager = set(description.eager)
    for node in description.closure:
        roles[node] = DX
    for group in description.groups:
        for node in group.nodes:
            roles[node] = WEIGHT_SIDE
        for node, _ in group.boundaries:
            roles[node] = EAGER_BOUNDARY if group.ready or node in eager else BOUNDARY
    for role, leaves in ((INPUT, description.inputs), (WEIGHT, description.weights)):
        for leaf in leaves:
            if leaf is not None:
                roles[leaf] = role
    return roles


def _groups(description: Description, weights: Sequence[ExplainedLeaf],
            grad_fn: GradFunction) -> Tuple[ExplainedGroup, ...]:
    explained = []
    for group in grad_fn.weight_groups:
        known = description.groups[group.index] if group.index < len(description.groups) else None
        explained.append(ExplainedGroup(
            weights=tuple(weights[position].name for position in group.positions),
            boundaries=known.boundaries if known else (), ready=bool(known and known.ready), done=group.done,
            reached=known is not None, captured_bytes=known.captured_bytes if known else 0,
            activation_bytes=known.activation_bytes if known else 0))
    return tuple(explained)
