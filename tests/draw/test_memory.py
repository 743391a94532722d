"""Drawing a memory timeline: it reads plain data, made by hand here."""

from types import SimpleNamespace

import pytest

from mindspore_zb.draw.memory import COLOURS, NO_LAYER, course_of, draw_memory, memory_figure
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError

pytest.importorskip("matplotlib")


def storage(layer, nbytes, saved, freed):
    return SimpleNamespace(layer=layer, nbytes=nbytes, saved=saved, freed=freed)


def step(name, first, last, held=0, grads=0):
    return SimpleNamespace(name=name, first=first, last=last, held_bytes=held, grad_bytes=grads)


def timeline(storages, steps, peak=35, peak_step="forward"):
    return SimpleNamespace(engine="pynative", storages=storages, steps=steps,
                           peak=SimpleNamespace(nbytes=peak, step=peak_step))


@pytest.fixture(name="usual")
def fixture_usual():
    return timeline([storage("a.x", 10, 0, 4), storage("", 20, 1, 3), storage("a.y", 5, 2, None)],
                    [step("forward", 0, 3), step("dx", 3, 5, held=8), step("optimizer", 5, 5, grads=30)])


def texts(figure, gid):
    return [text.get_text() for text in figure.texts if text.get_gid() == gid]


def test_course(usual):
    course = course_of(usual)
    assert dict(course.bands) == {
        "a.x": (0, 10, 10, 10, 10, 10, 10, 0, 0, 0, 0, 0), NO_LAYER: (0, 0, 20, 20, 20, 20, 0, 0, 0, 0, 0, 0),
        "a.y": (0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5)}
    assert course.held == (0,) * 8 + (8, 8, 0, 0) and course.grads == (0,) * 10 + (30, 30)
    assert list(course.x) == sorted(course.x) and course.x[-2:] == (1.0, 1.02)
    assert [name for _, name in course.starts] == ["forward", "dx", "optimizer"]
    assert course.peak == (course.x[3], 35)


def test_course_by_depth(usual):
    assert [label for label, _ in course_of(usual, depth=1).bands] == ["a", NO_LAYER]


def test_the_layers_that_save_most_are_apart_from_the_others():
    count = len(COLOURS) + 3
    storages = [storage(f"layer{place}", place + 1, place, None) for place in range(count)]
    bands = dict(course_of(timeline(storages, [step("forward", 0, count)])).bands)
    assert list(bands) == [f"layer{place}" for place in range(3, count)] + ["other layers"]
    assert bands["other layers"][-1] == 1 + 2 + 3


def test_figure(usual):
    figure = memory_figure(usual)
    assert texts(figure, "title") == ["Memory of one training step, pynative engine: peak 35 B"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["gradients of weights", "waits for dw", "a.y", NO_LAYER, "a.x"]
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["forward", "dx", "optimizer"]
    assert any("peak in forward: 35 B" == text.get_text() for text in axes.texts)


def test_compiled_code_saves_and_frees_nothing_and_is_drawn_all_the_same():
    steps = [step("forward", 0, 0, held=9), step("dx", 0, 0, held=7), step("dw 0", 0, 0, grads=3)]
    course = course_of(timeline([], steps, 9))
    assert course.bands == () and max(course.held) == 9
    assert [round(place, 3) for place, _ in course.starts] == [0.0, 0.333, 0.667]
    memory_figure(timeline([], [step("forward", 0, 0)], 0))


@pytest.mark.parametrize("suffix, start", [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_writes_a_picture_of_the_kind_that_the_suffix_names(tmp_path, usual, suffix, start):
    draw_memory(usual, tmp_path / f"memory{suffix}")
    content = (tmp_path / f"memory{suffix}").read_bytes()
    assert content.startswith(start) and len(content) > 5000


@pytest.mark.parametrize("path, error, message", [
    ("memory.pdf", ArgumentValueError, "path must end in .png or .svg"),
    ("missing/memory.png", ArgumentValueError, "cannot be written: No such file or directory"),
    (3, ArgumentTypeError, "path must be a str or a path, not a int")])
def test_bad_paths(tmp_path, usual, path, error, message):
    with pytest.raises(error, match=message):
        draw_memory(usual, path if isinstance(path, int) else tmp_path / path)


def test_without_matplotlib(tmp_path, usual, without_package):
    without_package("matplotlib")
    with pytest.raises(UnsupportedError, match="drawing needs matplotlib: pip install matplotlib"):
        draw_memory(usual, tmp_path / "memory.png")
