"""Timelines as pictures; they read plain data, so there is no MindSpore here."""

from itertools import combinations

import pytest

from mindspore_zb.draw.timeline import LOOKS, draw_timeline, timeline_figure
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError
from mindspore_zb.schedule import Costs, generate, simulate

FigureCanvasAgg = pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg

COSTS = Costs(18.522, 18.086, 9.337, 0.601)


def entries(name, stages, microbatches):
    return simulate(generate(name, stages=stages, microbatches=microbatches), COSTS).entries()


def parts(figure, gid):
    axes = figure.axes[0]
    return [part for part in (*axes.patches, *axes.texts) if part.get_gid() == gid]



@pytest.mark.parametrize("suffix, start", [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")])
def test_writes_a_picture_of_the_kind_that_the_suffix_names(tmp_path, suffix, start):
    path = tmp_path / f"run{suffix}"
    draw_timeline(entries("zb-h1", 2, 4), path, title="ZB-H1", unit="ms")
    content = path.read_bytes()
    assert content.startswith(start) and len(content) > 5000


def test_each_computation_is_a_box_from_its_start_to_its_end():
    figure = timeline_figure([(1, "1F3", 5.0, 7.0), (1, "1SEND_F3", 7.0, 7.0), (0, "0RECV_B3", 4.0, 8.0),
                              (0, "0B3", 8.0, 9.0), (0, "0W3.0/2", 9.0, 9.5)])
    boxes = {kind: [(box.get_x(), box.get_width(), round(box.get_y() + box.get_height() / 2)) for box in
                    parts(figure, kind)] for kind in LOOKS}
    assert boxes == {"F": [(1.0, 2.0, 1)], "B": [(4.0, 1.0, 0)], "W": [(5.0, 0.5, 0)]}


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2", "zb-v"])
def test_8_ranks_and_24_microbatches_are_legible(name):
    """Every computation has its number, of at least 4 points, inside of its box."""
    run = entries(name, 8, 24)
    figure = timeline_figure(run)
    renderer = FigureCanvasAgg(figure).get_renderer()
    numbers = parts(figure, "number")
    boxes = [box for kind in LOOKS for box in parts(figure, kind)]
    assert len(numbers) == len(boxes) == sum(action.computes for _, action, _, _ in run)
    assert min(number.get_fontsize() for number in numbers) >= 4
    assert max(figure.get_size_inches()) <= 42
    by_place = {(round(box.get_x() + box.get_width() / 2, 6), round(box.get_y() + box.get_height() / 2)): box
                for box in boxes}
    for number in numbers:
        x, y = number.get_position()
        text, box = number.get_window_extent(renderer), by_place[round(x, 6), round(y)].get_window_extent(renderer)
        assert box.x0 <= text.x0 and text.x1 <= box.x1 and box.y0 <= text.y0 and text.y1 <= box.y1, number


def lightness(colour):
    """L* of CIELAB, 0 to 100, of ``#RRGGBB``."""
    channels = [int(colour[place:place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * luminance ** (1 / 3) - 16


def test_kinds_differ_in_lightness():
    lights = [lightness(fill) for fill, _ in LOOKS.values()] + [100.0]  # idle is white
    assert all(abs(one - other) >= 15 for one, other in combinations(lights, 2)), lights


def test_numbers_stand_out_from_their_box():
    for fill, text in LOOKS.values():
        assert abs(lightness(fill) - lightness(text)) >= 50


def test_the_later_chunk_has_a_band():
    run = entries("zb-v", 2, 3)
    figure = timeline_figure(run)
    assert len(parts(figure, "chunk")) == sum(action.computes and action.stage >= 2 for _, action, _, _ in run) == 18
    assert not parts(timeline_figure(entries("zb-h1", 2, 3)), "chunk")


def test_title_ranks_and_unit():
    figure = timeline_figure(entries("zb-h1", 3, 3), title="A title", unit="ms")
    assert "A title" in [text.get_text() for text in figure.texts]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]
    assert figure.axes[0].get_xlabel() == "time in ms"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["F: forward", "B: dx", "W: dw", "idle"]


def test_a_very_long_run_stays_within_the_page_and_drops_numbers_that_would_not_fit():
    figure = timeline_figure([(0, f"0F{number}", number, number + 1) for number in range(2000)])
    assert max(figure.get_size_inches()) <= 42
    assert not parts(figure, "number")


def overlapping(figure):
    """Pairs of texts that lie over each other, and texts that reach over the edge of the page."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes = figure.axes[0]
    figure.draw(renderer)
    shown = [tick.label1 for tick in axes.xaxis.get_major_ticks() if tick.get_loc() <= axes.get_xlim()[1]]
    texts = [*figure.texts, *axes.texts, *axes.get_yticklabels(), *shown, axes.xaxis.label,
             axes.xaxis.get_offset_text(), *figure.legends[0].get_texts()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text()]
    width, height = figure.canvas.get_width_height()
    found = [name for name, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height]
    ordered = sorted(boxes, key=lambda item: item[1].x0)
    for place, (name, box) in enumerate(ordered):
        for other, behind in ordered[place + 1:]:
            if behind.x0 >= box.x1 - 0.5:
                break
            if box.y0 < behind.y1 - 0.5 and behind.y0 < box.y1 - 0.5:
                found.append((name, other))
    return found


@pytest.mark.parametrize("costs", [COSTS, Costs(1, 1, 1), Costs(1e-9, 2e-9, 0), Costs(1, 1, 1e-6), Costs(1e90, 1, 1e-90),
                                   Costs(0, 0, 0), Costs(f=[1e-3] * 8 + [1] * 8)],
                         ids=["usual", "equal", "tiny", "thin dw", "one thing only", "no time", "uneven"])
@pytest.mark.parametrize("name, stages, microbatches", [("zb-h1", 1, 1), ("zb-v", 2, 2), ("zb-h2", 2, 2), ("zb-v", 4, 6)])
def test_no_text_lies_over_another_or_over_the_edge(costs, name, stages, microbatches):
    if isinstance(costs.f, tuple):
        costs = Costs(f=costs.f[-stages:])
    run = simulate(generate(name, stages=stages, microbatches=microbatches), costs).entries()
    figure = timeline_figure(run, title=f"{name}: a title of usual length, bubble rate 0.1234", unit="ms")
    assert max(figure.get_size_inches()) <= 42
    assert not overlapping(figure)


@pytest.mark.slow
def test_16_ranks_and_64_microbatches_are_legible():
    figure = timeline_figure(entries("zb-h1", 16, 64))
    assert max(figure.get_size_inches()) <= 42
    assert not overlapping(figure)
    numbers = parts(figure, "number")
    assert len(numbers) > 0.9 * 16 * 64 * 3 and min(number.get_fontsize() for number in numbers) >= 4


def test_thin_boxes_do_not_stretch_the_picture_and_are_no_border_alone():
    run = simulate(generate("zb-h1", stages=2, microbatches=12), Costs(1, 1, 0.01)).entries()
    figure = timeline_figure(run)
    assert figure.get_size_inches()[0] < 15
    points = figure.axes[0].get_window_extent().width / figure.dpi * 72 / figure.axes[0].get_xlim()[1]
    for box in parts(figure, "W"):
        assert box.get_linewidth() <= 0.2 * box.get_width() * points


def test_very_many_ranks_keep_within_the_page_and_name_some_of_them():
    figure = timeline_figure([(rank, f"{rank}F0", rank, rank + 1) for rank in range(0, 600, 60)] + [(599, "599F0", 0, 1)])
    assert max(figure.get_size_inches()) <= 42
    assert not overlapping(figure)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[0] == "rank 0" and 100 < len(labels) < 600


def test_a_title_is_in_one_line_smaller_then_cut_and_no_formula():
    for title in ("a $x^$ title", "many words " * 8, "very many words " * 40, "two\nlines"):
        figure = timeline_figure(entries("zb-h1", 2, 2), title=title, unit="$ms")
        shown = next(text for text in figure.texts if text.get_gid() == "title")
        assert not overlapping(figure) and shown.get_fontsize() >= 6 and "\n" not in shown.get_text()
    assert "..." in timeline_figure(entries("1f1b", 1, 1), title="x" * 400).texts[0].get_text()


def test_more_than_fits_a_picture_is_refused():
    with pytest.raises(ArgumentValueError, match="holds 50001 computations, and a picture has room for 50000: write a "
                                                 "trace"):
        timeline_figure([(0, "0F0", number, number + 1) for number in range(50_001)])


def test_runs_without_duration():
    draw = timeline_figure([(0, "0F0", 1.0, 1.0), (0, "0SEND_F0", 1.0, 1.0)])
    assert len(parts(draw, "F")) == 1


@pytest.mark.parametrize("name", ["run.pdf", "run"])
def test_other_suffix(tmp_path, name):
    with pytest.raises(ArgumentValueError, match=r"path must end in \.png or \.svg"):
        draw_timeline(entries("1f1b", 1, 1), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_paths_and_entries_that_cannot_be_used(tmp_path):
    with pytest.raises(ArgumentTypeError, match="path must be a str or a path, not a int"):
        draw_timeline(entries("1f1b", 1, 1), 3)
    with pytest.raises(ArgumentValueError, match="cannot be written: No such file or directory"):
        draw_timeline(entries("1f1b", 1, 1), tmp_path / "missing" / "run.png")
    with pytest.raises(ArgumentValueError, match="entries holds nothing to draw"):
        draw_timeline([], tmp_path / "run.png")
    with pytest.raises(ArgumentValueError, match="entries holds 'optimizer', which is no action"):
        draw_timeline([(0, "optimizer", 0, 1)], tmp_path / "run.png")
    with pytest.raises(ArgumentValueError, match="0F0 on rank 0 ends at 1, before it starts at 2"):
        draw_timeline([(0, "0F0", 2, 1)], tmp_path / "run.png")


def test_without_matplotlib(tmp_path, without_package):
    without_package("matplotlib")
    with pytest.raises(UnsupportedError, match="drawing needs matplotlib: pip install matplotlib"):
        draw_timeline(entries("1f1b", 1, 1), tmp_path / "run.png")
