"""Every argument of every public name, given things that it cannot be: one sentence that names it, never a surprise."""

import copy
import math
import pickle

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, nn, ops

import mindspore_zb.pipeline
from mindspore_zb.errors import PipelineError, StateError, ZeroBubbleError
from mindspore_zb.pipeline import (LocalNetwork, Pipeline, Stage, StageTimes, StepResult, TensorMeta, connect, makespan,
                                   split_batch, stage_times, step_together)
from mindspore_zb.schedule import Action, generate
from tests.wrong_arguments import assert_in_plain_words, each_case, message_of

ONE = generate("1f1b", stages=1, microbatches=2)
TWO = generate("1f1b", stages=2, microbatches=2)
NET = nn.Dense(2, 2)
STAGE = Stage(NET)
X = ops.ones((2, 2))

OTHERS = ["x", 3, True, [], {}, math.nan, object()]
NO_FLAG = [None, "yes", 1, 0, [], math.nan]
NO_TIME = [None, "a", True, [1], math.nan, math.inf, -1, 10 ** 400]
NO_COUNT = [None, "2", 2.0, True, [2], 0, -1, 10 ** 12, 10 ** 400, math.nan]
NO_ENTRIES = [None, *OTHERS[:3], {1: 2}, [3], ["abcd"], [()], [(0, "0F0", 0.0, 1.0)], [(0, Action(0, "F", 0), 2.0, 1.0)],
              [("0", Action(0, "F", 0), 0.0, 1.0)], [(0, Action(0, "F", 0), math.nan, 1.0)]]


def pipeline(**changes):
    return Pipeline(**{"schedule": ONE, "stages": STAGE, **changes})


def measured(**changes):
    return stage_times(**{"fn": NET, "inputs": (X,), "weights": NET.trainable_params(), "rounds": 1, "warmup": 0,
                          **changes})


def cut(**changes):
    return split_batch(**{"value": (X,), "count": 2, **changes})


def times(**changes):
    return StageTimes(**{"f": 1.0, "b": 1.0, "w": 1.0, "engine": "pynative", **changes})


def result(**changes):
    return StepResult(0, None, (), (), ((1, 0),)).peak_memory(**changes)


def step(**changes):
    ranks = [Pipeline(TWO, STAGE, end) for end in LocalNetwork(2).ends]
    return ranks[0].begin(**{"inputs": (X,), "targets": (), **changes})


def together(pipelines):
    return step_together(pipelines, (X,))


def several(count=2, same_network=True, schedule=TWO):
    """Ranks with a weight each."""
    networks = [LocalNetwork(count)] * count if same_network else [LocalNetwork(count) for _ in range(count)]
    return [Pipeline(schedule, Stage(nn.Dense(2, 2)), networks[rank].ends[rank]) for rank in range(count)]


