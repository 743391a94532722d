"""Published rows and closed formulas of arXiv 2401.10241: bubble rates, makespans and peak memories."""

from random import Random

import pytest

from mindspore_zb.schedule import Costs, generate, simulate

ROWS = [  # micro-batches, F, B, W, C in ms on 8 ranks, and the rates of 1F1B, ZB-H1 and ZB-H2
    (24, 18.522, 18.086, 9.337, 0.601, (0.2431, 0.1585, 0.1083)),
    (32, 18.513, 18.086, 9.331, 0.626, (0.1985, 0.1242, 0.0837)),
    (64, 18.546, 18.097, 9.321, 0.762, (0.1240, 0.0674, 0.0444)),
]
NAMES = ("1f1b", "zb-h1", "zb-h2")


@pytest.mark.parametrize("microbatches, f, b, w, comm, rates", ROWS)
def test_published_rates(microbatches, f, b, w, comm, rates):
    for name, rate in zip(NAMES, rates):
        run = simulate(generate(name, stages=8, microbatches=microbatches), Costs(f, b, w, comm))
        assert run.bubble_rate == pytest.approx(rate, abs=0.0001), name


@pytest.mark.parametrize("stages, microbatches, makespans", [
    (4, 8, (33, 27, 24)), (8, 16, (69, 55, 48)), (16, 48, (189, 159, 144))])
def test_unit_costs(stages, microbatches, makespans):
    for name, makespan in zip(NAMES, makespans):
        assert simulate(generate(name, stages=stages, microbatches=microbatches), Costs(1, 1, 1)).makespan == makespan


def makespan(name, p, m, f, b, w, c=0.0):
    work = m * (f + b + w)
    return {"1f1b": work + (p - 1) * (f + b + w) + c * (2 * (p - 1) * m / p + 2 * (p - 2)),
            "zb-h1": work + (p - 1) * (f + b - w + 4 * c),
            "zb-h2": work + (p - 1) * (f + b - 2 * w + 2 * c)}[name]


def peaks(name, p, m_b, m_w):
    return [{"1f1b": (p - i + 1) * m_b,
             "zb-h1": (p - i + 1) * m_b + (i - 1) * m_w,
             "zb-h2": (2 * p - 2 * i + 1) * m_b + (2 * i - 2) * m_w}[name] for i in range(1, p + 1)]


def check_without_communication(p, m, random):
    """1F1B, ZB-H1 and ZB-H2 under random costs with W at most F and B; ZB-V with equal ones."""
    f, b = random.randint(1, 9), random.randint(1, 9)
    w = random.randint(0, min(f, b))
    m_b = random.randint(1, 9)
    m_w = random.randint(0, m_b)
    for name in NAMES:
        run = simulate(generate(name, stages=p, microbatches=m), Costs(f, b, w, m_b=m_b, m_w=m_w))
        assert run.makespan == makespan(name, p, m, f, b, w), (name, p, m, f, b, w)
        assert list(run.peak_memory) == peaks(name, p, m_b, m_w), (name, p, m, m_b, m_w)
    run = simulate(generate("zb-v", stages=p, microbatches=m), Costs(2, 2, 2, m_b=m_b, m_w=m_w))
    assert run.makespan == 6 * m
    assert max(run.peak_memory) == p * m_b


@pytest.mark.parametrize("stages", range(2, 9))
def test_formulas_without_communication(stages):
    random = Random(stages)
    for microbatches in random.sample(range(2 * stages, 8 * stages + 1), 6) + [2 * stages, 8 * stages]:
        check_without_communication(stages, microbatches, random)


@pytest.mark.slow
@pytest.mark.parametrize("stages", range(9, 33))
def test_formulas_without_communication_for_many_ranks(stages):
    random = Random(stages)
    for microbatches in (2 * stages, 2 * stages + 1, random.randint(2 * stages, 6 * stages), 8 * stages):
        check_without_communication(stages, microbatches, random)


@pytest.mark.parametrize("stages", [2, 3, 4, 5, 7, 8, 12, pytest.param(32, marks=pytest.mark.slow)])
def test_formulas_with_communication(stages):
    """ZB-H1 has time for the way to the next rank and back, 2C, only while the next rank runs W."""
    random = Random(stages)
    for rounds in (2, 3, 5, 8):
        m = rounds * stages
        f, b = random.uniform(1, 2), random.uniform(1, 2)
        c = random.uniform(0, 0.1) * f
        w = random.uniform(2 * c, min(f, b))
        for name in NAMES:
            run = simulate(generate(name, stages=stages, microbatches=m), Costs(f, b, w, c))
            assert run.makespan == pytest.approx(makespan(name, stages, m, f, b, w, c), rel=1e-9), (name, m, f, b, w, c)


@pytest.mark.parametrize("stages", range(1, 9))
def test_few_microbatches_are_sensible(stages):
    """A split backward is never slower than 1F1B, and takes no more memory than with many micro-batches."""
    for microbatches in range(1, 2 * stages):
        runs = {name: simulate(generate(name, stages=stages, microbatches=microbatches), Costs(1, 1, 1, m_w=1))
                for name in (*NAMES, "zb-v")}
        assert runs["1f1b"].makespan == 3 * (microbatches + stages - 1)
        for name, run in runs.items():
            assert run.makespan <= runs["1f1b"].makespan, (name, microbatches)
            assert max(run.peak_memory) <= (2 * stages - 1 if name == "zb-h2" else stages), (name, microbatches)
