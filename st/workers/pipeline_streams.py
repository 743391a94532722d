"""A worker of test_pipeline_ascend.py: dw on a second stream, against the same on one stream.

    pipeline_streams.py values | time
"""

import statistics
import sys
import time

import numpy as np

WIDTH, ROWS, LAYERS, MICROBATCHES, STEPS = 2048, 1024, 8, 8, 10


def main(what: str) -> None:
    """Either check."""
    import mindspore as ms
    from mindspore import nn, ops

    ms.set_device("Ascend")
    from mindspore_zb.pipeline import Pipeline, Stage, connect
    from mindspore_zb.schedule import generate

    end = connect()
    ms.set_seed(1)
    layers = nn.SequentialCell([nn.Dense(WIDTH, WIDTH, has_bias=False) for _ in range(LAYERS)])
    stage = Stage(layers if end.rank + 1 < end.ranks else lambda x: ops.mean(layers(x) ** 2), layers.trainable_params())
    schedule = generate("zb-h1", stages=end.ranks, microbatches=MICROBATCHES)
    x = ms.Tensor(np.random.default_rng(0).standard_normal((ROWS * MICROBATCHES, WIDTH)).astype(np.float32))
    pipelines = [Pipeline(schedule, stage, end, measured=False, dw_stream=two) for two in (False, True)]

    def step(pipeline):
        start = time.perf_counter()
        pipeline.step(inputs=(x,))
        ms.runtime.synchronize()
        return time.perf_counter() - start

    for pipeline in pipelines:
        step(pipeline)
    if what == "values":
        for _ in range(STEPS):  # a race would not show each time
            for pipeline in pipelines:
                step(pipeline)
            for one, other in zip(*(pipeline.gradients() for pipeline in pipelines)):
                np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-3, atol=1e-6)
        print(f"rank {end.rank}: equal", flush=True)
    else:
        ratios = [step(pipelines[0]) / step(pipelines[1]) for _ in range(STEPS)]
        print(f"one stream / two streams = {statistics.median(ratios):.3f}", flush=True)
    end.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
