"""What no schedule with the memory of ZB-H1 can reach: for two ranks all of them are looked through, for any number of
ranks it is proved.

With p micro-batches in flight on rank 0, each holds its place from its F to its W: p F, p B, 2 (p - 1) messages and a W
follow one another before the next F can take it. That is longer than the p (F + B + W) which the closed formula of
ZB-H1 allows for p micro-batches, if W is shorter than 2 C.

The proof, :func:`shortest`: on rank 0 a micro-batch takes up M_B for at least p (F + B) + 2 (p - 1) C, the way through
all ranks and back, and then M_W for at least W. All of them together take up no more than p M_B at any time, and less
before the first p F have begun, which is at least F apart.
"""

from random import Random

import pytest

from mindspore_zb.schedule import Costs, generate, simulate

F, B, W = 0, 1, 2


class AllSchedules:
    """All orders of F, B and W on the ranks, each with the memory of ZB-H1, in times that are integers.

    Micro-batches are alike, so each kind takes them in order. Whether a makespan can be reached is found by trying
    every next action of every rank, and leaving a way as soon as a rank cannot be done in time.
    """

    def __init__(self, ranks, microbatches, f, b, w, c, m_b=2, m_w=1):
        self.p, self.m, self.times, self.c = ranks, microbatches, (f, b, w), c
        self.memory = m_b, m_w - m_b, -m_w
        self.limits = [(ranks - rank) * m_b + rank * m_w for rank in range(ranks)]

    def reaches(self, makespan):
        """Whether a schedule takes at most that long on every rank."""
        rank = ((0, 0, 0), 0, None, (), ())  # done, clock, first start, and when inputs and gradients arrive
        start = (rank,) * self.p
        seen, todo = {start}, [start]
        while todo:
            state = todo.pop()
            if all(sum(rank[0]) == 3 * self.m for rank in state):
                return True
            for rank in range(self.p):
                for kind in (F, B, W):
                    after = self._after(state, rank, kind, makespan)
                    if after is not None and after not in seen:
                        seen.add(after)
                        todo.append(after)
        return False

    def _after(self, state, rank, kind, makespan):
        done, clock, begun, inputs, gradients = state[rank]
        if done[kind] == (self.m if kind == F else done[kind - 1]):
            return None
        held = sum(count * amount for count, amount in zip(done, self.memory))
        if held + max(self.memory[kind], 0) > self.limits[rank]:
            return None
        if kind == F and rank > 0:
            if not inputs:
                return None
            clock, inputs = max(clock, inputs[0]), inputs[1:]
        if kind == B and rank + 1 < self.p:
            if not gradients:
                return None
            clock, gradients = max(clock, gradients[0]), gradients[1:]
        begun = clock if begun is None else begun
        clock += self.times[kind]
        done = tuple(count + (place == kind) for place, count in enumerate(done))
        rest = sum((self.m - count) * time for count, time in zip(done, self.times))
        if clock + rest - begun > makespan:
            return None
        state = list(state)
        state[rank] = done, clock, begun, inputs, gradients
        if kind == F and rank + 1 < self.p:
            *same, arrivals, back = state[rank + 1]
            state[rank + 1] = (*same, (*arrivals, clock + self.c), back)
        if kind == B and rank > 0:
            *same, back = state[rank - 1]
            state[rank - 1] = (*same, (*back, clock + self.c))
        return tuple(state)


def formula(p, m, f, b, w, c):
    """Of arXiv 2401.10241."""
    return m * (f + b + w) + (p - 1) * (f + b - w + 4 * c)


def shortest(p, m, f, b, w, c, share=0.5):
    """A bound from below for every schedule with at most p M_B on rank 0, M_W being that ``share`` of M_B."""
    return m * (p * (f + b) + 2 * (p - 1) * c + share * w) / p + f * (p - 1) / 2


def generated(p, m, f, b, w, c):
    run = simulate(generate("zb-h1", stages=p, microbatches=m), Costs(f, b, w, c))
    assert run.peak_memory == tuple(p - rank + rank / 2 for rank in range(p))
    return run.makespan


SHORT = [(100, 100, 10, 9), (100, 100, 15, 9), (100, 120, 0, 9), (110, 100, 17, 9)]
LONG = [(100, 100, 18, 9), (100, 100, 20, 9), (100, 120, 60, 9)]
"""F, B, W and C, with W shorter than 2 C, and with W as long."""


@pytest.mark.parametrize("times", SHORT + LONG)
@pytest.mark.parametrize("m", [2, 4, 6, 8])
def test_nothing_of_this_memory_is_shorter_on_two_ranks(m, times):
    """ZB-H1 as it is made here is the shortest there is: as long as the formula for 4 micro-batches, and for more of
    them if W is at least 2 C; for 2 of them it is shorter."""
    schedules, made = AllSchedules(2, m, *times), generated(2, m, *times)
    assert schedules.reaches(made) and not schedules.reaches(made - 1)
    wanted = formula(2, m, *times)
    if m == 2:
        assert made == wanted - 2 * times[3]
    elif m == 4 or times in LONG:
        assert made == wanted
    else:
        assert made > wanted and not schedules.reaches(wanted)


@pytest.mark.parametrize("times", SHORT)
def test_with_room_for_one_more_micro_batch_the_formula_can_be_met(times):
    schedules = AllSchedules(2, 6, *times)
    schedules.limits = [limit + 2 for limit in schedules.limits]
    assert schedules.reaches(formula(2, 6, *times))


@pytest.mark.parametrize("stages", range(2, 9))
def test_how_much_longer_it_is(stages):
    """Each further p micro-batches wait (p - 1)(2 C - W) longer for their way through all ranks."""
    random = Random(stages)
    for rounds in (2, 3, 5):
        m, f, b = rounds * stages, random.uniform(1, 2), random.uniform(1, 2)
        c = random.uniform(0, 0.1) * f
        w = random.uniform(0, 2 * c)
        longer = (rounds * (stages - 1) - stages) * (2 * c - w)
        assert generated(stages, m, f, b, w, c) == pytest.approx(formula(stages, m, f, b, w, c) + longer, rel=1e-9)


@pytest.mark.parametrize("times", SHORT)
@pytest.mark.parametrize("m", [2, 4, 6])
def test_the_bound_is_one(m, times):
    """No schedule of two ranks is shorter than what the proof says."""
    assert not AllSchedules(2, m, *times).reaches(shortest(2, m, *times) - 1)


@pytest.mark.parametrize("stages", range(2, 33))
def test_with_short_w_the_formula_is_below_what_can_be_reached(stages):
    """For any number of ranks: with many micro-batches every schedule of this memory is longer than the formula."""
    times, m = (100, 100, 1, 9), 12 * stages
    assert formula(stages, m, *times) < shortest(stages, m, *times) <= generated(stages, m, *times)
    assert shortest(stages, m, 100, 100, 18, 9) < formula(stages, m, 100, 100, 18, 9)
