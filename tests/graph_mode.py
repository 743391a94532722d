"""Run tests that were written for the PyNative engine through the graph engine, and count what falls back."""

import collections

import pytest

import mindspore_zb.api as api


class FallbackCounter:
    """A pytest plugin that says at the end which tests fell back to the PyNative engine, and why."""

    def __init__(self):
        self.reasons = collections.OrderedDict()
        self.compiled = set()
        self.test = None

    def pytest_runtest_setup(self, item):
        self.test = item.nodeid
        if item.get_closest_marker("one_engine"):
            pytest.skip("says how the PyNative engine does it")

    def note(self, reason):
        if reason is None:
            self.compiled.add(self.test)
        else:
            self.reasons.setdefault(self.test, reason)

    def pytest_terminal_summary(self, terminalreporter):
        ran = self.compiled | set(self.reasons)
        terminalreporter.section(f"graph engine: {len(self.reasons)} of {len(ran)} tests that record a forward fell "
                                 "back to PyNative")
        for test, reason in self.reasons.items():
            terminalreporter.write_line(f"{test}: {reason}")


def prefer_graph(config):
    """Make ``mode="auto"`` treat every function as compiled, and count."""
    counter = FallbackCounter()
    config.pluginmanager.register(counter)
    record = api._compiled

    def counting(*args, **kwargs):
        recorded = record(*args, **kwargs)
        counter.note(recorded if isinstance(recorded, str) else None)
        return recorded

    api._compiled = counting
    api.is_compiled = lambda fn: True
    api.refuse_or_warn = lambda fn, mode, reason: None
