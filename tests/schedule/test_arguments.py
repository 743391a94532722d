"""Every argument of every public name, given things that it cannot be: one sentence that names it, never a surprise."""

import math

import pytest

import mindspore_zb.schedule
from mindspore_zb.errors import ZeroBubbleError
from mindspore_zb.schedule import (Action, Costs, Schedule, generate, load_csv, parse_schedule, save_csv, search, simulate,
                                   validate)
from tests.wrong_arguments import assert_in_plain_words, each_case, message_of

SCHEDULE = generate("zb-h1", stages=2, microbatches=2)
COSTS = Costs()

NO_NUMBER = [None, "a", b"a", True, object(), {}, {1}, (number for number in (1,)), 1j]
NO_COST = [*NO_NUMBER, [], [None], ["a"], [[[1]]], math.nan, math.inf, -1, [1, -1], 1e300, 10 ** 400, [[]], [{}]]
NO_COUNT = [None, "2", 2.0, True, [2], 0, -1, 10 ** 12, 10 ** 400, math.nan, math.inf]
NO_PLACE = [None, "2", 2.0, True, [2], -1, 10 ** 12, 10 ** 400, math.nan]
NO_TEXT = [None, 3, b"zb-h1", True, [], math.nan, object()]
NO_LIMIT = ["big", True, [1], math.nan, math.inf, -1, 10 ** 400, object(), {}]
NO_PATH = [None, 0, True, b"x.csv", "", "a\0b", [], object()]
OTHERS = [None, "x", 3, True, [], {}, math.nan, object()]


def searched(**changes):
    return search(**{"costs": COSTS, "stages": 2, "microbatches": 2, **changes})


def generated(**changes):
    return generate(**{"name": "1f1b", "stages": 2, "microbatches": 2, **changes})


def auto(**changes):
    return generate("auto", **{"stages": 2, "microbatches": 2, "costs": COSTS, **changes})


def action(**changes):
    return Action(**{"stage": 0, "kind": "W", "microbatch": 0, **changes})


def schedule(**changes):
    return Schedule(**{"name": "mine", "microbatches": 2, "actions": SCHEDULE.actions, **changes})


def comm(**changes):
    return Costs(**changes).stage_costs(2)


CASES = [
    *[(Costs, name, NO_COST) for name in ("f", "b", "w", "m_b", "m_w")],
    (comm, "comm", [*NO_COST, [1, 2], [[1]]]),
    (COSTS.stage_costs, "ranks", NO_COUNT), (lambda chunks: COSTS.stage_costs(2, chunks), "chunks", NO_COUNT),
    (action, "stage", NO_PLACE), (action, "microbatch", NO_PLACE), (action, "part", NO_PLACE),
    (action, "parts", [None, "2", 2.0, True, 0, -1]), (action, "kind", [*NO_TEXT, "", "f", "X"]),
    (Action.parse, "text", [*NO_TEXT, "", "0X0", "0F", "9" * 5000 + "F0", "0F0 "]),
    (schedule, "name", NO_TEXT), (schedule, "microbatches", NO_COUNT), (schedule, "chunks", [*NO_COUNT, 1001]),
    (schedule, "actions", [*OTHERS[:4], (), {}, "ab", [3], ["ab"], [[3]], [[None]], [SCHEDULE.actions]]),
    *[(getattr(SCHEDULE, name), "stage" if name == "rank_of" else "rank", [*NO_PLACE, 2])
      for name in ("rank_of", "stages_of", "computations")],
    (SCHEDULE.peer, "action", [*OTHERS, Action(0, "F", 0), Action(1, "SEND_F", 0), Action(0, "SEND_B", 0)]),
    (generated, "name", [*NO_TEXT, "", "gpipe", "AUTO"]),
    *[(function, name, NO_COUNT) for function in (generated, auto) for name in ("stages", "microbatches",
                                                                                   "weight_parts")],
    (generated, "costs", [COSTS]), (auto, "costs", OTHERS), (auto, "memory_limit", [*NO_LIMIT, 0]),
    (auto, "chunks", [*NO_COUNT, 3]), (auto, "progress", ["x", 3, True]), (auto, "depth", [3]),
    (searched, "costs", OTHERS), (searched, "memory_limit", [*NO_LIMIT, 0]), (searched, "chunks", [*NO_COUNT, 3]),
    *[(searched, name, NO_COUNT) for name in ("stages", "microbatches", "weight_parts")],
    (searched, "progress", ["x", 3, True]),
    (lambda schedule: simulate(schedule, COSTS), "schedule", OTHERS),
    (lambda costs: simulate(SCHEDULE, costs), "costs", [*OTHERS, Costs(f=[1, 2, 3])]),
    (validate, "schedule", OTHERS), (lambda costs: validate(SCHEDULE, costs), "costs", OTHERS[1:]),
    (lambda memory_limit: validate(SCHEDULE, COSTS, memory_limit), "memory_limit", NO_LIMIT),
    (parse_schedule, "text", [*NO_TEXT, "", "\n", "x: 1 rank", "x: 99999999999 ranks, 1 micro-batch, 1 chunk"]),
    (load_csv, "path", NO_PATH), (lambda path: save_csv(SCHEDULE, path), "path", NO_PATH),
    (lambda schedule, folder="/dev/null": save_csv(schedule, folder), "schedule", OTHERS),
]
RESULTS = {"Simulation", "TimedAction"}
"""What simulate() makes: nobody makes one by hand."""


