"""Timelines as pictures; they read plain data, so there is no MindSpore here."""

import builtins
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


def test_without_matplotlib(tmp_path, monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnsupportedError, match="drawing needs matplotlib: pip install matplotlib"):
        draw_timeline(entries("1f1b", 1, 1), tmp_path / "run.png")
