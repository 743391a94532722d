"""The order of work on a second stream, with streams that only write down what is asked of them."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from mindspore_zb.pipeline import second_stream, step_together
from mindspore_zb.pipeline.second_stream import SecondStream
from tests.pipeline.cases import assert_equal_gradients, build, make_schedule, without_pipeline
from tests.pipeline.test_values import pipelines_of


@pytest.fixture(name="log")
def fixture_log(monkeypatch):
    log = []

    class Stream:
        name = "second"

        def wait_stream(self, other):
            log.append(f"{self.name} waits for {other.name}")

    @contextlib.contextmanager
    def context(stream):
        log.append(f"on {stream.name}")
        yield
        log.append("back")

    main = Stream()
    main.name = "main"
    monkeypatch.setattr(second_stream, "runtime",
                        SimpleNamespace(Stream=Stream, StreamCtx=context, current_stream=lambda: main))
    return log


def test_work_waits_for_what_was_issued_and_the_rest_for_the_work(log):
    stream = SecondStream()
    log.clear()
    assert stream.run(lambda: log.append("work") or 3) == 3
    stream.join()
    assert log == ["second waits for main", "on second", "work", "back", "main waits for second"]


def test_a_pipeline_runs_every_dw_there_and_joins_before_the_optimizer(log):
    schedule = make_schedule("zb-h1", 2, 3)
    case = build("integers", 2, 3)

    class Optimizer:
        parameters = tuple(case.stages[1].weights)

        def __call__(self, grads):
            log.append("optimizer")

    pipelines = pipelines_of(case, schedule, dw_stream=True)
    pipelines[1]._optimizer = Optimizer()
    log.clear()
    losses, expected = without_pipeline(case, 3)
    results = step_together(pipelines, **case.batch)
    assert log.count("on second") == 2 * 3
    assert log[-2:] == ["main waits for second", "optimizer"]
    np.testing.assert_allclose(float(results[1].loss), np.mean(losses), rtol=1e-6)
    for pipeline in pipelines:
        assert_equal_gradients(pipeline.weights, pipeline.gradients(), expected, "two streams")
