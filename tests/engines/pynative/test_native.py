"""A MindSpore that lacks something is refused with one sentence that says what; recording leaves nothing behind."""

import contextlib
import threading

import mindspore as ms
import numpy as np
import psutil
import pytest
from mindspore import Tensor, ops

import mindspore_zb
from mindspore_zb import ZeroBubbleError
from mindspore_zb.engines.pynative import native

from ...helpers import is_pipeline_off


def test_nothing_is_missing_here():
    assert native.missing_features() == []


@pytest.mark.parametrize("name", ["grad_flag", "new_graph", "sync"])
def test_a_missing_feature_is_named(monkeypatch, name):
    class Without:
        def __getattr__(self, attribute):
            if attribute == name:
                raise AttributeError(attribute)
            return getattr(executor, attribute)

    executor = native._pynative_executor
    monkeypatch.setattr(native, "_pynative_executor", Without())
    assert native.missing_features() == [f"_pynative_executor.{name}"]
    with pytest.raises(ImportError, match=f"lacks _pynative_executor.{name}: install mindspore 2.9 or 2.10") as caught:
        native._bind()
    assert isinstance(caught.value, ZeroBubbleError)


def test_recording_leaves_nothing_behind():
    process = psutil.Process()

    def record(times):
        for _ in range(times):
            with native.grad_recording():
                pass
        return process.memory_info().rss

    before = record(500)
    assert record(3000) - before < 4e6  # a top cell for each, which MindSpore keeps, would be 11 MB


def test_a_compilation_that_fails_inside_says_so_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes what it could not compile

    @ms.jit
    def inner(x):
        return ops.reshape(x, (7, 11))

    def fn(x):
        return inner(x * 2.0)

    x = Tensor(np.ones((2, 3), np.float32))
    with pytest.raises(Exception) as raised:
        with mindspore_zb.options(split_blocks=False):
            mindspore_zb.forward_and_gradfn(fn, x)
    assert "input_args_info_stack_" not in str(raised.value) and "eshape" in str(raised.value)
    out, grad_fn = mindspore_zb.forward_and_gradfn(lambda a: a * a, x)
    assert grad_fn.compute_input_grad().asnumpy().tolist() == [[2.0] * 3] * 2


class TestWithoutPipeline:
    """The pipeline is off inside, and afterwards what it was."""

    @pytest.mark.parametrize("off", [False, True], ids=["on", "off"])
    def test_as_it_was(self, off):
        with ms.saved_tensors_hooks(lambda x: x, lambda x: x) if off else contextlib.nullcontext():
            assert is_pipeline_off() is off
            with native.without_pipeline():
                assert is_pipeline_off()
                with native.without_pipeline():
                    pass
                assert is_pipeline_off()
            assert is_pipeline_off() is off
        assert not is_pipeline_off()

    def test_on_again_after_an_error(self):
        with pytest.raises(ZeroDivisionError), native.without_pipeline():
            1 / 0  # pylint: disable=pointless-statement
        assert not is_pipeline_off()

    def test_one_thread_after_the_other(self):
        seen = []

        def other():
            with native.without_pipeline():
                seen.append(is_pipeline_off())

        thread = threading.Thread(target=other)
        with native.without_pipeline():
            thread.start()
            thread.join(0.2)
            assert not seen and is_pipeline_off()
        thread.join(10)
        assert seen == [True] and not is_pipeline_off()
