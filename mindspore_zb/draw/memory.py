"""Draw what a training step holds over its course: saved bytes stacked by layer, and what else waits on top of them.

From left to right in the order of saves and frees, as times are not those of an unwatched step. Colours: Okabe and Ito,
"Color Universal Design" (2008); hatches tell what is counted at the ends of steps only.
"""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mindspore_zb.draw.picture_file import check_picture_path, figure_class, save_picture
from mindspore_zb.draw.text import format_bytes

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
OTHERS = "#999999"
OTHERS_LABEL = "other layers"
HELD = ("waits for dw", "#FFFFFF", "////")
GRADS = ("gradients of weights", "#FFFFFF", "....")
NO_LAYER = "the net itself"

WIDTH, HEIGHT = 10.0, 5.2  # inches
LEFT, RIGHT, BOTTOM, TOP = 0.9, 0.25, 0.55, 0.7
LEGEND = 2.6  # inches at the right
LEAST_SHARE = 0.02
"""The least part of the width that a step has, as steps of compiled code save and free nothing."""
END = 0.02
"""How much further the picture goes, to show what is held when all is over."""
LABEL = 0.62  # inches that the name of a step needs
LETTERS = 26


@dataclass(frozen=True)
class Course:
    """What is to be drawn.

    Attributes:
        x: places from 0 to 1, and one behind the end; a value holds from its place to the next one.
        bands: ``(label, bytes at each place)``, the lowest first.
        held, grads: bytes at each place.
        starts: ``(place, name)`` of each step.
        peak: ``(place, bytes)``.
    """

    x: Tuple[float, ...]
    bands: Tuple[Tuple[str, Tuple[int, ...]], ...]
    held: Tuple[int, ...]
    grads: Tuple[int, ...]
    starts: Tuple[Tuple[float, str], ...]
    peak: Tuple[float, int]


def draw_memory(timeline: Any, path: Any, depth: Optional[int] = None) -> None:
    """See :meth:`mindspore_zb.memory.report.MemoryTimeline.draw`."""
    check_picture_path(path)
    save_picture(memory_figure(timeline, depth), path)


def course_of(timeline: Any, depth: Optional[int] = None) -> Course:
    """The course of a timeline, with at most ``len(COLOURS)`` layers apart from the others."""
    layers, labels = _layers(timeline, depth)
    changes = {event: (layer, sign * storage.nbytes) for storage, layer in zip(timeline.storages, layers)
               for event, sign in ((storage.saved, 1), (storage.freed, -1)) if event is not None}
    rows: Dict[str, List[int]] = {label: [] for label in labels}
    x: List[float] = []
    held: List[int] = []
    grads: List[int] = []
    starts = []
    now = dict.fromkeys(labels, 0)
    before = (0, 0)
    tops: List[int] = []

    def point(place: float, others: Tuple[int, int]) -> None:
        x.append(place)
        for label in labels:
            rows[label].append(now[label])
        held.append(others[0])
        grads.append(others[1])
        tops.append(sum(now.values()) + sum(others))

    for step, (start, end) in zip(timeline.steps, _places(timeline.steps)):
        starts.append((start, step.name))
        point(start, before)
        for number, event in enumerate(range(step.first, step.last)):
            layer, change = changes[event]
            now[layer] += change
            point(start + (end - start) * (number + 1) / (step.last - step.first + 1), before)
        before = (step.held_bytes, step.grad_bytes)
        point(end, before)
    point(1 + END, before)
    top = max(range(len(tops)), key=tops.__getitem__)
    return Course(tuple(x), tuple((label, tuple(rows[label])) for label in labels), tuple(held), tuple(grads),
                  tuple(starts), (x[top], tops[top]))


def _layers(timeline: Any, depth: Optional[int]) -> Tuple[List[str], List[str]]:
    """The band of each storage, and all bands: the layers that save most, in the order of the forward, then others."""
    names = [".".join(storage.layer.split(".")[:depth]) or NO_LAYER for storage in timeline.storages]
    sums: Dict[str, int] = {}
    for name, storage in zip(names, timeline.storages):
        sums[name] = sums.get(name, 0) + storage.nbytes
    chosen = set(sorted(sums, key=lambda name: -sums[name])[:len(COLOURS)])
    layers = [name if name in chosen else OTHERS_LABEL for name in names]
    return layers, [name for name in sums if name in chosen] + [OTHERS_LABEL] * (len(sums) > len(chosen))


