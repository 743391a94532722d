"""Schedules made from a few numbers: their times are those of the simulator, their memory is within the limit."""

import pytest
from hypothesis import assume, given, strategies as st

from mindspore_zb.schedule import Costs, simulate, validate
from mindspore_zb.schedule.communication import with_communication
from mindspore_zb.schedule.construction import Construction, computations_of
from mindspore_zb.schedule.shapes import Shape, Task, bounded

from .strategies import cost_arguments, examples


def built(task, construction):
    return with_communication("built", task.microbatches, computations_of(construction.orders, task.weight_parts),
                              task.chunks)


@examples(200)
@given(st.data())
def test_any_shape_makes_a_valid_schedule_with_the_times_of_the_simulator(data):
    chunks, ranks, microbatches = (data.draw(st.integers(1, most)) for most in (2, 4, 6))
    costs = Costs(**data.draw(cost_arguments(ranks, chunks)))
    limit = data.draw(st.sampled_from([None, 2.0, 4.0, 8.0]))
    task = Task(chunks, costs.stage_costs(ranks, chunks), microbatches, limit, data.draw(st.integers(1, 3)))
    assume(chunks == 2 or min(task.most_in_flight()) >= 1)
    numbers = st.lists(st.integers(-1, 7), min_size=ranks, max_size=ranks).map(tuple)
    shape = bounded(Shape(chunks, data.draw(numbers), data.draw(numbers), data.draw(st.sampled_from([0.0, 0.5, 1.0]))),
                    task)
    construction = Construction(task, shape)
    assert construction.complete or chunks == 2
    if construction.complete:
        schedule = built(task, construction)
        validate(schedule, costs, limit)
        assert simulate(schedule, costs).spans == pytest.approx(construction.spans)


def test_w_fill_the_gaps_that_are_long_enough():
    task = Task(1, Costs(f=1, b=1, w=[1, 1, 1], comm=0).stage_costs(3), 3, None, 1)
    kinds = ["".join(kind for kind, _ in order)
             for order in Construction(task, Shape(1, (3, 2, 1), (3, 3, 3), 1.0)).orders]
    assert kinds[2] == "FBFBFBWWW"  # the last rank never waits
    assert kinds[0].startswith("FFFBWB")  # the first one does between its B


def test_memory_makes_room_by_w():
    task = Task(1, Costs(m_b=1, m_w=1).stage_costs(1), 3, 2.0, 1)
    order = Construction(task, Shape(1, (1,), (3,), 1.0)).orders[0]
    assert "".join(kind for kind, _ in order) == "FBFBWFBWW"


def test_a_limit_that_the_order_cannot_meet():
    task = Task(2, Costs().stage_costs(2, 2), 4, 1.0, 1)
    assert not Construction(task, Shape(2, (), (0, 0), 1.0)).complete
