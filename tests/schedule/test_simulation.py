"""The simulator against brute force, and what its results say."""

import pytest
from hypothesis import given, strategies as st

from mindspore_zb.errors import ArgumentValueError, ScheduleError
from mindspore_zb.schedule import Costs, Schedule, generate, parse_schedule, simulate
from mindspore_zb.schedule.simulation import memory_by_action

from . import oracle
from .strategies import by_stage, cost_arguments, examples, schedules


@examples(150)
@given(st.data())
def test_times_are_those_of_the_longest_way(data):
    schedule = data.draw(schedules(ranks=4, microbatches=5))
    arguments = data.draw(cost_arguments(schedule.ranks, schedule.chunks))
    run = simulate(schedule, Costs(**arguments))
    costs = by_stage(arguments, schedule.ranks, schedule.chunks)
    start = oracle.starts(schedule, costs)
    computed = [timed for timeline in run.timeline for timed in timeline if timed.action.computes]
    first = min(start.values())
    assert {timed.action: timed.start for timed in computed} == pytest.approx(
        {action: time - first for action, time in start.items()})
    for timed in computed:
        assert timed.end - timed.start == pytest.approx(oracle.duration(timed.action, costs))
    assert run.spans == pytest.approx(oracle.spans(schedule, costs))
    assert run.makespan == max(run.spans)


@examples(60)
@given(st.data())
def test_memory_is_that_of_counting_everything_at_every_step(data):
    schedule = data.draw(schedules(ranks=3, microbatches=5))
    arguments = data.draw(cost_arguments(schedule.ranks, schedule.chunks))
    costs = Costs(**arguments)
    held = oracle.memory(schedule, by_stage(arguments, schedule.ranks, schedule.chunks))
    for rank, memory in enumerate(memory_by_action(schedule, costs.stage_costs(schedule.ranks, schedule.chunks))):
        assert memory == pytest.approx(held[rank], abs=1e-9)
    assert simulate(schedule, costs).peak_memory == pytest.approx([max(memory) for memory in held])


def test_what_dw_needs_beyond_what_dx_needs_is_made_by_b():
    schedule = generate("zb-h1", stages=1, microbatches=1, weight_parts=2)
    assert memory_by_action(schedule, Costs(m_b=1, m_w=3).stage_costs(1)) == [[1.0, 3.0, 3.0, 1.5]]


@examples(80)
@given(st.data())
def test_a_rank_does_one_thing_at_a_time_and_in_order(data):
    schedule = data.draw(schedules())
    run = simulate(schedule, Costs(f=1.5, b=1, w=0.5, comm=0.25))
    for rank, timeline in enumerate(run.timeline):
        assert tuple(timed.action for timed in timeline) == schedule.actions[rank]
        assert all(timed.rank == rank and timed.start <= timed.end for timed in timeline)
        assert all(one.end <= other.start for one, other in zip(timeline, timeline[1:]))


@examples(80)
@given(st.data())
def test_no_schedule_beats_the_work_of_its_busiest_rank(data):
    schedule = data.draw(schedules())
    arguments = data.draw(cost_arguments(schedule.ranks, schedule.chunks))
    run = simulate(schedule, Costs(**arguments))
    work = schedule.microbatches * max(sum(arguments["f"][rank]) + sum(arguments["b"][rank]) + sum(arguments["w"][rank])
                                       for rank in range(schedule.ranks))
    assert run.makespan >= work - 1e-9
    assert run.bubble_rate == pytest.approx((run.makespan - work) / run.makespan if run.makespan else 0, abs=1e-9)
    assert 0 <= run.bubble_rate < 1
    assert run.total_time >= run.makespan


def test_one_rank_has_no_bubble():
    for name in ("1f1b", "zb-h1", "zb-h2", "zb-v"):
        run = simulate(generate(name, stages=1, microbatches=3), Costs(f=2, b=3, w=1))
        assert (run.makespan, run.bubble_rate, run.peak_memory) == (18.0, 0.0, (1.0,))


def test_receives_last_as_long_as_the_rank_waits_and_sends_no_time():
    run = simulate(generate("zb-h1", stages=2, microbatches=1), Costs(f=2, b=3, w=1, comm=0.5))
    assert [(str(action), start, end) for _, action, start, end in run.entries()] == [
        ("0F0", 0.0, 2.0), ("0SEND_F0", 2.0, 2.0), ("0RECV_B0", 2.0, 8.0), ("0B0", 8.0, 11.0), ("0W0", 11.0, 12.0),
        ("1RECV_F0", 0.0, 2.5), ("1F0", 2.5, 4.5), ("1B0", 4.5, 7.5), ("1SEND_B0", 7.5, 7.5), ("1W0", 7.5, 8.5)]
    assert run.spans == (12.0, 6.0)
    assert run.total_time == 12.0


def test_the_makespan_is_a_rank_s_span_and_not_the_time_of_all():
    run = simulate(generate("zb-h2", stages=4, microbatches=12), Costs(f=1, b=1, w=1))
    assert (run.makespan, run.total_time) == (36.0, 39.0)


def test_parts_of_a_w_share_its_time_and_memory():
    schedule = generate("zb-h1", stages=1, microbatches=1, weight_parts=4)
    run = simulate(schedule, Costs(f=1, b=1, w=2, m_b=1, m_w=1))
    assert [timed.end for timed in run.timeline[0]] == [1.0, 2.0, 2.5, 3.0, 3.5, 4.0]


def test_a_schedule_that_waits_for_ever_is_refused():
    stuck = parse_schedule("stuck: 2 ranks, 1 micro-batches, 1 chunk\nrank 0: 0RECV_B0 0F0\nrank 1: 1RECV_F0")
    with pytest.raises(ScheduleError, match="deadlock: rank 0 waits in 0RECV_B0 for 1SEND_B0"):
        simulate(stuck, Costs())


@pytest.mark.parametrize("actions, message", [
    ("1F0", "rank 0 cannot run 1F0: it holds only stage 0"), ("7F0", "rank 0 cannot run 7F0: it holds only stage 0"),
    ("0SEND_B0", "rank 0 cannot run 0SEND_B0: there is no neighbour at its other end"),
    ("0RECV_F0", "rank 0 cannot run 0RECV_F0: there is no neighbour at its other end")])
def test_actions_that_do_not_belong_are_refused(actions, message):
    with pytest.raises(ScheduleError, match=message):
        simulate(parse_schedule(f"wrong: 2 ranks, 1 micro-batches, 1 chunk\nrank 0: {actions}\nrank 1:"), Costs())


def test_a_rank_without_actions():
    run = simulate(Schedule("none", 1, ((), ())), Costs())
    assert (run.makespan, run.bubble_rate, run.peak_memory) == (0.0, 0.0, (0.0, 0.0))


def test_costs_for_other_ranks():
    with pytest.raises(ArgumentValueError, match="f has 3 numbers for 2 ranks"):
        simulate(generate("1f1b", stages=2, microbatches=2), Costs(f=[1, 2, 3]))
