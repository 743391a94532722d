"""``explain``: the backward graph of one forward and its split, as plain data, as text and as a drawing."""

from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mindspore_zb.arguments import check_weights
from mindspore_zb.draw.text import explanation_text
from mindspore_zb.engines.base import Description, GroupDescription, Shape
from mindspore_zb.engines.pynative.description import describe_history
from mindspore_zb.engines.pynative.native import eager_mode, grad_recording
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.grad_function import GradFunction, Request
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import is_tensor

DX, BOUNDARY, EAGER_BOUNDARY, WEIGHT_SIDE, INPUT, WEIGHT, UNUSED, OPERATION, LEAF = ROLES = (
    "dx", "boundary", "eager boundary", "weight side", "input", "weight", "unused", "operation", "leaf")
"""What a node does: it is run by dx only; it is where dw starts; the same, but its weight gradients are caught while dx
runs it; it is run by dw only; it is the leaf of an input or weight; no gradient that was asked for needs it. In the
history of a tensor, for which no split was asked for: it is an operation; it is a leaf."""

HISTORY = "history"
"""The state of an explanation of a tensor."""


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
        engine, fallback_reason, state: as of the :class:`GradFunction`; the state is ``"history"`` for a tensor.
        inputs, weights: the leaves that were asked for, in order.
        nodes: the graph.
        roots: ``(node, slot)`` of each output with history.
        groups: the groups of weights, in the order in which dw runs best.
        closure: how many nodes dx runs.
        passes: in how many runs dx is computed.
        held_bytes: what all groups hold together, each storage once.
        saved_bytes: of compiled code, the bytes that cross from the forward to dx and dw, inputs included, parameters
            left out; several compiled blocks are added. None where nothing is compiled.
        unsaved_bytes: the same with ``options(graph_recompute="none")``.
        leaves: the leaves of a tensor's history.
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
    saved_bytes: Optional[int] = None
    unsaved_bytes: Optional[int] = None
    leaves: Tuple[ExplainedLeaf, ...] = ()

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


def explain(subject: Any, weights: Any = None) -> Explanation:
    """Tell how the backward of one forward is split: before dx, or between dx and the last dw; or what history a tensor
    has.

    Before dx every node has its shapes and no group holds bytes yet; after dx it is the other way round. The history of
    a tensor (a loss inside of what ``mindspore.value_and_grad`` calls, say) is the graph as MindSpore has recorded it,
    without a split.

    Args:
        subject: from :func:`~mindspore_zb.forward_and_gradfn`; or a tensor with a history, or several in a tuple or
            list.
        weights: for tensors only: Parameters that are to have their names of today. MindSpore itself knows those of the
            time when a Parameter was made.

    Raises:
        ArgumentTypeError: it is neither.
        ArgumentValueError: no tensor has a history.
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
    if not isinstance(subject, GradFunction):
        return _explain_tensors(subject, weights)
    if weights is not None:
        raise ArgumentTypeError("weights are for explaining a tensor: a GradFunction knows its own")
    description, request = subject.describe()
    inputs, leaves = _leaves(description, request)
    return Explanation(
        engine=subject.engine, fallback_reason=subject.fallback_reason, state=subject.state,
        inputs=inputs, weights=leaves, nodes=_nodes(description, inputs, leaves), roots=description.roots,
        groups=_groups(description, leaves, subject), closure=len(description.closure), passes=description.passes,
        held_bytes=description.held_bytes, saved_bytes=description.saved_bytes,
        unsaved_bytes=description.unsaved_bytes)


def _explain_tensors(subject: Any, weights: Any) -> Explanation:
    tensors = [subject] if is_tensor(subject) else subject
    if not isinstance(tensors, (tuple, list)) or not tensors or not all(map(is_tensor, tensors)):
        raise ArgumentTypeError(f"explain takes a GradFunction or tensors, not a {type(subject).__name__}")
    history = describe_history(tensors, check_weights(weights).parameters)
    roots = tuple(root for root in history.roots if root is not None)
    if not any(history.nodes[node].edges for node, _ in roots):  # a leaf was made by no operation
        which = "the tensor has no" if len(tensors) == 1 else "none of the tensors has a"
        raise ArgumentValueError(f"{which} history to explain: compute it while gradients are recorded, as inside of a "
                                 "function that mindspore.value_and_grad calls")
    leaves = tuple(ExplainedLeaf(history.nodes[node].name, meta[0] if meta else (), str(meta[1]) if meta else "",
                                 node) for node, meta in history.leaves)
    slots = _slots(roots)
    are_leaves = {leaf.node for leaf in leaves}
    nodes = tuple(ExplainedNode(
        name=node.name or LEAF, role=LEAF if number in are_leaves else OPERATION, edges=node.edges, shapes=node.shapes,
        group=None, weight_edges=(), root_slots=slots.get(number, ())) for number, node in enumerate(history.nodes))
    return Explanation(engine="pynative", fallback_reason=None, state=HISTORY, inputs=(), weights=(), nodes=nodes,
                       roots=roots, groups=(), closure=0, passes=0, held_bytes=0, leaves=leaves)


def explain_call(fn: Callable[..., Any], inputs: Sequence[Any], weights: Any = None,
                 kwargs: Optional[Dict[str, Any]] = None) -> Explanation:
    """The history of what ``fn(*inputs, **kwargs)`` returns: :func:`explain` of all its tensors.

    Args:
        fn: a Cell, function or other callable; it is run once, operation by operation.
        weights: as for :func:`explain`; only they, and other Parameters, are leaves.

    Raises:
        ArgumentValueError: nothing that it returns has a history; what ``fn`` raises passes through.
    """
    with eager_mode(), grad_recording():
        leaves, _ = flatten(fn(*inputs, **(kwargs or {})))
        tensors = [leaf for leaf in leaves if is_tensor(leaf)]
    if not tensors:
        raise ArgumentValueError("fn returns no tensor, so there is no history to explain")
    return explain(tensors, weights)


def _slots(roots: Sequence[Tuple[int, int]]) -> Dict[int, Tuple[int, ...]]:
    """The slots of each node where gradients of outputs enter."""
    slots: Dict[int, Tuple[int, ...]] = {}
    for node, slot in sorted(set(roots)):
        slots[node] = (*slots.get(node, ()), slot)
    return slots


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
    slots = _slots(description.roots)
    nodes = []
    for number, node in enumerate(description.nodes):
        leaf = leaves.get(number)
        nodes.append(ExplainedNode(
            name=leaf.name if leaf else node.name or "leaf", role=roles[number], edges=node.edges,
            shapes=(leaf.shape,) if leaf else node.shapes, group=groups.get(number),
            weight_edges=weight_edges.get(number, ()), root_slots=slots.get(number, ())))
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