def _places(steps: Sequence[Any]) -> List[Tuple[float, float]]:
    """Where each step starts and ends, from 0 to 1."""
    events = sum(step.last - step.first for step in steps)
    shares = [max(step.last - step.first, LEAST_SHARE * events, 1) for step in steps]
    places, done = [], 0.0
    for share in shares:
        places.append((done / sum(shares), (done + share) / sum(shares)))
        done += share
    return places


def memory_figure(timeline: Any, depth: Optional[int] = None) -> Any:
    """The drawing as a matplotlib ``Figure``.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    figure = figure_class()(figsize=(WIDTH + LEGEND, HEIGHT), dpi=130)
    course = course_of(timeline, depth)
    total = WIDTH + LEGEND
    axes = figure.add_axes((LEFT / total, BOTTOM / HEIGHT, (WIDTH - LEFT - RIGHT) / total,
                            (HEIGHT - BOTTOM - TOP) / HEIGHT))
    base = [0] * len(course.x)
    handles = []
    for number, (label, values) in enumerate(course.bands):
        colour = OTHERS if label == OTHERS_LABEL else COLOURS[number % len(COLOURS)]
        handles.append(_band(axes, course.x, base, values, _shortened(label), facecolor=colour))
    for (label, colour, hatch), values in ((HELD, course.held), (GRADS, course.grads)):
        if any(values):
            handles.append(_band(axes, course.x, base, values, label, facecolor=colour, hatch=hatch))
    axes.set_xlim(0, 1 + END)
    axes.set_ylim(0, max(course.peak[1], 1) * 1.12)
    _draw_steps(axes, course)
    _draw_peak(axes, course, timeline.peak)
    figure.legend(handles=handles[::-1], loc="upper left", bbox_to_anchor=(WIDTH / total, 1 - TOP / HEIGHT),
                  fontsize=8, frameon=False)
    figure.text(LEFT / total, 1 - 0.16 / HEIGHT, _title(timeline), fontsize=10, va="top", gid="title")
    return figure


def _title(timeline: Any) -> str:
    return f"Memory of one training step, {timeline.engine} engine: peak {format_bytes(timeline.peak.nbytes)}"


def _band(axes: Any, x: Sequence[float], base: List[int], values: Sequence[int], label: str, **look: Any) -> Any:
    """Fill from ``base`` upwards, and raise ``base``."""
    upper = [low + value for low, value in zip(base, values)]
    drawn = axes.fill_between(x, base, upper, step="post", label=label, edgecolor="#333333", linewidth=0.4, gid=label,
                              **look)
    base[:] = upper
    return drawn


def _draw_steps(axes: Any, course: Course) -> None:
    """A line where each step starts, and its name if there is room."""
    room = LABEL / (WIDTH - LEFT - RIGHT)
    ends = [place for place, _ in course.starts[1:]] + [1.0]
    axes.axvline(1.0, color="#555555", linewidth=0.6, linestyle=":")
    ticks: List[float] = []
    names: List[str] = []
    written = -room
    for (place, name), end in zip(course.starts, ends):
        axes.axvline(place, color="#555555", linewidth=0.6, linestyle=":")
        middle = (place + end) / 2
        if middle - written >= room:
            ticks.append(middle)
            names.append(name)
            written = middle
    axes.set_xticks(ticks, names, fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.tick_params(axis="y", labelsize=8)
    axes.yaxis.set_major_formatter(lambda value, _: format_bytes(int(value)))
    axes.set_xlabel("saves and frees in their order", fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_peak(axes: Any, course: Course, peak: Any) -> None:
    place, nbytes = course.peak
    axes.plot([place], [nbytes], marker="v", color="#000000", markersize=6, gid="peak", clip_on=False)
    axes.annotate(f"peak in {peak.step}: {format_bytes(peak.nbytes)}", (place, nbytes), xytext=(0, 6),
                  textcoords="offset points", fontsize=8, ha="left" if place < 0.5 else "right", va="bottom")


def _shortened(text: str) -> str:
    """The end of a name tells more than its start."""
    return text if len(text) <= LETTERS else "…" + text[1 - LETTERS:]
