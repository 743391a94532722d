"""Fixtures of all tests."""

import builtins
import contextlib
import os
import sys
from collections import Counter

import pytest

# Threads that spin for work make tiny operations several times slower where tests share their cores with others.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def clean_mindspore():
    """No test starts with what MindSpore keeps of a ``grad`` whose function raised (README, limits)."""
    yield
    native = sys.modules.get("mindspore_zb.engines.pynative.native")
    if native is not None:
        with contextlib.suppress(Exception):  # of an operation of the test, which nobody has asked for yet
            native.sync()  # what still runs must not find its graph cleared away
        native._pynative_executor.clear_res()


@pytest.fixture
def without_package(monkeypatch):
    """``without_package(name)``: from now on it cannot be imported."""
    original = builtins.__import__

    def hide(missing):
        def without(name, *args, **kwargs):
            if name.split(".")[0] == missing:
                raise ImportError(name)
            return original(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without)

    return hide


@pytest.fixture
def recording():
    """``with recording():`` operations inside get a history, as in a caller's own training step."""
    from mindspore_zb.engines.pynative.native import _pynative_executor as executor

    @contextlib.contextmanager
    def record():
        flag = executor.grad_flag()
        executor.set_grad_flag(True)
        try:
            yield
        finally:
            executor.set_grad_flag(flag)

    return record


def pytest_addoption(parser):
    parser.addoption("--graph", action="store_true",
                     help="treat every function as compiled, so that the graph engine runs whatever it can")


def pytest_collection_modifyitems(items):
    """Files of slow tests come first: the last one would keep one process busy while the others have nothing left."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_configure(config):
    if config.getoption("--graph"):
        from tests.graph_mode import prefer_graph
        prefer_graph(config)
