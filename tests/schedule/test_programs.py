"""Schedules as data."""

import pytest

from mindspore_zb.errors import ScheduleError
from mindspore_zb.schedule import Action, Schedule, generate


def test_places_in_a_v():
    schedule = generate("zb-v", stages=3, microbatches=2)
    assert (schedule.ranks, schedule.chunks, schedule.stages) == (3, 2, 6)
    assert [schedule.rank_of(stage) for stage in range(6)] == [0, 1, 2, 2, 1, 0]
    assert [schedule.stages_of(rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert schedule.peer(Action.parse("4SEND_F0")) == 0
    assert schedule.peer(Action.parse("4RECV_F0")) == 2


def test_it_is_a_value():
    assert generate("zb-h1", stages=2, microbatches=2) == generate("zb-h1", stages=2, microbatches=2)
    assert len({generate("zb-h1", stages=2, microbatches=2), generate("zb-h1", stages=2, microbatches=2)}) == 1
    assert Schedule("x", 1, [[Action(0, "F", 0)]]).actions == ((Action(0, "F", 0),),)


@pytest.mark.parametrize("arguments", [("x", 1, ()), ("x", 0, ((),)), ("x", 1, ((),), 0)])
def test_schedules_that_cannot_be(arguments):
    with pytest.raises(ScheduleError, match="cannot be: it needs at least one"):
        Schedule(*arguments)
