"""Fixtures of the tests of engines."""

import pytest

from mindspore_zb.engines.graph import cache


@pytest.fixture
def compiled(monkeypatch):
    """The calls that were compiled so far, as a list; nothing is known at first."""
    cache.clear_programs()  # an equal net of a test before may not have been collected yet
    calls = []
    compile_blueprint = cache.compile_blueprint

    def counting(call, *args):
        calls.append(call)
        return compile_blueprint(call, *args)

    monkeypatch.setattr(cache, "compile_blueprint", counting)
    return calls
