"""The search: what it must reach, and that it never does worse than by hand."""

import time
from itertools import product

import pytest
from hypothesis import given, strategies as st

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, ScheduleError
from mindspore_zb.schedule import Costs, generate, search, searching, simulate, validate
from mindspore_zb.schedule.communication import with_communication
from mindspore_zb.schedule.construction import Construction, computations_of

from . import oracle
from .strategies import HAND_MADE, cost_arguments, examples
from .test_formulas import ROWS

UNEVEN = {
    "one rank twice as slow": [1, 1, 1, 2, 1, 1, 1, 1],
    "the first one heavy": [2, 1, 1, 1, 1, 1, 1, 1],
    "the last one heavy": [1, 1, 1, 1, 1, 1, 1, 2],
    "the last one a little": [1, 1, 1, 1, 1, 1, 1, 1.5],
}


def hand_made(costs, stages, microbatches, limit=None, chunks=2, weight_parts=1):
    runs = [simulate(generate(name, stages=stages, microbatches=microbatches, weight_parts=weight_parts), costs)
            for name in HAND_MADE]
    return [run for run in runs if run.schedule.chunks <= chunks
            and (limit is None or max(run.peak_memory) <= limit * (1 + 1e-9))]


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} micro-batches")
def test_published_rows_with_twice_the_memory_of_1f1b(row, chunks):
    microbatches, *times, _ = row
    costs = Costs(*times)
    schedule = search(costs, 8, microbatches, memory_limit=16, chunks=chunks)
    validate(schedule, costs, 16)
    assert simulate(schedule, costs).bubble_rate <= 0.05


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} micro-batches")
def test_two_stages_per_rank_reach_it_even_if_dw_holds_all_memory(row):
    microbatches, *times, _ = row
    costs = Costs(*times, m_b=1, m_w=1)
    schedule = search(costs, 8, microbatches, memory_limit=16)
    validate(schedule, costs, 16)
    assert simulate(schedule, costs).bubble_rate <= 0.05


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} micro-batches")
def test_published_rows_with_the_memory_of_1f1b(row, chunks):
    microbatches, *times, rates = row
    costs = Costs(*times)
    schedule = search(costs, 8, microbatches, memory_limit=8, chunks=chunks)
    validate(schedule, costs, 8)
    assert simulate(schedule, costs).bubble_rate <= rates[1] + 0.0001


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("weights", UNEVEN.values(), ids=list(UNEVEN))
def test_uneven_ranks(weights, chunks):
    microbatches, f, b, w, comm, _ = ROWS[0]
    costs = Costs(*([time * weight for weight in weights] for time in (f, b, w)), comm=comm)
    h1 = simulate(generate("zb-h1", stages=8, microbatches=microbatches), costs).bubble_rate
    for limit, most in ((8, h1), (16, 0.05)):
        schedule = search(costs, 8, microbatches, memory_limit=limit, chunks=chunks)
        validate(schedule, costs, limit)
        assert simulate(schedule, costs).bubble_rate <= most + 1e-9


@examples(60)
@given(st.data())
def test_never_worse_than_the_best_by_hand_that_fits(data):
    stages, microbatches = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    chunks, weight_parts = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    costs = Costs(**data.draw(cost_arguments(stages, chunks=2)))
    limit = data.draw(st.sampled_from([None, 0.5, 1.0, 3.0, float(stages), 2.0 * stages, 8.0]))
    best = min([run.makespan for run in hand_made(costs, stages, microbatches, limit, chunks, weight_parts)],
               default=None)
    try:
        schedule = search(costs, stages, microbatches, limit, chunks=chunks, weight_parts=weight_parts)
    except ScheduleError as error:
        assert best is None, str(error)
        return
    assert schedule.chunks <= chunks
    validate(schedule, costs, limit)
    if best is not None:
        assert simulate(schedule, costs).makespan <= best * (1 + 1e-9)


def shortest(costs, stages, microbatches, limit):
    """The least makespan of all schedules of one stage per rank that there are."""
    makespans = []
    for kinds in product(oracle.orders(microbatches), repeat=stages):
        programs = computations_of([[(kind, stage) for kind in order] for stage, order in enumerate(kinds)], 1)
        try:
            run = simulate(with_communication("any", microbatches, programs), costs)
        except ScheduleError:  # these orders wait for each other for ever
            continue
        if limit is None or max(run.peak_memory) <= limit + 1e-9:
            makespans.append(run.makespan)
    return min(makespans)


