"""Draw what the ranks of a pipeline did, and when, to a file: one row for each rank, time to the right.

F, B and W differ in lightness, so that they are told apart without colour vision and in print; idle time is left
white. Colours are near those of Okabe and Ito, "Color Universal Design" (2008).
"""

import math
from collections import Counter
from typing import Any, Iterable, List, Tuple

from mindspore_zb.draw.picture_file import check_picture_path, figure_class, save_picture
from mindspore_zb.draw.spans import Span, read_spans
from mindspore_zb.errors import ArgumentValueError

LOOKS = {  # fill, text
    "F": ("#A6D5F2", "#000000"),
    "B": ("#D98A00", "#000000"),
    "W": ("#005A41", "#FFFFFF"),
}
MEANINGS = {"F": "F: forward", "B": "B: dx", "W": "W: dw"}
BAND = "#CC1177"

ROW, BOX = 0.44, 0.38  # inches
LEFT, RIGHT, TOP, BOTTOM = 0.7, 0.2, 0.66, 0.5
LEAST_WIDTH, MOST_WIDTH, MOST_HEIGHT = 7.0, 40.0, 40.0
WANTED_BOX, LARGE_BOX = 0.115, 0.3  # inches of a short box: room for two digits; of a box on average, at most
FONT, LEAST_FONT, LABEL_FONT, TITLE_FONT = 7.0, 4.0, 8.0, 10.0
DIGIT = 0.62  # width of a digit by its height
MOST_BOXES = 50_000
"""The most computations of a picture: with more, boxes are thinner than a line, and drawing takes minutes."""


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
        ArgumentTypeError, ArgumentValueError: the path or the entries cannot be used, or are more than fit a picture.
        UnsupportedError: matplotlib is not installed.
    """
    check_picture_path(path)
    save_picture(timeline_figure(entries, title=title, unit=unit), path)


def timeline_figure(entries: Iterable[Tuple[int, Any, float, float]], *, title: str = "", unit: str = "") -> Any:
    """The drawing as a matplotlib ``Figure``; see :func:`draw_timeline`."""
    figure_of = figure_class()
    spans = [span for span in read_spans(entries) if span.kind in LOOKS]
    if len(spans) > MOST_BOXES:
        raise ArgumentValueError(f"entries holds {len(spans)} computations, and a picture has room for {MOST_BOXES}: "
                                 "write a trace instead, or draw a part")
    ranks = 1 + max((span.rank for span in spans), default=0)
    length = max((span.end for span in spans), default=0.0) or 1.0
    width, height = _width(spans, length), min(ranks * ROW, MOST_HEIGHT)
    figure = figure_of(figsize=(width + LEFT + RIGHT, height + TOP + BOTTOM), dpi=150)
    page_width, page_height = figure.get_size_inches()
    axes = figure.add_axes((LEFT / page_width, BOTTOM / page_height, width / page_width, height / page_height))
    axes.set_xlim(0, length)
    axes.set_ylim(ranks - 0.5, -0.5)  # downwards
    axes.set_xlabel(f"time in {unit}" if unit else "time", fontsize=LABEL_FONT, parse_math=False)
    _label_axes(axes, ranks, height / ranks)
    for span in spans:
        _draw_span(axes, span, ranks, width / length, height / ranks)
    _draw_head(figure, title, any(span.stage >= ranks for span in spans))
    return figure


def _label_axes(axes: Any, ranks: int, row: float) -> None:
    """Names of the ranks as far as there is room; ``row`` is the height of a rank in inches."""
    step = max(1, math.ceil(LABEL_FONT / 72 * 1.2 / row))
    named = range(0, ranks, step)
    axes.set_yticks(named, [f"rank {rank}" for rank in named], fontsize=LABEL_FONT)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=LABEL_FONT)
    axes.xaxis.get_offset_text().set_fontsize(LABEL_FONT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _width(spans: List[Span], length: float) -> float:
    """Inches, so that most boxes have room for their numbers, but not much more where others are very thin."""
    durations = sorted(span.end - span.start for span in spans if span.end > span.start)
    usual = durations[len(durations) // 4] if durations else length  # most boxes are at least that long
    busiest = max(Counter(span.rank for span in spans).values(), default=0)
    return min(max(min(length / usual * WANTED_BOX, busiest * LARGE_BOX), LEAST_WIDTH), MOST_WIDTH)


def _draw_span(axes: Any, span: Span, ranks: int, inches: float, row: float) -> None:
    """``inches`` is the width of a unit of time, ``row`` the height of a rank."""
    from matplotlib.patches import Rectangle

    fill, colour = LOOKS[span.kind]
    length = span.end - span.start
    height = BOX / ROW
    line = min(0.5, length * inches * 72 * 0.1, row * 72 * 0.02)  # points; thin boxes are not all border
    axes.add_patch(Rectangle((span.start, span.rank - height / 2), length, height, facecolor=fill,
                             edgecolor="#FFFFFF", linewidth=line, gid=span.kind))
    if span.stage >= ranks:
        axes.add_patch(Rectangle((span.start, span.rank + height / 2 - 0.16), length, 0.16, facecolor=BAND,
                                 edgecolor="#FFFFFF", linewidth=line, gid="chunk"))
    text = str(span.microbatch)
    size = min(FONT, length * inches * 72 * 0.85 / (DIGIT * len(text)), row * 72 * 0.5)
    if size >= LEAST_FONT:
        axes.text(span.start + length / 2, span.rank - 0.06 * (span.stage >= ranks), text, fontsize=size,
                  color=colour, ha="center", va="center", gid="number", clip_on=True)


def _fitted(title: str, inches: float) -> Tuple[str, float]:
    """The title in one line, and its size: smaller to fit, then cut."""
    title = " ".join(title.split())
    size = max(min(TITLE_FONT, inches * 72 / (DIGIT * max(len(title), 1))), 0.6 * TITLE_FONT)
    most = int(inches * 72 / (DIGIT * size))
    return title if len(title) <= most else f"{title[:most - 3]}...", size


def _draw_head(figure: Any, title: str, chunks: bool) -> None:
    from matplotlib.patches import Patch

    height = figure.get_size_inches()[1]
    left = LEFT / figure.get_size_inches()[0]
    title, size = _fitted(title, figure.get_size_inches()[0] - LEFT - 0.1)
    figure.text(left, 1 - 0.12 / height, title, fontsize=size, va="top", gid="title", parse_math=False)
    patches = [Patch(facecolor=LOOKS[kind][0], edgecolor="#000000", linewidth=0.5, label=meaning)
               for kind, meaning in MEANINGS.items()]
    patches.append(Patch(facecolor="#FFFFFF", edgecolor="#000000", linewidth=0.5, label="idle"))
    if chunks:
        patches.append(Patch(facecolor=BAND, label="band: a later chunk of the rank"))
    figure.legend(handles=patches, loc="upper left", bbox_to_anchor=(left, 1 - 0.32 / height), ncol=len(patches),
                  fontsize=8, frameon=False, borderaxespad=0, borderpad=0.2, handlelength=1.2, columnspacing=1.4)
