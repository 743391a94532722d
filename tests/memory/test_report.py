"""A timeline made by hand: its curve, its peaks and what holds them, counted in the head."""

import pytest

from mindspore_zb.memory.report import LayerWeights, MemoryStep, MemoryTimeline
from mindspore_zb.memory.storages import SavedStorage


def storage(nbytes, layer, saved, freed, operations=("MatMul",), freed_in="dx"):
    return SavedStorage(nbytes, (nbytes,), "Int8", layer, "", operations, "net.py:1", saved, freed, "forward",
                        freed_in if freed is not None else None)


def step(name, first, last, saved, held=0, grads=0):
    return MemoryStep(name, (), first, last, saved, held, grads)


def timeline(storages, steps):
    return MemoryTimeline("pynative", None, tuple(steps), tuple(storages), (LayerWeights("a.x", ("w",), 7),), 7, ())


@pytest.fixture(name="usual")
def fixture_usual():
    """Saves 10, 20, 5; dx frees 20 and 10; dw frees 5."""
    return timeline(
        [storage(10, "a.x", 0, 4), storage(20, "a.y", 1, 3), storage(5, "b", 2, 5, ("Tanh", "MatMul"), "dw 0")],
        [step("forward", 0, 3, 35), step("dx", 3, 5, 5, held=8), step("dw 0", 5, 6, 0, grads=30)])


def test_curve(usual):
    assert usual.curve() == [10, 30, 35, 15, 5, 0]


def test_peak_of_each_step(usual):
    assert [(peak.step, peak.nbytes, peak.event) for peak in usual.step_peaks()] == [
        ("forward", 35, 3), ("dx", 15, 4), ("dw 0", 30, 6)]
    assert usual.peak == usual.step_peaks()[0]


def test_what_waited_before_a_step_counts_while_it_runs():
    found = timeline([storage(50, "a", 0, 2, freed_in="dw 0"), storage(1, "a", 1, None)], [
        step("forward", 0, 1, 50), step("dx", 1, 1, 50, held=40), step("dw 0", 1, 3, 1, grads=3)])
    assert [(peak.nbytes, peak.saved_bytes, peak.held_bytes) for peak in found.step_peaks()] == [
        (50, 50, 0), (90, 50, 40), (91, 51, 40)]
    assert found.peak.event == 2
    assert [one.nbytes for one in found.alive_at(found.peak.event)] == [50, 1]


def test_the_peak_may_be_in_the_middle_of_a_step():
    found = timeline([storage(10, "a", 0, None), storage(20, "a", 1, 2, freed_in="forward"), storage(5, "b", 3, None)],
                     [step("forward", 0, 4, 15)])
    assert (found.peak.nbytes, found.peak.event) == (30, 2)
    assert [one.nbytes for one in found.alive_at(found.peak.event)] == [10, 20]


def test_a_step_without_events_has_what_was_there():
    found = timeline([storage(9, "a", 0, None)], [step("forward", 0, 1, 9, grads=4), step("optimizer", 1, 1, 9)])
    assert [peak.nbytes for peak in found.step_peaks()] == [13, 13]


def test_holders_and_operations(usual):
    assert [(one.layer, one.saved_by, one.count, one.nbytes) for one in usual.holders()] == [
        ("a.y", "MatMul", 1, 20), ("a.x", "MatMul", 1, 10), ("b", "Tanh+MatMul", 1, 5)]
    assert [(one.layer, one.count, one.nbytes) for one in usual.holders(depth=1)] == [("a", 2, 30), ("b", 1, 5)]
    assert [(one.saved_by, one.count, one.nbytes) for one in usual.operations()] == [
        ("MatMul", 2, 30), ("Tanh+MatMul", 1, 5)]


def test_layers(usual):
    assert [(one.layer, one.saved_bytes, one.after_dx_bytes, one.grad_bytes) for one in usual.by_layer()] == [
        ("a.x", 10, 0, 7), ("a.y", 20, 0, 0), ("b", 5, 5, 0)]
    assert [(one.layer, one.saved_bytes, one.grad_bytes) for one in usual.by_layer(1)] == [("a", 30, 7), ("b", 5, 0)]


def test_an_operation_that_never_ran_is_not_made_up():
    assert storage(1, "", 0, None, ()).saved_by == "?"


def test_nothing_at_all():
    empty = timeline([], [step("forward", 0, 0, 0)])
    assert empty.peak.nbytes == 0 and empty.curve() == [] and empty.holders() == []
