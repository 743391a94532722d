"""Pipelines refuse what cannot be, name the place of what fails, and step their optimizer at the right time."""

import dataclasses

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from mindspore_zb.errors import (ArgumentTypeError, ArgumentValueError, PipelineError, ScheduleError, StateError,
                                 UnsupportedError, ZeroBubbleError)
from mindspore_zb.pipeline import LocalNetwork, Pipeline, Stage, TensorMeta, step_together
from mindspore_zb.schedule import generate
from tests.pipeline.cases import (ROWS, WIDTH, Numbers, assert_equal_gradients, build, make_schedule,
                                  without_pipeline)

MICROBATCHES = 2


def ranks_of(case, schedule=None, **options):
    schedule = schedule or make_schedule("zb-h1", len(case.stages), MICROBATCHES)
    return [case.pipeline(schedule, rank, end, **options) for rank, end in enumerate(LocalNetwork(schedule.ranks).ends)]


def with_stage(case, number, **changes):
    stages = list(case.stages)
    stages[number] = dataclasses.replace(stages[number], **changes)
    return dataclasses.replace(case, stages=tuple(stages))


@pytest.mark.parametrize("changes, message", [
    ({"fn": 3}, "fn of a stage must be callable, not a int"),
    ({"mode": "fast"}, "mode must be"), ({"weights": [ops.ones((2,))]}, r"weights\[0\] must be a Parameter"),
    ({"takes": [3]}, r"takes\[0\] is a int")])
def test_a_stage_is_checked(changes, message):
    with pytest.raises(ZeroBubbleError, match=message):
        Stage(**{"fn": nn.Dense(2, 2), **changes})


def test_a_pipeline_is_checked():
    schedule = generate("zb-v", stages=2, microbatches=2)
    end = LocalNetwork(2).ends[0]
    stage = Stage(nn.Dense(2, 2))
    with pytest.raises(ArgumentTypeError, match="stages must be a dict of the stages 0 and 3 of rank 0, not a Stage"):
        Pipeline(schedule, stage, end)
    with pytest.raises(ArgumentValueError, match="rank 0 has the stages 0 and 3 in this schedule, but .* holds 0, 1"):
        Pipeline(schedule, {0: stage, 1: stage}, end)
    with pytest.raises(ArgumentTypeError, match=r"stages\[3\] must be a Stage, not a Dense"):
        Pipeline(schedule, {0: stage, 3: nn.Dense(2, 2)}, end)
    with pytest.raises(ArgumentValueError, match="the schedule is for 2 ranks, but there is 1"):
        Pipeline(schedule, {0: stage, 3: stage})
    with pytest.raises(ScheduleError, match="never runs"):
        Pipeline(dataclasses.replace(schedule, actions=(schedule.actions[0], schedule.actions[1][:-1])),
                 {0: stage, 3: stage}, end)
    with pytest.raises(ArgumentValueError, match="the optimizer has the weight 'weight', which no stage"):
        Pipeline(schedule, {0: stage, 3: stage}, end, optimizer=nn.SGD(nn.Dense(2, 2).trainable_params()))


def test_a_second_stream_needs_a_device_that_has_one():
    with pytest.raises(UnsupportedError, match="dw_stream=True needs a device with several streams"):
        Pipeline(generate("1f1b", stages=1, microbatches=1), Stage(nn.Dense(2, 2)), dw_stream=True)


def test_arguments_of_a_step_are_tuples():
    case = build("integers", 2, MICROBATCHES)
    with pytest.raises(ArgumentTypeError, match="inputs must be the tuple of the arguments, not a Tensor"):
        ranks_of(case)[0].step(inputs=case.inputs[0])
    with pytest.raises(ArgumentValueError, match="targets.* has a batch of 5 along axis 0"):
        step_together(ranks_of(case), case.inputs, (case.targets[0][:5],))


