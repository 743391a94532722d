"""A worker of test_pipeline.py: all schedules and all kinds of stages, against one process without a pipeline.

    pipeline_values.py RANKS_OF_THE_PIPELINE... ; prints "checked ..." lines, and raises at the first difference.
"""

import sys

import mindspore as ms
import numpy as np

from mindspore_zb.errors import ZeroBubbleError
from mindspore_zb.pipeline import Stage, connect
from mindspore_zb.schedule import Costs, simulate
from tests.pipeline.cases import CASES, SCHEDULES, assert_equal_gradients, build, make_schedule, without_pipeline

MICROBATCHES = 4


def main(mode: str) -> None:
    """Everything that one launch checks."""
    end = connect(timeout=120)
    for name in SCHEDULES:
        for kind in CASES:
            check(end, name, kind, mode)
    check_memory(end)
    check_uneven(end)
    print(f"rank {end.rank}: all checked", flush=True)
    end.close()


def check(end, name, kind, mode):
    """One schedule with one kind of stages."""
    schedule = make_schedule(name, end.ranks, MICROBATCHES, 2)
    case = build(kind, schedule.stages, MICROBATCHES)
    pipeline = case.pipeline(schedule, end.rank, end)
    result = pipeline.step(**case.batch)
    if case.seed is not None:  # random masks: the same again, as a pipeline made anew begins with the same seeds
        again = case.pipeline(schedule, end.rank, end)
        first = [grad.asnumpy() for grad in pipeline.gradients()]
        assert [float(loss) for loss in again.step(**case.batch).losses] == [float(loss) for loss in result.losses]
        for one, other in zip(first, again.gradients()):
            np.testing.assert_array_equal(one, other.asnumpy())
    else:
        losses, expected = without_pipeline(case, MICROBATCHES)
        if result.loss is not None:
            np.testing.assert_allclose([float(loss) for loss in result.losses], losses, rtol=1e-6)
        assert_equal_gradients(pipeline.weights, pipeline.gradients(), expected, f"{name} {kind} rank {end.rank}")
    entries = pipeline.collect(result.entries)
    if end.rank == 0:
        assert {entry[0] for entry in entries} == set(range(end.ranks))
    print(f"rank {end.rank}: checked {name} {kind}", flush=True)


def check_memory(end):
    """What is held at once is what the simulator counts."""
    for name in SCHEDULES[:3]:
        schedule = make_schedule(name, end.ranks, 2 * end.ranks)
        case = build("integers", schedule.stages, 2 * end.ranks)
        result = case.pipeline(schedule, end.rank, end).step(**case.batch)
        m_w = [1.0 if rank == 0 else 0.5 for rank in range(end.ranks)]
        assert result.peak_memory() == simulate(schedule, Costs(m_w=m_w)).peak_memory[end.rank], (name, end.rank)


def check_uneven(end):
    """Each rank refuses a batch that cannot be cut, before it sends anything."""
    schedule = make_schedule("zb-h1", end.ranks, MICROBATCHES)
    case = build("integers", schedule.stages, MICROBATCHES)
    pipeline = case.pipeline(schedule, end.rank, end)
    if end.rank in (0, end.ranks - 1):
        try:
            pipeline.begin((case.inputs[0][:-1],), (case.targets[0][:-1],))
        except ZeroBubbleError as error:
            assert "11 along axis 0, which cannot be cut into 4 equal micro-batches" in str(error) \
                or f"{3 * MICROBATCHES - 1} along axis 0" in str(error), error
            print(f"rank {end.rank}: uneven refused", flush=True)
        else:
            raise AssertionError("an uneven batch was accepted")


if __name__ == "__main__":
    ms.set_seed(0)
    main(*sys.argv[1:])
