"""What is accepted, and that everything wrong is refused with its name."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from mindspore_zb.errors import ScheduleError, ZeroBubbleError
from mindspore_zb.schedule import Action, Costs, Schedule, generate, parse_schedule, simulate, validate

from .strategies import examples, schedules


def with_actions(schedule, rank, actions):
    return replace(schedule, actions=tuple(tuple(actions) if place == rank else others
                                           for place, others in enumerate(schedule.actions)))


def refused(schedule, *names):
    """The message of the refusal; it holds one of the actions."""
    with pytest.raises(ScheduleError) as caught:
        validate(schedule)
    message = str(caught.value)
    assert isinstance(caught.value, (ZeroBubbleError, ValueError))
    assert re.search(r"rank \d", message)
    assert any(re.search(rf"(?<!\w){re.escape(str(name))}(?![\w/])", message) for name in names), (message, names)
    return message


@examples(200)
@given(schedules(ranks=7, microbatches=20))
def test_every_generated_schedule_is_valid(schedule):
    validate(schedule)


@examples(150)
@given(st.data())
def test_a_removed_action_is_named(data):
    schedule = data.draw(schedules())
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    place = data.draw(st.integers(0, len(schedule.actions[rank]) - 1))
    removed = schedule.actions[rank][place]
    rest = schedule.actions[rank][:place] + schedule.actions[rank][place + 1:]
    refused(with_actions(schedule, rank, rest), removed, Action(removed.stage, removed.kind, removed.microbatch))


@examples(150)
@given(st.data())
def test_a_doubled_action_is_named(data):
    schedule = data.draw(schedules())
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    actions = list(schedule.actions[rank])
    doubled = data.draw(st.sampled_from(actions))
    actions.insert(data.draw(st.integers(0, len(actions))), doubled)
    assert "twice" in refused(with_actions(schedule, rank, actions), doubled)


def waits_for(action):
    """What an action always waits for on its own rank, if that is there."""
    before = {"B": ["F", "RECV_B"], "W": ["B"], "F": ["RECV_F"], "SEND_F": ["F"], "SEND_B": ["B"]}.get(action.kind, [])
    return {(action.stage, kind, action.microbatch) for kind in before}


@examples(200)
@given(st.data())
def test_actions_swapped_against_their_dependency_are_named(data):
    schedule = data.draw(schedules())
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    actions = list(schedule.actions[rank])
    pairs = [(one, other) for other, later in enumerate(actions) for one, earlier in enumerate(actions[:other])
             if (earlier.stage, earlier.kind, earlier.microbatch) in waits_for(later)]
    one, other = data.draw(st.sampled_from(pairs))
    later, earlier = actions[other], actions[one]
    actions[one], actions[other] = later, earlier
    message = refused(with_actions(schedule, rank, actions), *actions[one:other + 1])
    assert "waits for" in message


def test_the_message_says_what_is_waited_for():
    schedule = parse_schedule("x: 1 ranks, 1 micro-batches, 1 chunk\nrank 0: 0B0 0F0 0W0")
    with pytest.raises(ScheduleError, match="^rank 0 runs 0B0 too early: it waits for 0F0, which comes after it$"):
        validate(schedule)


def test_the_turn_of_the_v_is_a_dependency_too():
    schedule = generate("zb-v", stages=1, microbatches=1)
    assert " ".join(map(str, schedule.actions[0])) == "0F0 1F0 1B0 1W0 0B0 0W0"
    with pytest.raises(ScheduleError, match="rank 0 runs 1F0 too early: it waits for 0F0"):
        validate(parse_schedule("v: 1 ranks, 1 micro-batches, 2 chunks\nrank 0: 1F0 0F0 1B0 1W0 0B0 0W0"))


def test_ranks_that_wait_for_each_other_are_refused():
    """Each rank receives first what the other sends only afterwards."""
    crossing = parse_schedule("""crossing: 2 ranks, 2 micro-batches, 1 chunk
        rank 0: 0F0 0SEND_F0 0RECV_B0 0B0 0W0 0F1 0SEND_F1 0RECV_B1 0B1 0W1
        rank 1: 1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1W0 1B1 1SEND_B1 1W1""")
    with pytest.raises(ScheduleError) as caught:
        validate(crossing)
    assert str(caught.value) == ("deadlock: rank 0 waits in 0RECV_B0 for 1SEND_B0, which rank 1 runs after 1RECV_F1; "
                                 "rank 1 waits in 1RECV_F1 for 0SEND_F1, which rank 0 runs after 0RECV_B0")


def test_messages_received_in_another_order_than_sent_are_refused():
    crossing = parse_schedule("""crossing: 2 ranks, 2 micro-batches, 1 chunk
        rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0B1 0W1 0RECV_B0 0B0 0W0
        rank 1: 1RECV_F1 1F1 1RECV_F0 1F0 1B1 1SEND_B1 1W1 1B0 1SEND_B0 1W0""")
    with pytest.raises(ScheduleError, match="^crossing communication: rank 1 waits in 1RECV_F1 for 0SEND_F1, but the "
                                            "next message from there is 0SEND_F0"):
        validate(crossing)


@examples(100)
@given(st.data())
def test_swapped_receives_from_one_rank_are_refused(data):
    schedule = data.draw(schedules(ranks=4).filter(lambda one: one.ranks > 1 and one.microbatches > 1))
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    actions = list(schedule.actions[rank])
    receives = [place for place, action in enumerate(actions) if action.receives]
    pairs = [(one, other) for one in receives for other in receives
             if one < other and schedule.peer(actions[one]) == schedule.peer(actions[other])]
    one, other = data.draw(st.sampled_from(pairs))
    actions[one], actions[other] = actions[other], actions[one]
    refused(with_actions(schedule, rank, actions), *(action for action in actions[one:other + 1]))


@pytest.mark.parametrize("extra, message", [
    ("7F0", "rank 0 runs 7F0, but there are only 2 stages"),
    ("0F9", "rank 0 runs 0F9, but there is only 1 micro-batch"),
    ("1F0", "rank 0 runs 1F0, which belongs on rank 1"),
    ("0RECV_F0", "rank 0 runs 0RECV_F0, but there is no other rank at its other end"),
    ("0SEND_B0", "rank 0 runs 0SEND_B0, but there is no other rank at its other end"),
])
def test_actions_that_do_not_belong(extra, message):
    schedule = generate("zb-h1", stages=2, microbatches=1)
    with pytest.raises(ScheduleError, match=f"^{message}$"):
        validate(with_actions(schedule, 0, [*schedule.actions[0], Action.parse(extra)]))


def test_parts_of_different_cuts():
    with pytest.raises(ScheduleError, match="rank 0 runs both 0W0.0/2 and 0W0.1/3, which are parts of different cuts"):
        validate(Schedule("x", 1, (tuple(map(Action.parse, ("0F0", "0B0", "0W0.0/2", "0W0.1/3"))),)))


@examples(100)
@given(st.data())
def test_memory_limit(data):
    schedule = data.draw(schedules())
    costs = Costs(m_b=data.draw(st.floats(0.1, 3)), m_w=data.draw(st.floats(0, 0.1)))
    peaks = simulate(schedule, costs).peak_memory
    validate(schedule, costs, max(peaks))
    with pytest.raises(ScheduleError, match=r"^rank \d+ holds [\d.]+ at \d+F\d+, more than the memory limit") as caught:
        validate(schedule, costs, max(peaks) * 0.999)
    rank = int(re.match(r"rank (\d+)", str(caught.value)).group(1))
    assert peaks[rank] > max(peaks) * 0.999


def test_memory_limit_with_default_costs():
    validate(generate("1f1b", stages=4, microbatches=8), memory_limit=4)
    with pytest.raises(ScheduleError, match="rank 0 holds 4 at 0F3, more than the memory limit 3"):
        validate(generate("1f1b", stages=4, microbatches=8), memory_limit=3)