@pytest.mark.parametrize("name, ranks", [("1f1b", 1), ("zb-v", 1), ("zb-h1", 2), ("zb-h1", 3), ("zb-v", 2)])
def test_inputs_and_targets_of_different_sizes_are_refused(name, ranks):
    """The smaller one would be broadcast, to a loss that looks right."""
    schedule = make_schedule(name, ranks, 4)
    dense = [nn.Dense(2, 2) for _ in range(schedule.stages - 1)]
    stages = [*map(Stage, dense), Stage(lambda x, y: ops.mean((x - y) ** 2))]

    def pipelines():
        return [Pipeline(schedule, {stage: stages[stage] for stage in schedule.stages_of(rank)}, end)
                for rank, end in enumerate(LocalNetwork(ranks).ends)]

    eight, four = (ops.ones((8, 2)),), (ops.ones((4, 2)),)
    message = r"targets\[0\] has a batch of 4, but inputs\[0\] has 8: give all of them one size"
    with pytest.raises(ArgumentValueError, match=message):
        step_together(pipelines(), eight, four)
    used = pipelines()
    step_together(used, eight, eight)
    with pytest.raises(ArgumentValueError, match=message):
        step_together(used, eight, four)
    if ranks == 1:
        with pytest.raises(ArgumentValueError, match=message):
            pipelines()[0].step(eight, four)


def test_extras_have_the_size_of_the_batch_too():
    case = build("extras", 3, MICROBATCHES)
    with pytest.raises(ArgumentValueError, match=r"extras\[1\]\[0\] has a batch of 2, but inputs\[0\] has 6"):
        step_together(ranks_of(case), case.inputs, case.targets, {1: (case.extras[1][0][:2],)})


def test_ranks_tell_each_other_the_size_of_the_batch():
    """As processes do, which see their own arguments only."""
    case = build("integers", 3, MICROBATCHES)
    pipelines = ranks_of(case)
    for rank, pipeline in enumerate(pipelines):
        pipeline.begin(case.inputs if rank == 0 else (), (case.targets[0][:2],) if rank == 2 else ())
        pipeline.handshake.offer(rank)
    for pipeline in reversed(pipelines):
        pipeline.handshake.confirm(pipeline.rank)
    for rank, pipeline in enumerate(pipelines):
        with pytest.raises(PipelineError, match=rf"rank {rank}: before the first step, stage 2 on rank 2: targets\[0\] "
                                                r"has a batch of 2, but inputs\[0\] has 6"):
            pipeline.conclude_handshake()


def test_a_rank_keeps_to_the_size_of_the_first_step():
    case = build("integers", 2, MICROBATCHES)
    pipelines = ranks_of(case)
    step_together(pipelines, **case.batch)
    with pytest.raises(ArgumentValueError, match=r"targets\[0\] has a batch of 2, but it was 6 in the first step"):
        pipelines[1].step(targets=(case.targets[0][:2],))


def test_one_stage_takes_another_size_in_every_step():
    net = nn.Dense(2, 1)
    one = Pipeline(make_schedule("1f1b", 1, 2), Stage(lambda x: ops.mean(net(x)), net.trainable_params()))
    for rows in (4, 8, 2):
        assert one.step((ops.ones((rows, 2)),)).loss is not None


@pytest.mark.parametrize("kind, microbatch", [("F", 1), ("B", 0), ("W", 1)])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_fails_is_named_by_its_place(kind, microbatch, number):
    schedule = make_schedule("zb-h1", 3, MICROBATCHES)
    case = build("integers", 3, MICROBATCHES)
    pipelines = ranks_of(case, schedule)
    place = [str(action) for action in schedule.actions[number]].index(f"{number}{kind}{microbatch}")
    wanted = schedule.actions[number][place]
    original = pipelines[number].perform

    def perform(action):
        if action == wanted:
            pipelines[number]._run._run[kind] = broken
        original(action)

    def broken(_):
        raise ArithmeticError("no more\n\n- C++ Call Stack: (For framework developers)\nfile")

    pipelines[number].perform = perform
    with pytest.raises(PipelineError) as caught:
        step_together(pipelines, **case.batch)
    assert str(caught.value) == (f"rank {number}, stage {number}, micro-batch {microbatch}, action {wanted}: "
                                 "ArithmeticError: no more")
    assert (caught.value.rank, caught.value.action) == (number, wanted)
    assert isinstance(caught.value.__cause__, ArithmeticError) and isinstance(caught.value, RuntimeError)
    with pytest.raises(StateError, match="a step of this pipeline failed: make a new one"):
        pipelines[number].step(**case.batch)


