"""Schedules by name: their computations, and arguments that cannot be used."""

import pytest

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.schedule import NAMES, Costs, generate, validate


def computations(name, stages, microbatches):
    schedule = generate(name, stages=stages, microbatches=microbatches)
    return [" ".join(map(str, schedule.computations(rank))) for rank in range(stages)]


def test_1f1b_written_out():
    assert computations("1f1b", 2, 3) == ["0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2",
                                          "1F0 1B0 1W0 1F1 1B1 1W1 1F2 1B2 1W2"]


def test_zb_h1_written_out():
    assert computations("zb-h1", 2, 3) == ["0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2",
                                           "1F0 1B0 1F1 1B1 1W0 1F2 1B2 1W1 1W2"]


def test_zb_h2_written_out():
    assert computations("zb-h2", 2, 4) == ["0F0 0F1 0F2 0B0 0W0 0F3 0B1 0W1 0B2 0W2 0B3 0W3",
                                           "1F0 1B0 1F1 1B1 1F2 1B2 1W0 1F3 1B3 1W1 1W2 1W3"]


def test_dx_of_1f1b_leaves_after_dw_and_that_of_the_others_before():
    text = {name: str(generate(name, stages=2, microbatches=1)) for name in ("1f1b", "zb-h1")}
    assert "1B0 1W0 1SEND_B0" in text["1f1b"]
    assert "1B0 1SEND_B0 1W0" in text["zb-h1"]


def test_weight_parts():
    schedule = generate("1f1b", stages=2, microbatches=1, weight_parts=2)
    assert " ".join(map(str, schedule.actions[1])) == "1RECV_F0 1F0 1B0 1W0.0/2 1W0.1/2 1SEND_B0"


def test_names():
    assert NAMES == ("1f1b", "zb-h1", "zb-h2", "zb-v", "auto")
    for name in NAMES:
        options = {"costs": Costs()} if name == "auto" else {}
        validate(generate(name, stages=3, microbatches=4, **options))


def test_auto_takes_what_the_search_takes():
    schedule = generate("auto", stages=4, microbatches=8, costs=Costs(), memory_limit=4, chunks=1, weight_parts=2)
    assert schedule.chunks == 1
    assert schedule.name.startswith("auto")
    validate(schedule, Costs(), 4)


@pytest.mark.parametrize("name, options, message", [
    ("gpipe", {}, "name is one of 1f1b, zb-h1, zb-h2, zb-v, auto, not 'gpipe'"),
    ("1f1b", {"stages": 0}, "stages is at least 1, not 0"),
    ("1f1b", {"microbatches": -1}, "microbatches is at least 1, not -1"),
    ("1f1b", {"weight_parts": 0}, "weight_parts is at least 1, not 0"),
])
def test_values_that_cannot_be_used(name, options, message):
    with pytest.raises(ArgumentValueError, match=message):
        generate(name, **{"stages": 2, "microbatches": 2, **options})


@pytest.mark.parametrize("name, options, message", [
    ("1f1b", {"stages": 2.0}, "stages is an integer, not float"),
    ("1f1b", {"microbatches": True}, "microbatches is an integer, not bool"),
    ("zb-h1", {"memory_limit": 3}, "memory_limit: only 'auto' has such options, not 'zb-h1'"),
    ("auto", {}, "'auto' searches by costs"),
])
def test_types_that_cannot_be_used(name, options, message):
    with pytest.raises(ArgumentTypeError, match=message):
        generate(name, **{"stages": 2, "microbatches": 2, **options})
