"""Random schedules and costs."""

import os

from hypothesis import HealthCheck, settings, strategies as st

from mindspore_zb.schedule import generate

EXAMPLES = int(os.environ.get("ZB_TEST_EXAMPLES", "0"))
"""More than 0: that many fresh random examples for each property instead of the repeatable ones."""

HAND_MADE = ("1f1b", "zb-h1", "zb-h2", "zb-v")


def examples(count):
    """Settings of a property test: ``count`` examples, the same in every run."""
    return settings(max_examples=EXAMPLES or count, derandomize=not EXAMPLES, database=None, deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@st.composite
def schedules(draw, ranks=5, microbatches=9, names=HAND_MADE):
    """A schedule of the catalogue."""
    return generate(draw(st.sampled_from(names)), stages=draw(st.integers(1, ranks)),
                    microbatches=draw(st.integers(1, microbatches)), weight_parts=draw(st.integers(1, 3)))


@st.composite
def cost_arguments(draw, ranks, chunks=1, most=4):
    """Arguments of ``Costs``, in quarters so that sums are exact: for each rank a number for each chunk."""
    quarters = st.integers(0, 4 * most).map(lambda number: number / 4)

    def by_rank():
        return [[draw(quarters) for _ in range(chunks)] for _ in range(ranks)]

    arguments = {name: by_rank() for name in ("f", "b", "w", "m_b")}
    arguments["m_w"] = [[draw(st.integers(0, 4)) / 4 * memory for memory in memories] for memories in arguments["m_b"]]
    arguments["comm"] = [draw(quarters) for _ in range(ranks - 1)]
    return arguments


def by_stage(arguments, ranks, chunks):
    """The same costs as lists by stage, for the oracle."""
    lists = {"comm": arguments["comm"]}
    for name in ("f", "b", "w", "m_b", "m_w"):
        lists[name] = [0.0] * (ranks * chunks)
        for rank in range(ranks):
            for chunk in range(chunks):
                stage = chunk * ranks + (rank if chunk % 2 == 0 else ranks - 1 - rank)
                lists[name][stage] = arguments[name][rank][chunk]
    return lists
