"""Fixtures of all tests."""

import contextlib

import pytest


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