@examples(40)
@given(st.data())
def test_nothing_better_exists_for_two_microbatches(data):
    stages, microbatches = data.draw(st.sampled_from([(2, 2), (3, 2)]))
    arguments = data.draw(cost_arguments(stages, most=3))
    costs = Costs(**{**arguments, "m_b": 1, "m_w": data.draw(st.sampled_from([0.5, 1.0]))})
    limit = data.draw(st.sampled_from([None, 1, 2]))
    found = simulate(search(costs, stages, microbatches, limit, chunks=1), costs).makespan
    assert found == pytest.approx(shortest(costs, stages, microbatches, limit))


@examples(4)
@given(st.data())
def test_nothing_better_exists_for_two_ranks_and_three_microbatches(data):
    costs = Costs(**{**data.draw(cost_arguments(2, most=3)), "m_b": 1, "m_w": 0.5})
    limit = data.draw(st.sampled_from([None, 1, 2]))
    found = simulate(search(costs, 2, 3, limit, chunks=1), costs).makespan
    assert found == pytest.approx(shortest(costs, 2, 3, limit))


def test_by_hand_is_kept_where_nothing_is_better():
    assert search(Costs(), 4, 8, memory_limit=4, chunks=1).name == "auto: zb-h1"
    assert search(Costs(), 4, 8, memory_limit=8, chunks=1).name == "auto: zb-h2"
    assert search(Costs(), 4, 8, memory_limit=4).name == "auto: zb-v"


def test_a_limit_below_1f1b_is_met():
    """With room for two micro-batches in flight, the last rank of four is fed two at a time: slow, but it runs."""
    costs = Costs(1, 1, 1, m_b=1, m_w=0.5)
    for limit in (1, 2, 3):
        schedule = search(costs, 4, 8, memory_limit=limit, chunks=1)
        validate(schedule, costs, limit)


def test_with_room_for_one_micro_batch_they_go_one_after_another():
    """Down and up through all ranks and W on the first one, before there is room for the next: m (p F + p B + W)."""
    run = simulate(search(Costs(1, 1, 1, m_b=1, m_w=1), 3, 4, memory_limit=1, chunks=1), Costs(1, 1, 1))
    assert run.makespan == 4 * (3 + 3 + 1)


@pytest.mark.parametrize("stages, microbatches, weight_parts", [(3, 4, 1), (1, 2, 1), (4, 1, 2), (2, 3, 3)])
def test_two_stages_take_less_if_dw_holds_more_than_dx(stages, microbatches, weight_parts):
    """The other chunk holds its m_b / 2 = 0.5 while one is at its m_w / 2 = 1; one stage per rank would hold 2."""
    costs, told = Costs(m_b=1, m_w=2), []
    schedule = search(costs, stages, microbatches, memory_limit=1.5, weight_parts=weight_parts,
                      progress=lambda *values: told.append(values))
    validate(schedule, costs, 1.5)
    assert max(simulate(schedule, costs).peak_memory) == pytest.approx(1.5) and told
    with pytest.raises(ScheduleError, match="fits a memory limit of 1.4: one micro-batch alone takes 1.5 on rank 0"):
        search(costs, stages, microbatches, memory_limit=1.4, weight_parts=weight_parts)
    with pytest.raises(ScheduleError, match="fits a memory limit of 1.6: one micro-batch alone takes 2 on rank 0"):
        search(costs, stages, microbatches, memory_limit=1.6, chunks=1, weight_parts=weight_parts)


def test_chunks_that_are_better_together():
    """The first chunk has nothing left after its B, the second nothing before: as one stage they take 2, as two 4."""
    costs = Costs(m_b=[[2, 0]] * 2, m_w=[[0, 2]] * 2)
    schedule = search(costs, 2, 3, memory_limit=2)
    validate(schedule, costs, 2)
    with pytest.raises(ScheduleError, match="one micro-batch alone takes 2 on rank 0"):
        search(costs, 2, 3, memory_limit=1.5)