CASES = [
    (LocalNetwork, "ranks", NO_COUNT), (connect, "timeout", [*NO_TIME, 0]),
    (pipeline, "schedule", [None, *OTHERS]),
    (pipeline, "stages", [None, *OTHERS[:5], NET, [STAGE], {1: STAGE}, {"0": STAGE}, {0: STAGE, "a": STAGE}, {0: None}]),
    (pipeline, "end", [*OTHERS, LocalNetwork, LocalNetwork(1), LocalNetwork(2).ends[0]]),
    (pipeline, "optimizer", [*OTHERS, lambda grads: None, nn.SGD(nn.Dense(2, 2).trainable_params())]),
    *[(pipeline, name, NO_FLAG) for name in ("float32_gradients", "measured", "measure_memory", "dw_stream")],
    (pipeline, "loss_scale", [*NO_TIME, 0, 0.0, -1e-3]),
    (pipeline, "seed", ["1", 1.5, True, [1], -1, 2 ** 32, 10 ** 400, math.nan, math.inf]),
    (pipeline, "batch_axis", [None, "0", 0.0, True, -1, [0]]),
    (step, "inputs", [None, *OTHERS, [X], X]), (step, "targets", [None, *OTHERS, X]),
    (step, "extras", [*OTHERS[:4], [1], {"a": ()}, {True: ()}, {-1: ()}, {5: ()}, {1: X}, {1: None}]),
    (together, "pipelines", [None, *OTHERS, (), [None], [STAGE]]),
    (pipeline().perform, "action", [None, *OTHERS]),
    (pipeline().collect, "entries", NO_ENTRIES), (makespan, "entries", NO_ENTRIES),
    (Stage, "fn", [None, *OTHERS]),
    (lambda weights: Stage(NET, weights), "weights", [*OTHERS[:3], [None], ["x"], X, [X], NET, math.nan, object(),
                                                      [NET.weight, NET.weight]]),
    *[(lambda value, name=name: Stage(NET, **{name: value}), "value", [*OTHERS[:3], [3], {1: X}, math.nan, object()])
      for name in ("takes", "gives")],
    (lambda mode: Stage(NET, mode=mode), "mode", [None, *OTHERS, "fast", np.array(["auto", "graph"])]),
    (TensorMeta, "shape", [None, *OTHERS[:3], {}, (2.5,), (2.0,), (True,), ("2",), (None,), (-1,), (10 ** 400,), math.nan]),
    (lambda dtype: TensorMeta((2,), dtype), "dtype", [None, 3, True, [], "", "nn", "tensor", "float99", np.float32, float,
                                                      "string", ms.string]),
    (cut, "count", [*NO_COUNT, 3]), (cut, "axis", [None, "0", 0.0, True, -1, 2]), (cut, "name", [None, 3, [], True]),
    (measured, "fn", [None, *OTHERS]), (measured, "inputs", [None, *OTHERS, (), X]), (measured, "weights", OTHERS[:3]),
    (measured, "mode", [None, "fast", 3]), (measured, "rounds", NO_COUNT),
    (measured, "warmup", [None, "1", 1.5, True, -1, 10 ** 400]),
    *[(times, name, NO_TIME) for name in "fbw"], (times, "engine", [None, 3]),
    (lambda comm: times().costs(comm), "comm", NO_TIME[:3]),
    (result, "m_b", NO_TIME), (result, "m_w", NO_TIME),
]
RESULTS = {"StepResult"}
"""What a step makes: nobody makes one by hand; its method is tried above."""


@each_case(CASES)
def test_what_an_argument_cannot_be(function, name, value):
    message = message_of(function, name, value)
    if name not in ("weights", "mode"):  # of the whole package, in other words
        assert_in_plain_words(message)


@pytest.mark.parametrize("function, name, value", [
    (pipeline, "schedule", None), (pipeline, "stages", None), (pipeline, "end", "x"), (pipeline, "optimizer", 3),
    (pipeline, "seed", -1), (pipeline, "batch_axis", "0"), (pipeline, "loss_scale", math.nan),
    (pipeline, "measured", None), (step, "extras", "x"),
    (together, "pipelines", []), (Stage, "fn", None), (cut, "count", None), (measured, "rounds", "x"),
    (TensorMeta, "shape", None), (makespan, "entries", None), (connect, "timeout", None), (LocalNetwork, "ranks", 0)])
def test_the_argument_is_named(function, name, value):
    with pytest.raises(ZeroBubbleError, match=rf"^{name}\b"):
        function(**{name: value})


def test_every_public_name_is_gone_through():
    tried = {"LocalNetwork", "Pipeline", "Stage", "StageTimes", "TensorMeta", "connect", "makespan", "split_batch",
             "stage_times", "step_together"}
    assert tried | RESULTS | {"PipelineError"} == set(mindspore_zb.pipeline.__all__)


@pytest.mark.parametrize("seed", [0, 2 ** 32 - 1, np.int64(7)])
@pytest.mark.parametrize("loss_scale", [1, 1e-3, np.float32(2.0)])
def test_seeds_and_scales_that_are_taken(seed, loss_scale):
    pipeline(seed=seed, loss_scale=loss_scale)


@pytest.mark.parametrize("axis", [0, 1, np.int64(0), np.int32(1), np.uint8(1)])
def test_axes_that_are_taken(axis):
    one = pipeline(stages=Stage(lambda x: ops.mean(NET(x)), NET.trainable_params()), batch_axis=axis)
    one.begin((ops.ones((4, 4)),))
    assert one._arguments_of(0, 1)[0].shape == ((2, 4) if axis == 0 else (4, 2))