@each_case(CASES)
def test_what_an_argument_cannot_be(function, name, value):
    assert_in_plain_words(message_of(function, name, value))


@pytest.mark.parametrize("function, name, value", [
    (Costs, "f", "a"), (comm, "comm", None), (action, "stage", "a"), (schedule, "chunks", 1.5), (generated, "stages", 0),
    (auto, "costs", 3), (searched, "memory_limit", "big"), (simulate, "schedule", "x"), (validate, "schedule", "x"),
    (load_csv, "path", 0), (parse_schedule, "text", 3), (auto, "depth", 3), (searched, "progress", 3)])
def test_the_argument_is_named(function, name, value):
    with pytest.raises(ZeroBubbleError, match=rf"^{name}\b"):
        function(**{name: value}) if function is not simulate else simulate(value, COSTS)


def test_every_public_name_is_gone_through():
    tried = {"Action", "Costs", "Schedule", "generate", "load_csv", "parse_schedule", "save_csv", "search", "simulate",
             "validate"}
    assert tried | RESULTS | {"NAMES", "ScheduleError"} == set(mindspore_zb.schedule.__all__)


def test_actions_that_compute_have_no_other_end():
    for name in ("other_stage", "counterpart"):
        with pytest.raises(ZeroBubbleError, match="0F0 is no communication"):
            getattr(Action(0, "F", 0), name)


@pytest.mark.parametrize("number", [2, pytest.param("numpy", id="numpy")])
def test_what_counts_as_an_integer_is_taken(number):
    if number == "numpy":
        number = pytest.importorskip("numpy").int64(2)
    made = generate("zb-h1", stages=number, microbatches=number, weight_parts=number)
    assert made == generate("zb-h1", stages=2, microbatches=2, weight_parts=2)
    assert type(made.microbatches) is int and type(Action(number, "F", number).stage) is int


def test_what_is_enormous_is_told_at_once():
    """Nothing grows with what a text or a number only claims."""
    claims = parse_schedule("x: 1 rank, 999999999 micro-batches, 1 chunk\nrank 0: 0F0 0B0 0W0")
    with pytest.raises(ZeroBubbleError, match="^rank 0 never runs 0F1$"):
        validate(claims)
    assert simulate(claims, COSTS).makespan == 3
    parts = parse_schedule("x: 1 rank, 1 micro-batch, 1 chunk\nrank 0: 0F0 0B0 0W0.0/999999999")
    with pytest.raises(ZeroBubbleError, match="^rank 0 never runs 0W0.1/999999999$"):
        validate(parts)


@pytest.mark.parametrize("sizes", [{"stages": 10 ** 6}, {"microbatches": 10 ** 6}, {"weight_parts": 10 ** 6},
                                   {"stages": 10 ** 9, "microbatches": 10 ** 9}])
def test_too_large_to_be_made_or_searched_for(sizes):
    with pytest.raises(ZeroBubbleError, match="make a schedule of .* but 500000 are the most that is made: take fewer"):
        generated(**sizes)
    for function in (auto, searched):
        with pytest.raises(ZeroBubbleError, match="but 60000 are the most that is searched among: take .* by hand"):
            function(**sizes)
    with pytest.raises(ZeroBubbleError, match="1 rank, 1 micro-batch and W in 600000 parts make"):
        generated(stages=1, microbatches=1, weight_parts=600_000)
