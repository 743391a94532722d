"""Draw an explained backward graph to a file, outputs on top."""

from typing import Any, Dict, List, Sequence, Tuple

from mindspore_zb.draw.layout import layered_layout, longest_distances
from mindspore_zb.draw.picture_file import check_picture_path, figure_class, save_picture
from mindspore_zb.draw.style import Look, legend_looks, look_of
from mindspore_zb.draw.text import format_shape
from mindspore_zb.errors import ArgumentValueError

COLUMN, ROW = 1.35, 0.66  # inches from node to node
WIDTH, HEIGHT = 1.2, 0.4  # inches of a node
MARGIN, LEAST_WIDTH = 0.5, 8.0  # inches
LEGEND_ROW, LEGEND_COLUMNS = 0.24, 2
FONT = 6.5
MAX_LETTERS = 20


def draw_explanation(explanation: Any, path: Any, max_nodes: int = 300) -> None:
    """See :meth:`mindspore_zb.explanation.Explanation.draw`."""
    check_picture_path(path)
    if max_nodes < 1:
        raise ArgumentValueError(f"max_nodes must be at least 1, not {max_nodes}")
    save_picture(graph_figure(explanation, max_nodes), path)


def graph_figure(explanation: Any, max_nodes: int = 300) -> Any:
    """The drawing as a matplotlib ``Figure``.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    figure_of = figure_class()
    kept, nodes, edges = _top(explanation.nodes, max_nodes)
    layout = layered_layout(len(nodes), [(parent, child) for parent, child, _ in edges])
    looks, unnamed = legend_looks(nodes)
    head = MARGIN + LEGEND_ROW * (2 + -(-(len(looks) + bool(unnamed)) // LEGEND_COLUMNS))
    columns = max([0.0, *layout.x, *(x for path in layout.paths for x, _ in path)])
    width = max((columns + 1) * COLUMN + MARGIN, LEAST_WIDTH)
    height = (max(layout.layer, default=0) + 1) * ROW + MARGIN + head
    figure = figure_of(figsize=(width, height), dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)  # downwards
    axes.axis("off")
    place = _Place((width - columns * COLUMN) / 2, head + ROW / 2)
    for (_, _, slot), path in zip(edges, layout.paths):
        _draw_edge(axes, [place(*point) for point in path], slot)
    for number, (node, x, layer) in enumerate(zip(nodes, layout.x, layout.layer)):
        _draw_node(axes, node, kept[number], place(x, layer))
    _draw_head(axes, explanation, len(explanation.nodes) - len(nodes), looks, unnamed)
    return figure


class _Place:
    """From places in the layout to inches on the page."""

    def __init__(self, left: float, top: float):
        self._left = left
        self._top = top

    def __call__(self, x: float, layer: float) -> Tuple[float, float]:
        return self._left + x * COLUMN, self._top + layer * ROW


def _top(nodes: Sequence[Any], limit: int) -> Tuple[List[int], List[Any], List[Tuple[int, int, int]]]:
    """The first nodes from the outputs down: their numbers, themselves, and ``(parent, child, slot)`` between them."""
    edges = [(number, *edge) for number, node in enumerate(nodes) for edge in node.edges if edge is not None]
    distance = longest_distances(len(nodes), [edge[:2] for edge in edges])
    kept = sorted(sorted(range(len(nodes)), key=lambda number: (distance[number], number))[:limit])
    place = {number: index for index, number in enumerate(kept)}
    return kept, [nodes[number] for number in kept], [
        (place[parent], place[child], slot) for parent, child, slot in dict.fromkeys(edges)
        if parent in place and child in place]


def _draw_edge(axes: Any, points: Sequence[Tuple[float, float]], slot: int) -> None:
    (x, y), (end_x, end_y) = points[0], points[-1]
    points = [(x, y + HEIGHT / 2), *points[1:-1], (end_x, end_y - HEIGHT / 2)]
    axes.plot([x for x, _ in points[:-1]], [y for _, y in points[:-1]], color="#444444", linewidth=0.8,
              solid_joinstyle="round", zorder=1)
    axes.annotate("", xy=points[-1], xytext=points[-2], zorder=1,
                  arrowprops={"arrowstyle": "-|>", "color": "#444444", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0})
    if slot:
        (x, y), (end_x, end_y) = points[-2:]
        axes.text((x + end_x) / 2, (y + end_y) / 2, f":{slot}", fontsize=FONT, ha="center", va="center", zorder=3,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})


def _draw_node(axes: Any, node: Any, number: int, centre: Tuple[float, float]) -> None:
    from matplotlib.patheffects import withStroke
    axes.add_patch(_patch(look_of(node), *centre))
    shape = format_shape(node.shapes[0]) if node.shapes and node.shapes[0] is not None else ""
    group = f"g{node.group}" if node.group is not None else ""
    detail = "  ".join(part for part in (f"#{number}", shape, group) if part)
    if len(detail) > MAX_LETTERS:
        detail = f"#{number}  {group}"
    axes.text(*centre, f"{_shortened(node.name)}\n{detail}", fontsize=FONT, ha="center", va="center",
              zorder=3, linespacing=1.15, path_effects=[withStroke(linewidth=2, foreground="white")])
    if node.root_slots:
        x, y = centre
        axes.annotate("output", xy=(x, y - HEIGHT / 2), xytext=(x, y - HEIGHT / 2 - 0.3), fontsize=FONT, ha="center",
                      arrowprops={"arrowstyle": "-|>", "color": "black", "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0})


def _shortened(text: str) -> str:
    """The end of a name tells more than its start."""
    return text if len(text) <= MAX_LETTERS else "…" + text[1 - MAX_LETTERS:]


def _patch(look: Look, x: float, y: float, width: float = WIDTH, height: float = HEIGHT) -> Any:
    from matplotlib.patches import Ellipse, FancyBboxPatch, Polygon
    style: Dict[str, Any] = {"facecolor": look.colour, "edgecolor": "black", "linewidth": look.line, "zorder": 2,
                             "linestyle": "--" if look.dashed else "-"}
    if look.hatch:
        style["hatch"] = look.hatch
    left, right, top, bottom = x - width / 2, x + width / 2, y - height / 2, y + height / 2
    if look.shape == "ellipse":
        return Ellipse((x, y), width, height, **style)
    if look.shape == "octagon":
        cut = height * 0.3
        return Polygon([(left + cut, top), (right - cut, top), (right, top + cut), (right, bottom - cut),
                        (right - cut, bottom), (left + cut, bottom), (left, bottom - cut), (left, top + cut)],
                       closed=True, **style)
    box = f"round,pad=0,rounding_size={height * 0.4}" if look.shape == "round" else "square,pad=0"
    return FancyBboxPatch((left, top), width, height, boxstyle=box, **style)


def _draw_head(axes: Any, explanation: Any, left_out: int, looks: Sequence[Look], unnamed: int) -> None:
    """Title and legend, at the top left."""
    split = explanation.groups or any(node.role not in ("operation", "leaf") for node in explanation.nodes)
    title = f"Backward graph: {len(explanation.nodes):,} nodes"
    title += f", {len(explanation.groups):,} groups of weights" if split or not explanation.nodes else ", not split"
    if left_out:
        title += f"; {left_out:,} nodes further from the outputs are left out"
    axes.text(MARGIN / 2, 0.25, title, fontsize=FONT + 3, va="center", gid="title")
    entries = [(look, look.label) for look in looks]
    rows = -(-(len(entries) + bool(unnamed)) // LEGEND_COLUMNS)
    for place in range(len(entries) + bool(unnamed)):
        x = MARGIN / 2 + (place // rows) * LEAST_WIDTH / LEGEND_COLUMNS
        y = 0.25 + LEGEND_ROW * (1 + place % rows)
        if place < len(entries):
            axes.add_patch(_patch(entries[place][0], x + 0.2, y, 0.4, 0.17))
            label = entries[place][1]
        else:
            label = f"{unnamed} more groups: the same looks, and their number as g..."
        axes.text(x + 0.5, y, label, fontsize=FONT + 1, va="center", gid="legend")