@pytest.mark.parametrize("dtype, scale, held", [
    (ms.float16, 1e6, "inf"), (ms.float16, 1e-9, "0"), (ms.float32, 1e39, "inf"), (ms.float32, 1e-60, "0"),
    (ms.float64, 1e39, None), (ms.float32, 1e6, None), (ms.float16, 1024.0, None)])
def test_a_scale_that_the_loss_cannot_hold_is_told_before_the_first_step(dtype, scale, held):
    net = nn.Dense(2, 2)
    stage = Stage(lambda x: ops.mean(net(x)).astype(dtype), net.trainable_params())
    one = pipeline(stages=stage, loss_scale=scale)
    if held is None:
        one.step((X,))
        grads = [grad.asnumpy() for grad in one.gradients()]
        assert all(np.isfinite(grad).all() and grad.any() for grad in grads) or dtype == ms.float64
    else:
        with pytest.raises(PipelineError, match=rf"before the first step, stage 0 .*loss_scale / m is .*, and that is "
                                                rf"{held} as float"):
            one.step((X,))


def test_ranks_that_do_not_belong_together():
    with pytest.raises(ZeroBubbleError, match="ranks 0 and 1 have ends of different networks"):
        together(several(same_network=False))
    with pytest.raises(ZeroBubbleError, match=r"pipelines are of ranks \[0\], not of all 2 in order"):
        together(several()[:1])
    with pytest.raises(ZeroBubbleError, match=r"pipelines are of ranks \[0, 0\], but their schedule is of 1 rank$"):
        together([pipeline(), pipeline()])


def test_a_weight_of_two_ranks_is_told_before_anything_runs():
    """Each rank would have a part of its gradient, in silence."""
    table = Parameter(ops.ones((2, 2)), name="table")
    calls = []

    def stages(weights):
        return [Stage(lambda x: (calls.append(1), x @ table)[1], weights, gives=TensorMeta((1, 2))),
                Stage(lambda x: ops.mean(x @ table.T), weights, gives=TensorMeta(()))]

    def ranks(weights):
        return [Pipeline(TWO, stage, end) for stage, end in zip(stages(weights), LocalNetwork(2).ends)]

    with pytest.raises(ZeroBubbleError, match="^ranks 0 and 1 share the weight 'table', so each would have a part of its "
                                              "gradient only: put the stages that share it on one rank"):
        together(ranks([table]))
    assert not calls
    frozen = Parameter(ops.ones((2, 2)), name="frozen", requires_grad=False)
    together(ranks([frozen]))
    assert calls


def test_the_same_ranks_may_be_used_again():
    ranks = several()
    last = nn.Dense(2, 1)
    ranks[1] = Pipeline(TWO, Stage(lambda x: ops.mean(last(x)), last.trainable_params()), ranks[1]._end)
    for _ in range(2):
        together(ranks)


def test_actions_out_of_order_are_refused():
    one = pipeline(stages=Stage(lambda x: ops.mean(NET(x)), NET.trainable_params()))
    first, second, *_ = ONE.actions[0]
    for call in (lambda: one.perform(first), one.end):
        with pytest.raises(StateError, match="no step has begun"):
            call()
    one.begin((X,))
    one.handshake.run()
    with pytest.raises(StateError, match=f"the next action of rank 0 is {first}, not {second}"):
        one.perform(second)
    one.perform(first)
    with pytest.raises(StateError, match=f"the step is not done: the next action of rank 0 is {second}"):
        one.end()
    for action in ONE.actions[0][1:]:
        one.perform(action)
    with pytest.raises(StateError, match=r"is none: call end\(\), not 0F0"):
        one.perform(first)
    assert one.end().loss is not None


def test_an_error_of_a_place_is_copied_and_pickled_as_it_is():
    error = PipelineError("wrong", 2, Action(2, "F", 1))
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (str(again), again.rank, again.action, again.reason) == (str(error), 2, error.action, "wrong")
