"""Run tests that were written for the PyNative engine through the graph engine, and count what falls back."""

import pytest

import mindspore_zb.api as api


_COUNTED = "graph engine: compiled, fell back"


class FallbackCounter:
    """A pytest plugin that says at the end which tests fell back to the PyNative engine, and why."""

    def __init__(self):
        self.reasons = {}
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

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        """Take over what a process of pytest-xdist has counted."""
        del error
        compiled, reasons = getattr(node, "workeroutput", {}).get(_COUNTED, ((), {}))
        self.compiled.update(compiled)
        self.reasons.update(reasons)

    def pytest_sessionfinish(self, session):
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_COUNTED] = (sorted(self.compiled), dict(self.reasons))

    def pytest_terminal_summary(self, terminalreporter):
        ran = self.compiled | set(self.reasons)
        terminalreporter.section(f"graph engine: {len(self.reasons)} of {len(ran)} tests that record a forward fell "
                                 "back to PyNative")
        for test, reason in sorted(self.reasons.items()):
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