@examples(40)
@given(st.data())
def test_what_is_said_to_be_needed_is_enough(data):
    stages, microbatches, chunks = (data.draw(st.integers(1, most)) for most in (3, 3, 2))
    costs = Costs(**data.draw(cost_arguments(stages, chunks=2)))
    try:
        search(costs, stages, microbatches, 1e-3, chunks=chunks)
    except ScheduleError as error:
        need = float(str(error).split("alone takes ")[1].split()[0]) * (1 + 1e-4)  # it is printed with six digits
        validate(search(costs, stages, microbatches, need, chunks=chunks), costs, need)


def test_nothing_fits():
    with pytest.raises(ScheduleError, match="no schedule fits a memory limit of 0.5: one micro-batch alone takes 1 on "
                                            "rank 0"):
        search(Costs(), 2, 4, memory_limit=0.5)
    with pytest.raises(ScheduleError, match="takes 3 on rank 1"):
        search(Costs(m_b=[1, 3]), 2, 4, memory_limit=2)


def test_small_parts_of_dw_fill_small_gaps():
    costs = Costs(f=[2, 2, 4, 3, 1], b=[2, 2, 3, 3, 3], w=[3, 1, 3, 1, 1], comm=0.5)
    rates = [simulate(search(costs, 5, 8, memory_limit=5, chunks=1, weight_parts=parts), costs).bubble_rate
             for parts in (1, 2)]
    assert rates[1] < rates[0]


def test_equal_times_have_no_bubble_with_enough_memory():
    run = simulate(search(Costs(1, 1, 1), 4, 12, memory_limit=8, chunks=1), Costs(1, 1, 1))
    assert run.makespan == 36


def test_the_same_arguments_give_the_same_schedule():
    costs = Costs(2, 2.1, 0.9, 0.1)
    assert search(costs, 4, 9, 6) == search(costs, 4, 9, 6)


def test_the_work_is_bounded(monkeypatch):
    tried = []

    def counted(task, shape):
        tried.append(shape)
        return Construction(task, shape)

    monkeypatch.setattr(searching, "Construction", counted)
    counts = []
    for work in (0, 300_000, 600_000):  # the first shapes are always tried
        monkeypatch.setattr(searching, "WORK", work)
        monkeypatch.setattr(searching, "LEAST_TRIED", 0)
        tried.clear()
        search(Costs(*ROWS[0][1:5]), 8, 24, memory_limit=16, chunks=1)
        counts.append(len(tried))
    assert counts[0] < counts[1] < counts[2]
    assert counts[1] * 8 * 24 * 3 < 310_000 and counts[2] * 8 * 24 * 3 < 610_000


def test_progress_is_told():
    told = []
    costs = Costs(*ROWS[0][1:5])
    schedule = search(costs, 8, 24, memory_limit=16, progress=lambda *values: told.append(values))
    assert len(told) > 10
    assert all(0 < placed <= most for placed, most, _ in told)
    rates = [rate for _, _, rate in told]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(simulate(schedule, costs).bubble_rate)


@pytest.mark.parametrize("limit", [8, 12, 16, None])
def test_8_ranks_and_64_microbatches_take_less_than_10_s(limit):
    start = time.process_time()
    search(Costs(*ROWS[2][1:5]), 8, 64, memory_limit=limit)
    assert time.process_time() - start < 10


@pytest.mark.parametrize("arguments, options, error, message", [
    ((1.0, 2, 2), {}, ArgumentTypeError, "costs is a Costs, not float"),
    ((Costs(), 0, 2), {}, ArgumentValueError, "stages is at least 1"),
    ((Costs(), 2, 2.5), {}, ArgumentTypeError, "microbatches is an integer"),
    ((Costs(), 2, 2, 0), {}, ArgumentValueError, "memory_limit is a finite number above 0, or None for no limit, not 0"),
    ((Costs(), 2, 2, float("nan")), {}, ArgumentValueError, "memory_limit is a finite number above 0"),
    ((Costs(), 2, 2), {"chunks": 3}, ArgumentValueError, "chunks is 1 or 2, not 3"),
    ((Costs(f=[1, 2, 3]), 2, 2), {}, ArgumentValueError, "f has 3 numbers for 2 ranks"),
])
def test_arguments_that_cannot_be_used(arguments, options, error, message):
    with pytest.raises(error, match=message):
        search(*arguments, **options)
