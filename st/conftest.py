"""Skips the tests that are for an Ascend NPU where there is none."""

import glob
from functools import cache

import pytest

from st.fallbacks import FALLBACKS


@cache
def has_ascend_npu() -> bool:
    """Whether MindSpore can run on an Ascend NPU of this machine."""
    # The driver's devices come first: without them the answer needs no import of MindSpore, and a machine that has
    # only the Ascend libraries would say that they are available.
    if not glob.glob("/dev/davinci[0-9]*"):
        return False
    from mindspore import device_context

    return device_context.ascend.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for_ascend = item.get_closest_marker("platform_ascend910b") is not None
        for_cpu = item.get_closest_marker("cpu_linux") is not None
        if for_ascend and not for_cpu and not has_ascend_npu():
            item.add_marker(pytest.mark.skip(reason="no Ascend NPU on this machine"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FALLBACKS:
        terminalreporter.section("run by the PyNative engine instead of the graph engine")
        for name, reason in sorted(FALLBACKS.items()):
            terminalreporter.write_line(f"{name}: {reason}")
