"""Actions print and parse, and know the other end of a communication."""

import pytest
from hypothesis import given, strategies as st

from mindspore_zb.errors import ScheduleError
from mindspore_zb.schedule import Action

from .strategies import examples

KINDS = ("F", "B", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B")


@examples(150)
@given(st.integers(0, 99), st.sampled_from(KINDS), st.integers(0, 999), st.integers(1, 9), st.data())
def test_text_round_trip(stage, kind, microbatch, parts, data):
    part = data.draw(st.integers(0, parts - 1))
    action = Action(stage, "W", microbatch, part, parts) if kind == "W" else Action(stage, kind, microbatch)
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize("text", ["", "F0", "2F", "2f0", "2X0", "2F0 ", "-1F0", "2F0.1/2", "2W0.1",
                                  "2W0.2/2", "2W0.0/0", "2SEND0", "2SEND_W0", "²F0", "2F0\n"])
def test_text_that_is_no_action(text):
    with pytest.raises(ScheduleError):
        Action.parse(text)


@pytest.mark.parametrize("arguments", [(0, "f", 0), (-1, "F", 0), (0, "F", -1), (0, "F", 0, 0, 2), (0, "W", 0, 2, 2)])
def test_actions_that_cannot_be(arguments):
    with pytest.raises(ScheduleError):
        Action(*arguments)


@pytest.mark.parametrize("send, receive", [("2SEND_F7", "3RECV_F7"), ("2SEND_B7", "1RECV_B7")])
def test_both_ends_of_a_message(send, receive):
    send, receive = Action.parse(send), Action.parse(receive)
    assert (send.counterpart, receive.counterpart) == (receive, send)
    assert (send.other_stage, receive.other_stage) == (receive.stage, send.stage)
    assert (send.sends, send.receives, send.computes) == (True, False, False)
    assert (receive.sends, receive.receives, receive.computes) == (False, True, False)
