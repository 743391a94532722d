"""Bytes after forward, dx and dw of known nets, against formulas; and what the ledger counts."""

import gc

import bench_nets  # of scripts/
import pytest
from mindspore import nn, ops

from mindspore_zb import forward_and_gradfn, options
from mindspore_zb.memory import SavedTensorLedger

NETS = {
    "tanh": lambda: bench_nets.mlp("tanh", width=32, layers=4, batch=8),
    "silu": lambda: bench_nets.mlp("silu", width=32, layers=4, batch=8),
    "gelu": lambda: bench_nets.mlp("gelu", width=32, layers=4, batch=8),
    "swiglu": lambda: bench_nets.swiglu(width=16, hidden=32, batch=8),
    "transformer": lambda: bench_nets.transformer(4, 16, 2, 8),
}


@pytest.fixture
def without_collector():
    """Freeing must not need the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def run(net):
    """``(ledger, grad_fn, out)`` after a watched forward."""
    weights = net.net.trainable_params()
    ledger = SavedTensorLedger(ignore=weights)
    with ledger.watch():
        out, grad_fn = forward_and_gradfn(net.net, net.x, weights=weights)
    return ledger, grad_fn, out


@pytest.mark.parametrize("name", NETS)
def test_after_dx_only_what_dw_needs_is_alive(name, without_collector):
    net = NETS[name]()
    ledger, grad_fn, out = run(net)
    grad_fn.compute_input_grad(ops.ones_like(out))
    assert ledger.alive_bytes() == pytest.approx(net.dw_bytes, rel=0.05)
    alive = [ledger.alive_bytes()]
    for group in reversed(grad_fn.weight_groups):
        group.compute()
        alive.append(ledger.alive_bytes())
    assert alive == sorted(alive, reverse=True)
    assert alive[-1] == 0
    assert out is not None  # held to the end


def test_freeing_late_keeps_what_is_below_a_matmul():
    """The setting does what it says: the input of silu stays, and goes with dw."""
    net = NETS["silu"]()
    with options(free_early=False):
        ledger, grad_fn, out = run(net)
    grad_fn.compute_input_grad(ops.ones_like(out))
    assert ledger.alive_bytes() > 1.5 * net.dw_bytes
    grad_fn.compute_weight_grad()
    assert ledger.alive_bytes() == 0


def test_bytes_of_a_known_forward():
    dense = nn.Dense(4, 3, has_bias=False)
    ledger = SavedTensorLedger()
    with ledger.watch():
        out, grad_fn = forward_and_gradfn(dense, ops.ones((2, 4)), weights=dense.weight)
    assert ledger.alive_bytes() == 4 * (2 * 4 + 3 * 4)  # the input and, as it is not ignored, the weight
    del out, grad_fn
    assert ledger.alive_bytes() == 0
