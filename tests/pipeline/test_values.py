"""Every schedule gives the losses and gradients of one process without a pipeline, whatever the stages are."""

import dataclasses

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from mindspore_zb.pipeline import LocalNetwork, Stage, TensorMeta, step_together
from mindspore_zb.schedule import Costs, simulate
from tests.pipeline.cases import (CASES, SCHEDULES, WIDTH, Case, Numbers, assert_equal_gradients, build, make_schedule,
                                  seeded_by_stage, without_pipeline)


def pipelines_of(case, schedule, **options):
    ends = LocalNetwork(schedule.ranks).ends
    return [case.pipeline(schedule, rank, end, **options) for rank, end in enumerate(ends)]


def expected_of(case, pipelines, microbatches):
    """Without a pipeline; random operations get the seeds that the pipeline gives them."""
    if case.seed is None:
        return without_pipeline(case, microbatches)
    losses, sums = [], {}
    for microbatch in range(microbatches):
        stages = tuple(seeded_by_stage(case, pipelines[0], microbatch))
        rows = slice(microbatch * 3, microbatch * 3 + 3)
        piece = dataclasses.replace(case, stages=stages, inputs=(case.inputs[0][rows],),
                                    targets=(case.targets[0][rows],))
        loss, grads = without_pipeline(piece, 1)
        losses += loss
        for key, grad in grads.items():
            sums[key] = sums.get(key, 0) + grad / microbatches
    return losses, sums


COMBINATIONS = [(kind, name, 2, 4, 1) for kind in CASES for name in SCHEDULES]
COMBINATIONS += [("integers", name, *numbers) for name in SCHEDULES for numbers in ((3, 5, 3), (2, 1, 2))]
COMBINATIONS += [(kind, "zb-v", 3, 4, 2) for kind in CASES]


@pytest.mark.parametrize("kind, name, ranks, microbatches, parts", COMBINATIONS)
def test_losses_and_gradients(kind, name, ranks, microbatches, parts):
    schedule = make_schedule(name, ranks, microbatches, parts)
    case = build(kind, schedule.stages, microbatches)
    pipelines = pipelines_of(case, schedule)
    losses, expected = expected_of(case, pipelines, microbatches)
    results = step_together(pipelines, **case.batch)
    last = results[schedule.rank_of(schedule.stages - 1)]
    np.testing.assert_allclose([float(loss.asnumpy()) for loss in last.losses], losses, rtol=1e-6)
    np.testing.assert_allclose(float(last.loss.asnumpy()), np.mean(losses), rtol=1e-6)
    assert [result.loss is None for result in results].count(False) == 1
    for pipeline in pipelines:
        assert_equal_gradients(pipeline.weights, pipeline.gradients(), expected, f"rank {pipeline.rank}")


