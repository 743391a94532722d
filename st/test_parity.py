"""Both engines on every network of the repository: out, dx, dw and written parameters as MindSpore's own unsplit ones.

The graph engine may fall back to PyNative; the end of the test run lists where and why.
"""

import pytest

from mindspore_zb.parity import compare_engines
from st.fallbacks import FALLBACKS
from tests.networks.compare import random_sens
from tests.networks.zoo import NAMES, build

NPU_TOLERANCE = 5e-3
"""On an NPU matrix products may be computed with fewer bits, and in another order each time."""

RANDOM = ("dropout",)
"""Nets that draw random numbers, so that there is nothing to compare."""

FIRST = ("auxiliary", "conv_batchnorm", "double", "dropout", "keyword_tensors", "masks_given", "mlp_silu",
         "only_weights_asked_for", "repeated_layer", "several_heads", "tied_autoencoder", "unused_weights")

pytestmark = [pytest.mark.platform_ascend910b, pytest.mark.cpu_linux, pytest.mark.onecard]


@pytest.fixture(scope="module", autouse=True)
def tolerance():
    """Run on the NPU where there is one; the tolerance of comparisons there."""
    from st.conftest import has_ascend_npu

    if not has_ascend_npu():
        return None
    import mindspore as ms

    ms.set_device("Ascend")
    return NPU_TOLERANCE


def compare(name, tolerance):
    """The report of a network."""
    case = build(name)
    sens = "random"
    if case.make_sens is not random_sens:
        other = build(name)
        out = other.fn(*other.inputs, **other.kwargs)
        sens = case.make_sens(out[0] if case.has_aux else out, 0)
    return compare_engines(case.fn, case.inputs, case.weights, kwargs=case.kwargs, grad_position=case.grad_position,
                           has_aux=case.has_aux, sens=sens, micro_batches=2,
                           tolerance=case.tolerance if tolerance is None else max(tolerance, case.tolerance or 0))


def check(name, tolerance):
    report = compare(name, tolerance)
    graph = report.run("split graph")
    if graph.fallback_reason:
        FALLBACKS[name] = graph.fallback_reason
    if name in RANDOM:
        assert report.random and report.exit_code == 2
        return
    header, rows = report.table()
    assert report.passed, [[run.error for run in report.runs], report.notes, header, *rows]
    assert not report.random


@pytest.mark.level0
@pytest.mark.parametrize("name", FIRST)
def test_parity_of_a_handful(name, tolerance):
    check(name, tolerance)


@pytest.mark.level1
@pytest.mark.parametrize("name", [name for name in NAMES if name not in FIRST])
def test_parity(name, tolerance):
    check(name, tolerance)


@pytest.mark.level0
def test_a_handful_is_of_the_repository():
    assert set(FIRST) <= set(NAMES) and set(RANDOM) <= set(FIRST)
