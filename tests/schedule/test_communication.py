"""Sends and receives between given computations."""

from random import Random

import pytest
from hypothesis import given, strategies as st

from mindspore_zb.schedule import Costs, Schedule, simulate, validate
from mindspore_zb.schedule.communication import with_communication

from . import oracle
from .strategies import by_stage, cost_arguments, examples, schedules


@examples(150)
@given(schedules(ranks=6))
def test_each_pair_of_ranks_sends_and_receives_the_same_in_the_same_order(schedule):
    for one in range(schedule.ranks):
        for other in range(schedule.ranks):
            sent = [action for action in schedule.actions[one] if action.sends and schedule.peer(action) == other]
            received = [action for action in schedule.actions[other]
                        if action.receives and schedule.peer(action) == one]
            assert [action.counterpart for action in sent] == received


def random_order(schedule, random):
    """The computations of a schedule in any other order that respects what needs what."""
    waits = {action: [other for other, _ in before] for action, before in oracle.edges(
        Schedule("", schedule.microbatches, [sorted(actions, key=str) for actions in schedule.actions],
                 schedule.chunks), by_stage_of_nothing(schedule)).items()}
    real = {action: [other for other in before if needs(action, other)] for action, before in waits.items()}
    programs = [[] for _ in range(schedule.ranks)]
    done = set()
    while len(done) < len(real):
        ready = [action for action in real if action not in done and done.issuperset(real[action])]
        action = random.choice(ready)
        done.add(action)
        programs[schedule.rank_of(action.stage)].append(action)
    return programs


def needs(later, earlier):
    """Whether this is more than the order on a rank."""
    return later.microbatch == earlier.microbatch and (
        later.kind == earlier.kind != "W" and abs(later.stage - earlier.stage) == 1
        and (later.stage > earlier.stage) == (later.kind == "F")
        or later.stage == earlier.stage and (earlier.kind, later.kind) in (("F", "B"), ("B", "W")))


def by_stage_of_nothing(schedule):
    return {name: [0.0] * schedule.stages for name in ("f", "b", "w", "m_b", "m_w", "comm")}


@examples(120)
@given(st.data(), st.integers(0, 10 ** 6))
def test_any_possible_order_gets_communication_without_deadlock_or_delay(data, seed):
    template = data.draw(schedules(ranks=4, microbatches=4))
    programs = random_order(template, Random(seed))
    schedule = with_communication("any", template.microbatches, programs, template.chunks)
    validate(schedule)
    assert [list(schedule.computations(rank)) for rank in range(schedule.ranks)] == programs
    arguments = data.draw(cost_arguments(schedule.ranks, schedule.chunks))
    run = simulate(schedule, Costs(**arguments))
    assert run.spans == pytest.approx(oracle.spans(schedule, by_stage(arguments, schedule.ranks, schedule.chunks)))


def test_the_turn_of_the_v_needs_no_message():
    programs = [[]]
    assert with_communication("v", 1, programs, 2).actions == ((),)