def test_wrong_shapes_are_told_before_the_first_step():
    case = build("integers", 3, MICROBATCHES)
    given = f"float32 ({ROWS}, {WIDTH})"
    for changed, message in (
            (with_stage(case, 2, takes=TensorMeta((ROWS, 5))),
             f"stage 2 on rank 2: it takes float32 ({ROWS}, 5), but stage 1 on rank 1 gives {given}"),
            (with_stage(case, 1, fn=nn.Dense(WIDTH + 1, WIDTH)),
             f"stage 1 on rank 1: its forward on {given} from stage 0 on rank 0 failed: ValueError: "),
            (with_stage(case, 0, gives=TensorMeta((ROWS, WIDTH + 1))),
             "stage 1 on rank 1: its forward on float32 (3, 9) from stage 0 on rank 0 failed: "),
            (with_stage(case, 1, fn=lambda x: (x, 3), weights=()),
             "stage 1 on rank 1: what it returns[1] is a int, but only tensors pass between stages"),
            (with_stage(case, 2, fn=lambda x, ids: x, weights=()),
             f"stage 2 on rank 2: the last stage must return its loss as one number, but it returns {given}")):
        pipelines = ranks_of(changed)
        with pytest.raises(PipelineError) as caught:
            step_together(pipelines, **case.batch)
        assert str(caught.value).startswith(f"rank 0: before the first step, {message}"), caught.value
        for pipeline in pipelines:
            assert pipeline.handshake.problem == caught.value.reason, "all ranks know it"


def test_another_schedule_on_a_rank():
    case = build("integers", 2, MICROBATCHES)
    ends = LocalNetwork(2).ends
    pipelines = [case.pipeline(make_schedule(name, 2, MICROBATCHES), rank, ends[rank])
                 for rank, name in enumerate(("1f1b", "zb-h1"))]
    with pytest.raises(PipelineError, match="stage 1 on rank 1: the rank of stage 0 has another schedule than zb-h1"):
        step_together(pipelines, **case.batch)


def test_a_shape_that_changes_later_is_told_where_it_happens():
    case = build("integers", 2, MICROBATCHES)
    pipelines = ranks_of(case)
    step_together(pipelines, **case.batch)
    with pytest.raises(PipelineError, match=r"rank 0, stage 0, micro-batch 0, action 0F0: StateError: the stage "
                                            r"returned float32 \(1, 8\), but float32 \(3, 8\) was agreed"):
        step_together(pipelines, (case.inputs[0][:2],), (case.targets[0][:2],))


def test_declared_stages_are_not_tried_out():
    case = build("integers", 2, MICROBATCHES)
    calls = []
    for number, gives in ((0, TensorMeta((ROWS, WIDTH))), (1, TensorMeta(()))):
        fn = case.stages[number].fn
        case = with_stage(case, number, gives=gives, fn=lambda *args, fn=fn: (calls.append(1), fn(*args))[1])
    step_together(ranks_of(case), **case.batch)
    assert len(calls) == 2 * MICROBATCHES


def test_trying_out_leaves_statistics_and_flags_alone():
    norm = nn.BatchNorm1d(4)
    norm.set_train()
    seen = []

    def loss(x):
        seen.append(norm.moving_mean.asnumpy().copy())
        return ops.mean(x)

    ends = LocalNetwork(2).ends
    schedule = make_schedule("1f1b", 2, 1)
    stages = [Stage(nn.SequentialCell(nn.Dense(4, 4), norm).set_train()), Stage(loss, gives=TensorMeta(()))]
    pipelines = [Pipeline(schedule, stages[rank], ends[rank]) for rank in range(2)]
    for pipeline in pipelines:
        pipeline.begin((Numbers(0).floats(4, 4),))
    pipelines[0].handshake.offer(0)
    assert norm.training and norm.moving_mean.asnumpy().tolist() == [0.0] * 4
    step_together([Pipeline(schedule, stages[rank], end) for rank, end in enumerate(LocalNetwork(2).ends)],
                  inputs=(Numbers(0).floats(4, 4),))
    assert norm.moving_mean.asnumpy().tolist() != [0.0] * 4


