"""A worker of test_pipeline.py: schedules and kinds of stages, against one process without a pipeline.

    pipeline_values.py all | some

Prints "checked ..." for each check, and raises at the first difference.
"""

import dataclasses
import functools
import sys

import numpy as np

from mindspore_zb.errors import PipelineError, ZeroBubbleError
from mindspore_zb.pipeline import TensorMeta, connect
from mindspore_zb.schedule import Costs, simulate
from tests.pipeline.cases import (CASES, ROWS, SCHEDULES, WIDTH, assert_equal_gradients, build, make_schedule,
                                  without_pipeline)

MICROBATCHES = 4
SOME = [("1f1b", "integers"), ("zb-h1", "weightless"), ("zb-h1", "tied"), ("zb-h2", "dropout"), ("zb-v", "nested"),
        ("auto", "extras")]
COMPILED = [("zb-h1", "integers"), ("zb-v", "tied")]
ALL_COMPILED = [("zb-v", "tied"), *((name, "integers") for name in SCHEDULES)]
GRAPH_TOLERANCE = 1e-4
"""Compiled code adds in another order."""


def main(what: str) -> None:
    """Everything that one launch checks."""
    end = connect(timeout=300)
    pairs = [(name, kind) for name in SCHEDULES for kind in CASES] if what == "all" else SOME
    for name, kind in pairs:
        check_values(end, name, kind, "auto")
    for name, kind in ALL_COMPILED if what == "all" else COMPILED:
        check_values(end, name, kind, "graph")
    for name in SCHEDULES[:3]:
        check_held(end, name)
    check_uneven(end)
    check_wrong_shapes(end)
    print(f"rank {end.rank}: all checked", flush=True)
    end.close()


def checked(end, what):
    """Say so."""
    print(f"rank {end.rank}: checked {what}", flush=True)


def check_values(end, name, kind, mode):
    """One schedule with one kind of stages."""
    schedule = make_schedule(name, end.ranks, MICROBATCHES, 2)
    case = build_once(kind, schedule.stages)
    compiled = dataclasses.replace(case, stages=tuple(dataclasses.replace(stage, mode=mode) for stage in case.stages))
    pipeline = compiled.pipeline(schedule, end.rank, end)
    result = pipeline.step(**case.batch)
    if case.seed is not None:  # random masks: the same again, as a pipeline made anew begins with the same seeds
        again = compiled.pipeline(schedule, end.rank, end)
        repeated = again.step(**case.batch)
        assert [float(loss) for loss in repeated.losses] == [float(loss) for loss in result.losses]
        for one, other in zip(pipeline.gradients(), again.gradients()):
            np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
    else:
        losses, expected = without_pipeline(case, MICROBATCHES)
        if result.loss is not None:
            np.testing.assert_allclose([float(loss) for loss in result.losses], losses,
                                       rtol=1e-6 if mode == "auto" else GRAPH_TOLERANCE)
        tolerance = {} if mode == "auto" else {"tolerance": GRAPH_TOLERANCE}
        assert_equal_gradients(pipeline.weights, pipeline.gradients(), expected, f"{name} {kind}", **tolerance)
    entries = pipeline.collect(result.entries)
    if end.rank == 0:
        assert {entry[0] for entry in entries} == set(range(end.ranks))
        assert len(entries) == sum(map(len, schedule.actions))
    checked(end, f"{name} {kind} {mode}")


@functools.lru_cache(maxsize=None)
def build_once(kind, stages):
    """The same objects for all schedules, as compiling takes long."""
    return build(kind, stages, MICROBATCHES)


def check_held(end, name):
    """What is held at once is what the simulator counts; the first stage holds everything until W."""
    schedule = make_schedule(name, end.ranks, 2 * end.ranks)
    case = build("integers", schedule.stages, 2 * end.ranks)
    result = case.pipeline(schedule, end.rank, end).step(**case.batch)
    m_w = [1.0 if rank == 0 else 0.5 for rank in range(end.ranks)]
    assert result.peak_memory() == simulate(schedule, Costs(m_w=m_w)).peak_memory[end.rank], (name, end.rank)
    checked(end, f"held {name}")


def check_uneven(end):
    """A batch that cannot be cut is refused before anything is sent."""
    schedule = make_schedule("zb-h1", end.ranks, MICROBATCHES)
    case = build("integers", schedule.stages, MICROBATCHES)
    pipeline = case.pipeline(schedule, end.rank, end)
    name = {0: "inputs[0]", end.ranks - 1: "targets[0]"}.get(end.rank)
    if name is not None:
        message = refusal(lambda: pipeline.begin((case.inputs[0][:-1],), (case.targets[0][:-1],)))
        assert message == f"{name} has a batch of {ROWS * MICROBATCHES - 1} along axis 0, which cannot be cut into " \
                          f"{MICROBATCHES} equal micro-batches", message
    checked(end, "uneven")


def check_wrong_shapes(end):
    """What does not fit is told on every rank before the first step, with the stage and the rank it is about."""
    schedule = make_schedule("zb-h1", end.ranks, MICROBATCHES)
    last = end.ranks - 1
    given = f"float32 ({ROWS}, {WIDTH})"

    def told(case, schedule=schedule):
        return refusal(lambda: case.pipeline(schedule, end.rank, end).step(**case.batch))

    case = build("integers", schedule.stages, MICROBATCHES)
    declared = dataclasses.replace(case.stages[last], takes=TensorMeta((ROWS, WIDTH + 1)))
    message = told(dataclasses.replace(case, stages=(*case.stages[:-1], declared)))
    assert message == (f"rank {end.rank}: before the first step, stage {last} on rank {last}: it takes float32 "
                       f"({ROWS}, {WIDTH + 1}), but stage {last - 1} on rank {last - 1} gives {given}"), message
    wide = dataclasses.replace(case.stages[last], fn=lambda x, ids: case.stages[last].fn(x[:, :-1], ids))
    message = told(dataclasses.replace(case, stages=(*case.stages[:-1], wide)))
    assert message.startswith(f"rank {end.rank}: before the first step, stage {last} on rank {last}: its forward on "
                              f"{given} from stage {last - 1} on rank {last - 1} failed: "), message
    other = make_schedule("1f1b" if end.rank == last else "zb-h1", end.ranks, MICROBATCHES)
    message = told(case, other)
    assert f"stage {last} on rank {last}: the rank of stage {last - 1} has another schedule than 1f1b" in message
    checked(end, "wrong shapes")


def refusal(work):
    """The message of the error that ``work`` raises."""
    try:
        work()
    except (PipelineError, ZeroBubbleError) as error:
        return str(error)
    raise AssertionError("nothing was refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
