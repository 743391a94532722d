"""Run pipeline schedules for real: in the processes of ``msrun``, or all ranks in one process.

The words are those of :mod:`mindspore_zb.schedule`. Every rank runs the same program:

>>> import numpy as np
>>> import mindspore as ms
>>> from mindspore import nn, ops
>>> from mindspore_zb.pipeline import LocalNetwork, Pipeline, Stage, step_together
>>> from mindspore_zb.schedule import generate
>>> first, last = nn.Dense(4, 8), nn.Dense(8, 1)
>>> stages = [Stage(first), Stage(lambda hidden, target: ops.mean((last(hidden) - target) ** 2),
...                               weights=last.trainable_params())]
>>> schedule = generate("zb-h1", stages=2, microbatches=4)
>>> ranks = [Pipeline(schedule, {rank: stages[rank]}, end) for rank, end in enumerate(LocalNetwork(2).ends)]
>>> x, y = ms.Tensor(np.ones((8, 4), np.float32)), ms.Tensor(np.ones((8, 1), np.float32))
>>> results = step_together(ranks, inputs=(x,), targets=(y,))
>>> [result.loss is None for result in results], [tuple(grad.shape) for grad in ranks[0].gradients()]
([True, False], [(8, 4), (8,)])

In processes of their own, ``Pipeline(schedule, {rank: stage}, connect())`` and ``pipeline.step(...)`` do the same.
"""

from typing import TYPE_CHECKING

from mindspore_zb.lazy import lazy_names

if TYPE_CHECKING:
    from mindspore_zb.errors import PipelineError
    from mindspore_zb.pipeline.communication import connect
    from mindspore_zb.pipeline.in_one_process import LocalNetwork, step_together
    from mindspore_zb.pipeline.measuring import StageTimes, stage_times
    from mindspore_zb.pipeline.metas import TensorMeta
    from mindspore_zb.pipeline.microbatches import split_batch
    from mindspore_zb.pipeline.results import StepResult, makespan
    from mindspore_zb.pipeline.runner import Pipeline
    from mindspore_zb.pipeline.stages import Stage

__all__ = ["LocalNetwork", "Pipeline", "PipelineError", "Stage", "StageTimes", "StepResult", "TensorMeta", "connect",
           "makespan", "split_batch", "stage_times", "step_together"]

_MODULES = {"LocalNetwork": "pipeline.in_one_process", "Pipeline": "pipeline.runner", "PipelineError": "errors",
            "Stage": "pipeline.stages", "StageTimes": "pipeline.measuring", "StepResult": "pipeline.results",
            "TensorMeta": "pipeline.metas", "connect": "pipeline.communication", "makespan": "pipeline.results",
            "split_batch": "pipeline.microbatches", "stage_times": "pipeline.measuring",
            "step_together": "pipeline.in_one_process"}

__getattr__, __dir__ = lazy_names(globals(), _MODULES)