def test_the_optimizer_steps_once_all_gradients_are_there():
    case = build("integers", 2, MICROBATCHES)
    _, expected = without_pipeline(case, MICROBATCHES)
    schedule = make_schedule("zb-h1", 2, MICROBATCHES)
    pipelines = []
    for rank, end in enumerate(LocalNetwork(2).ends):
        weights = list(reversed(case.stages[rank].weights))  # another order than that of the stage
        pipelines.append(case.pipeline(schedule, rank, end, optimizer=nn.SGD(weights, learning_rate=0.5)))
    before = {id(weight): weight.asnumpy().copy() for pipeline in pipelines for weight in pipeline.weights}
    first = step_together(pipelines, **case.batch)[1].loss
    for pipeline in pipelines:
        for weight in pipeline.weights:
            wanted = before[id(weight)] - 0.5 * expected[id(weight)]
            np.testing.assert_allclose(weight.asnumpy(), wanted, rtol=1e-5, atol=1e-6)
    for _ in range(10):
        last = step_together(pipelines, **case.batch)[1].loss
    assert float(last) < float(first)


def test_loss_scale_and_float32_gradients():
    case = build("tied", 2, MICROBATCHES)
    _, expected = without_pipeline(case, MICROBATCHES)
    half = case.stages[0].fn.to_float(ms.float16)
    pipelines = ranks_of(with_stage(case, 0, fn=lambda x: half(x).astype(ms.float32), weights=half.trainable_params()),
                         loss_scale=64.0, float32_gradients=True)
    step_together(pipelines, **case.batch)
    for weight, grad in zip(pipelines[0].weights, pipelines[0].gradients()):
        assert grad.dtype == ms.float32
        np.testing.assert_allclose(grad.asnumpy() / 64, expected[id(weight)], atol=0.05)


def test_ranks_in_another_order_are_refused():
    pipelines = ranks_of(build("integers", 2, MICROBATCHES))
    with pytest.raises(ArgumentValueError, match=r"pipelines are of ranks \[1, 0\], not of all 2 in order"):
        step_together(pipelines[::-1])


def test_entries_are_collected_on_rank_0():
    case = build("integers", 2, MICROBATCHES)
    pipelines = ranks_of(case)
    results = step_together(pipelines, **case.batch)
    assert pipelines[1].collect(results[1].entries) == list(results[1].entries)
    assert pipelines[0].collect(results[0].entries) == [*results[0].entries, *results[1].entries]


def test_nothing_is_left_after_a_step():
    case = build("integers", 2, MICROBATCHES)
    pipelines = ranks_of(case, measure_memory=True)
    step_together(pipelines, **case.batch)
    assert [pipeline._ledger.alive_bytes() for pipeline in pipelines] == [0, 0]
    assert all(pipeline._run is None for pipeline in pipelines)


def test_the_parts_of_a_dw_may_come_in_any_order():
    """Also on the first stage, which does all its backward in whichever part comes first."""
    schedule = make_schedule("zb-h1", 2, MICROBATCHES, 3)
    turned = []
    for actions in schedule.actions:
        turned.append([])
        for action in actions:
            part = (action.part + 2) % 3 if action.kind == "W" else action.part
            turned[-1].append(dataclasses.replace(action, part=part))
    schedule = dataclasses.replace(schedule, actions=tuple(map(tuple, turned)))
    case = build("tied", 2, MICROBATCHES)
    pipelines = ranks_of(case, schedule)
    step_together(pipelines, **case.batch)
    _, expected = without_pipeline(case, MICROBATCHES)
    for pipeline in pipelines:
        assert_equal_gradients(pipeline.weights, pipeline.gradients(), expected, f"rank {pipeline.rank}")
