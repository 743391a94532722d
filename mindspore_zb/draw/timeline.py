"""Draw what the ranks of a pipeline did, and when, to a file: one row for each rank, time to the right.

F, B and W differ in lightness, so that they are told apart without colour vision and in print; idle time is left
white. Colours are near those of Okabe and Ito, "Color Universal Design" (2008).
"""

from typing import Any, Iterable, List, Tuple

from mindspore_zb.draw.picture_file import check_picture_path, figure_class, save_picture
from mindspore_zb.draw.spans import Span, read_spans

LOOKS = {  # fill, text
    "F": ("#A6D5F2", "#000000"),
    "B": ("#D98A00", "#000000"),
    "W": ("#005A41", "#FFFFFF"),
}
MEANINGS = {"F": "F: forward", "B": "B: dx", "W": "W: dw"}
BAND = "#CC1177"

ROW, BOX = 0.44, 0.38  # inches
LEFT, RIGHT, TOP, BOTTOM = 0.7, 0.2, 0.66, 0.5
LEAST_WIDTH, MOST_WIDTH = 7.0, 40.0
WANTED_BOX = 0.115  # inches of a short box: room for two digits
FONT, LEAST_FONT = 7.0, 4.0
DIGIT = 0.62  # width of a digit by its height


def draw_timeline(entries: Iterable[Tuple[int, Any, float, float]], path: Any, *, title: str = "",
                  unit: str = "") -> None:
    """Draw a simulated or measured run to a PNG or SVG file.

    Args:
        entries: ``(rank, action, start, end)``; the action itself or its text, such as ``2F0``. Communication is left
            out: a rank that waits is idle.
        path: where to; the suffix names the format.
        title: above the picture.
        unit: of the times.

    Raises:
        ArgumentTypeError, ArgumentValueError: the path or the entries cannot be used.
        UnsupportedError: matplotlib is not installed.
    """
    check_picture_path(path)
    save_picture(timeline_figure(entries, title=title, unit=unit), path)


def timeline_figure(entries: Iterable[Tuple[int, Any, float, float]], *, title: str = "", unit: str = "") -> Any:
    """The drawing as a matplotlib ``Figure``; see :func:`draw_timeline`."""
    figure_of = figure_class()
    spans = [span for span in read_spans(entries) if span.kind in LOOKS]
    ranks = 1 + max((span.rank for span in spans), default=0)
    length = max((span.end for span in spans), default=0.0) or 1.0
    width = _width(spans, length)
    figure = figure_of(figsize=(width + LEFT + RIGHT, ranks * ROW + TOP + BOTTOM), dpi=150)
    page_width, page_height = figure.get_size_inches()
    axes = figure.add_axes((LEFT / page_width, BOTTOM / page_height, width / page_width, ranks * ROW / page_height))
    axes.set_xlim(0, length)
    axes.set_ylim(ranks - 0.5, -0.5)  # downwards
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel(f"time in {unit}" if unit else "time", fontsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for span in spans:
        _draw_span(axes, span, ranks, width / length)
    _draw_head(figure, title, any(span.stage >= ranks for span in spans))
    return figure


def _width(spans: List[Span], length: float) -> float:
    """Inches, so that a box of the median duration has room for its number."""
    durations = sorted(span.end - span.start for span in spans if span.end > span.start)
    usual = durations[len(durations) // 4] if durations else length  # most boxes are at least that long
    return min(max(length / usual * WANTED_BOX, LEAST_WIDTH), MOST_WIDTH)


def _draw_span(axes: Any, span: Span, ranks: int, inches: float) -> None:
    from matplotlib.patches import Rectangle

    fill, colour = LOOKS[span.kind]
    length = span.end - span.start
    height = BOX / ROW
    axes.add_patch(Rectangle((span.start, span.rank - height / 2), length, height, facecolor=fill,
                             edgecolor="#FFFFFF", linewidth=0.5, gid=span.kind))
    if span.stage >= ranks:
        axes.add_patch(Rectangle((span.start, span.rank + height / 2 - 0.16), length, 0.16, facecolor=BAND,
                                 edgecolor="#FFFFFF", linewidth=0.5, gid="chunk"))
    text = str(span.microbatch)
    size = min(FONT, length * inches * 72 * 0.85 / (DIGIT * len(text)))
    if size >= LEAST_FONT:
        axes.text(span.start + length / 2, span.rank - 0.06 * (span.stage >= ranks), text, fontsize=size,
                  color=colour, ha="center", va="center", gid="number", clip_on=True)


def _draw_head(figure: Any, title: str, chunks: bool) -> None:
    from matplotlib.patches import Patch

    height = figure.get_size_inches()[1]
    left = LEFT / figure.get_size_inches()[0]
    figure.text(left, 1 - 0.12 / height, title, fontsize=10, va="top", gid="title")
    patches = [Patch(facecolor=LOOKS[kind][0], edgecolor="#000000", linewidth=0.5, label=meaning)
               for kind, meaning in MEANINGS.items()]
    patches.append(Patch(facecolor="#FFFFFF", edgecolor="#000000", linewidth=0.5, label="idle"))
    if chunks:
        patches.append(Patch(facecolor=BAND, label="band: a later chunk of the rank"))
    figure.legend(handles=patches, loc="upper left", bbox_to_anchor=(left, 1 - 0.32 / height), ncol=len(patches),
                  fontsize=8, frameon=False, borderaxespad=0, borderpad=0.2, handlelength=1.2, columnspacing=1.4)