@pytest.mark.parametrize("kind", ["integers", "tied", "nested"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_one_rank(kind, name):
    schedule = make_schedule(name, 1, 3)
    case = build(kind, max(schedule.stages, 2), 3)
    if schedule.stages == 1:
        stages = case.stages

        def whole(*arguments):
            return stages[1].fn(stages[0].fn(*arguments[:-1]), arguments[-1])

        weights = [weight for stage in stages for weight in stage.weights]
        case = dataclasses.replace(case, stages=(dataclasses.replace(stages[0], fn=whole, weights=weights),))
    losses, expected = without_pipeline(case, 3)
    pipeline = case.pipeline(schedule, 0, None)
    result = pipeline.step(**case.batch)
    np.testing.assert_allclose(float(result.loss.asnumpy()), np.mean(losses), rtol=1e-6)
    assert_equal_gradients(pipeline.weights, pipeline.gradients(), expected, "one rank")


def test_a_weight_of_two_chunks_of_a_rank_has_one_gradient():
    schedule = make_schedule("zb-v", 2, 2)
    case = build("tied", 4, 2)
    first = case.stages[0]
    last = case.stages[3]

    def loss(x, ids):
        return last.fn(first.fn(x), ids)

    shared = dataclasses.replace(last, fn=loss, weights=[*last.weights, *first.weights])
    case = dataclasses.replace(case, stages=(*case.stages[:3], shared))
    losses, expected = without_pipeline(case, 2)
    pipelines = pipelines_of(case, schedule)
    step_together(pipelines, **case.batch)
    assert len(pipelines[0].weights) == len(first.weights) + len(last.weights)
    assert_equal_gradients(pipelines[0].weights, pipelines[0].gradients(), expected, "shared")


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_held_is_what_the_simulator_counts(name):
    """The first stage has no dx: there everything is held until W."""
    ranks, microbatches = 3, 6
    schedule = make_schedule(name, ranks, microbatches)
    case = build("integers", schedule.stages, microbatches)
    results = step_together(pipelines_of(case, schedule), **case.batch)
    chunks = schedule.chunks
    m_w = [[1.0 if stage == 0 else 0.5 for stage in schedule.stages_of(rank)] for rank in range(ranks)]
    simulated = simulate(schedule, Costs(m_b=[[1.0] * chunks] * ranks, m_w=m_w))
    for result in results:
        assert result.peak_memory(1.0, 0.5) == simulated.peak_memory[result.rank], result.rank


@pytest.mark.parametrize("kind, name, ranks", [
    ("integers", "1f1b", 3), ("integers", "zb-h1", 3), ("integers", "zb-h2", 2), ("nested", "zb-h1", 3),
    pytest.param("integers", "zb-v", 2, marks=pytest.mark.slow),
    pytest.param("integers", "auto", 2, marks=pytest.mark.slow)])
def test_peak_bytes_of_every_rank_are_what_the_simulator_counts(kind, name, ranks):
    """To the byte. M_B and M_W of each stage are read off one micro-batch that goes through alone."""
    microbatches = 4
    schedule = make_schedule(name, ranks, microbatches)
    case = build(kind, schedule.stages, 1)
    alone = step_together(pipelines_of(case, make_schedule("1f1b", schedule.stages, 1), measure_memory=True),
                          **case.batch)
    after = {str(entry[1]): held for result in alone for entry, held in zip(result.entries, result.bytes_held)}
    m_b, m_w = ([[after[f"{stage}{what}0"] for stage in schedule.stages_of(rank)] for rank in range(ranks)]
                for what in "FB")
    simulated = simulate(schedule, Costs(m_b=m_b, m_w=m_w))

    case = build(kind, schedule.stages, microbatches)
    results = step_together(pipelines_of(case, schedule, measure_memory=True), **case.batch)
    assert [max(result.bytes_held) for result in results] == list(simulated.peak_memory)
    assert 0 < after["1B0"] < after["1F0"] and [result.bytes_held[-1] for result in results] == [0] * ranks


def test_entries_are_the_schedule_in_order():
    schedule = make_schedule("zb-h1", 2, 3, 2)
    case = build("integers", 2, 3)
    for result in step_together(pipelines_of(case, schedule), **case.batch):
        assert tuple(entry[1] for entry in result.entries) == schedule.actions[result.rank]
        assert all(entry[0] == result.rank and entry[2] <= entry[3] for entry in result.entries)


def test_steps_do_not_add_up():
    schedule = make_schedule("zb-h1", 2, 2)
    case = build("integers", 2, 2)
    pipelines = pipelines_of(case, schedule)
    _, expected = without_pipeline(case, 2)
    for _ in range(3):
        step_together(pipelines, **case.batch)
        for pipeline in pipelines:
            assert_equal_gradients(pipeline.weights, pipeline.gradients(), expected, "step")


def test_dropout_is_that_of_the_seed_whatever_the_schedule():
    grads = {}
    for seed, name in ((1, "1f1b"), (1, "zb-h2"), (2, "1f1b")):
        case = dataclasses.replace(build("dropout", 2, 3), seed=seed)
        pipelines = pipelines_of(case, make_schedule(name, 2, 3))
        results = step_together(pipelines, **case.batch)
        grads[seed, name] = [float(loss.asnumpy()) for loss in results[1].losses]
        again = step_together(pipelines, **case.batch)
        assert [float(loss.asnumpy()) for loss in again[1].losses] != grads[seed, name], "each step has its own masks"
    assert grads[1, "1f1b"] == grads[1, "zb-h2"] != grads[2, "1f1b"]


def test_the_caller_s_random_numbers_stay_as_they_are():
    case = build("dropout", 2, 2)
    np.random.seed(3)
    wanted = np.random.rand(2)
    np.random.seed(3)
    first = np.random.rand()
    step_together(pipelines_of(case, make_schedule("1f1b", 2, 2)), **case.batch)
    assert [first, np.random.rand()] == list(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_compiled_stages(kind):
    """The graph engine adds in another order."""
    schedule = make_schedule("zb-h1", 2, 2, 2)
    case = build(kind, 2, 2)
    compiled = dataclasses.replace(case, stages=tuple(dataclasses.replace(stage, mode="graph") for stage in case.stages))
    pipelines = pipelines_of(compiled, schedule)
    results = step_together(pipelines, **case.batch)
    assert np.isfinite(float(results[1].loss))
    if case.seed is None:  # compiled random masks follow no seed of a step
        losses, expected = without_pipeline(case, 2)
        np.testing.assert_allclose([float(loss) for loss in results[1].losses], losses, rtol=1e-4)
        for pipeline in pipelines:
            assert_equal_gradients(pipeline.weights, pipeline.gradients(), expected, kind, tolerance=1e-4)


def test_dropout_cells_have_the_masks_they_have_without_a_pipeline():
    """Each ``nn.Dropout`` has its own sequence of masks, which nothing before the first step may move on."""
    def new_case():
        ms.set_seed(11)
        numbers = Numbers(3)
        cells = [nn.SequentialCell(nn.Dense(WIDTH, WIDTH), nn.Dropout(p=0.4)).set_train() for _ in range(2)]
        stages = [Stage(numbers.fill(cells[0])),
                  Stage(lambda x: ops.mean(cells[1](x) ** 2), numbers.fill(cells[1]).trainable_params(),
                        gives=TensorMeta(()))]
        return Case(tuple(stages), (numbers.floats(12, WIDTH),), ())

    losses, expected = without_pipeline(new_case(), 4)
    for name in ("1f1b", "zb-h2"):
        case = new_case()
        pipelines = pipelines_of(case, make_schedule(name, 2, 4))
        results = step_together(pipelines, **case.batch)
        np.testing.assert_allclose([float(loss) for loss in results[1].losses], losses, rtol=1e-6)
    assert len(set(losses)) == 4 and expected
