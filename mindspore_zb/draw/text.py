"""A backward graph and its split as text."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

MAX_NAMES = 4
"""How many weights of a group are named in the table."""


def explanation_text(explanation: Any, max_nodes: Optional[int]) -> str:
    """See :meth:`mindspore_zb.explanation.Explanation.text`."""
    graph = [*_legend(), "", *graph_lines(explanation.nodes, explanation.roots, max_nodes)]
    if explanation.state == "history":
        return "\n".join([*_history_header(explanation), "", *graph])
    lines = [*_header(explanation), "", *_group_table(explanation, max_nodes), "", *graph]
    return "\n".join(lines)


def _header(explanation: Any) -> List[str]:
    lines = [f"Backward of one forward: {explanation.engine} engine, {explanation.state}"]
    if explanation.fallback_reason:
        lines.append(f"no graph engine because {explanation.fallback_reason}")
    lines.append(f"{_count(len(explanation.nodes), 'node')}; dx runs {explanation.closure} of them in "
                 f"{_count(explanation.passes, 'pass', 'passes')}; dw is {_count(len(explanation.groups), 'group')} "
                 f"of {_count(len(explanation.weights), 'weight')}")
    for leaf in explanation.inputs:
        unused = "" if leaf.node is not None else ", which no output depends on: its gradient is zeros"
        lines.append(f"input {leaf.name} {format_shape(leaf.shape)} {leaf.dtype}{unused}")
    if explanation.saved_bytes is not None:
        more = f"; {explanation.unsaved_bytes:,} bytes without recompute" \
            if explanation.unsaved_bytes != explanation.saved_bytes else ""
        lines.append(f"{explanation.saved_bytes:,} bytes cross from the compiled forward to dx and dw{more}")
    if explanation.state == "dx computed":
        lines.append(f"{explanation.held_bytes:,} bytes wait for dw, each storage counted once")
    return lines


def _history_header(explanation: Any) -> List[str]:
    leaves = [f"leaf {leaf.name} {format_shape(leaf.shape)} {leaf.dtype}".rstrip() for leaf in explanation.leaves]
    return [f"History of {_count(len(explanation.roots), 'tensor')}: "
            f"{_count(len(explanation.nodes), 'node')}, {_count(len(leaves), 'leaf', 'leaves')} among them", *leaves]


def _count(number: int, word: str, plural: str = "") -> str:
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def _group_table(explanation: Any, limit: Optional[int]) -> List[str]:
    if not explanation.groups:
        return ["no weights were asked for"]
    rows = [("group", "dw starts at", "state", "gradients", "activations", "weights")]
    for number, group in enumerate(explanation.groups[:limit]):
        starts = ", ".join(f"#{node} {explanation.nodes[node].name}{list(edges)}"
                           for node, edges in group.boundaries[:MAX_NAMES]) or ("outputs" if group.reached else "-")
        if len(group.boundaries) > MAX_NAMES:
            starts += f" and {len(group.boundaries) - MAX_NAMES} more"
        names = ", ".join(group.weights[:MAX_NAMES])
        if len(group.weights) > MAX_NAMES:
            names += f" and {len(group.weights) - MAX_NAMES} more"
        rows.append((str(number), starts, _group_state(group), *_sizes(explanation, group), names))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["Groups of weights, in the order in which dw runs best; sizes are bytes held between dx and dw"]
    for row in rows:
        cells = [row[0].rjust(widths[0]), row[1].ljust(widths[1]), row[2].ljust(widths[2]), row[3].rjust(widths[3]),
                 row[4].rjust(widths[4]), row[5]]
        lines.append("  ".join(cells))
    left = len(explanation.groups) - (len(rows) - 1)
    return lines + [f"... {_count(left, 'more group')} left out: text(max_nodes=None) prints all"] if left else lines


def _sizes(explanation: Any, group: Any) -> Tuple[str, str]:
    if explanation.state == "fresh":
        return "-", "-"  # nothing is captured yet
    return f"{group.captured_bytes:,}", f"{group.activation_bytes:,}"


def _group_state(group: Any) -> str:
    if not group.reached:
        return "zeros: unreached"
    if group.done:
        return "done"
    return "computed with dx" if group.ready else "waits for dw"


def _legend() -> List[str]:
    return ["The graph, outputs first: a line's gradients go to the lines branching off it",
            "and to the next line on its level. [1] is the place of an edge, 0 if nothing is",
            "said; ':2' a slot other than 0; '-> #7' a shared node that comes further down."]


def graph_lines(nodes: Sequence[Any], roots: Sequence[Tuple[int, int]], limit: Optional[int]) -> List[str]:
    """The graph as a tree that stays flat: each node once, below the last of its parents; leaves below each parent.

    Args:
        nodes: with ``name``, ``role``, ``edges``, ``shapes``, ``group``, ``weight_edges``, ``root_slots``.
        roots: ``(node, slot)`` where it starts.
        limit: how many nodes besides leaves are printed, None for all.
    """
    parents = parent_counts(nodes)
    waiting = list(parents)
    starts = [node for node in dict.fromkeys(node for node, _ in roots) if not waiting[node]]
    stack = [(node, "", "") for node in reversed(starts)]
    lines: List[str] = []
    printed = 0
    while stack:
        node, before, margin = stack.pop()
        if limit is not None and printed >= limit:
            left = sum(1 for other in nodes if other.edges) - printed
            lines.append(f"... {_count(left, 'more node')} left out: text(max_nodes=None) prints all")
            break
        printed += bool(nodes[node].edges)
        lines.append(f"{before}{node_label(nodes, node, parents[node])}")
        short, follow = _children(nodes, node, waiting, parents)
        ends = ["├─"] * (len(short) - bool(short and not follow)) + ["└─"]
        lines += [f"{margin}{end}{text}" for end, text in zip(ends, short)]
        *branches, onward = follow or [None]
        if onward:
            stack.append((onward[0], margin + onward[1], margin))
        stack += [(child, f"{margin}├─{label}", f"{margin}│ ") for child, label in reversed(branches)]
    return lines


def parent_counts(nodes: Sequence[Any]) -> List[int]:
    """How many different nodes have an edge to each node."""
    counts = [0] * len(nodes)
    for node in nodes:
        for child in {edge[0] for edge in node.edges if edge is not None}:
            counts[child] += 1
    return counts


def _children(nodes: Sequence[Any], node: int, waiting: List[int],
              parents: Sequence[int]) -> Tuple[List[str], List[Tuple[int, str]]]:
    """The lines for leaves and for nodes that come further down, and ``(child, edges)`` of those that come now."""
    edges: Dict[int, List[str]] = {}
    for place, edge in enumerate(nodes[node].edges):
        if edge is not None:
            edges.setdefault(edge[0], []).append(f"{place}:{edge[1]}" if edge[1] else str(place))
    plain = sum(edge is not None for edge in nodes[node].edges) == 1
    short, follow = [], []
    for child, places in edges.items():
        label = "" if plain and ":" not in places[0] else f"[{', '.join(places)}] "
        waiting[child] -= 1
        if not nodes[child].edges:
            short.append(label + node_label(nodes, child, parents[child]))
        elif waiting[child]:
            short.append(f"{label}-> #{child} {nodes[child].name}")
        else:
            follow.append((child, label))
    if follow and follow[-1][1] == "[0] ":  # the next line, mostly: as it is for a node with one edge
        follow[-1] = (follow[-1][0], "")
    return short, follow


def node_label(nodes: Sequence[Any], number: int, parents: int) -> str:
    """One line on a node: number, name, shapes and what it is to the split."""
    node = nodes[number]
    marks = [] if node.role in ("operation", "leaf") else [_role(node)]
    if node.root_slots:
        marks.append("output" if node.root_slots == (0,) else f"output in slots {list(node.root_slots)}")
    if parents > 1:
        marks.append(f"shared by {parents}")
    shapes = " ".join("?" if shape is None else format_shape(shape) for shape in node.shapes)
    return f"#{number} {node.name}{' ' + shapes if shapes else ''}  {', '.join(marks)}".rstrip()


def _role(node: Any) -> str:
    if node.group is None:
        return node.role
    if node.weight_edges:
        caught = ": weight gradients caught in dx" if node.role == "eager boundary" else ""
        edges = "edge" if len(node.weight_edges) == 1 else "edges"
        return f"{node.role.upper()} of group {node.group} at {edges} {', '.join(map(str, node.weight_edges))}{caught}"
    return f"{node.role} of group {node.group}"


def format_shape(shape: Sequence[int]) -> str:
    """``(2, 3)``, without the comma of a tuple of one.

    >>> format_shape((2, 3)), format_shape((4,)), format_shape(())
    ('(2, 3)', '(4)', '()')
    """
    return f"({', '.join(map(str, shape))})"


def format_bytes(number: int) -> str:
    """Bytes in the unit that suits, to three digits; powers of ten.

    >>> format_bytes(999), format_bytes(1234), format_bytes(46_170_000), format_bytes(-2_000)
    ('999 B', '1.23 kB', '46.2 MB', '-2 kB')
    """
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            break
        value /= 1000
    else:
        unit = "TB"
    return f"{value:.3g} {unit}"
