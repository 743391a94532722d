"""Bytes of saved activations that are alive after forward, dx and each dw group, and how many dw needs by formula.

Between dx and dw there are also the gradients that flow into the layers; the last column counts them too.

    python scripts/bench_memory.py
"""

import gc
from typing import List, Tuple

import bench_nets
from mindspore import ops

from mindspore_zb import forward_and_gradfn, options
from mindspore_zb.memory import SavedTensorLedger

MEGABYTE = 1e6


def measure(bench: bench_nets.BenchNet, free_early: bool) -> Tuple[List[int], int]:
    """Bytes alive after forward, after dx and after each group, while the caller holds ``out``; and the bytes that wait
    for dw, gradients included."""
    weights = bench.net.trainable_params()
    ledger = SavedTensorLedger(ignore=weights)
    with ledger.watch(), options(free_early=free_early):
        out, grad_fn = forward_and_gradfn(bench.net, bench.x, weights=weights)
    alive = [ledger.alive_bytes()]
    grad_fn.compute_input_grad(ops.ones_like(out))
    alive.append(ledger.alive_bytes())
    waiting = grad_fn.nbytes
    for group in grad_fn.weight_groups:
        group.compute()
        alive.append(ledger.alive_bytes())
    return alive, waiting


def main() -> None:
    """Print the table."""
    gc.disable()  # freeing must not need the collector
    nets = [bench_nets.mlp("tanh"), bench_nets.mlp("silu"), bench_nets.mlp("gelu"), bench_nets.mlp("relu"),
            bench_nets.swiglu(), bench_nets.transformer(4, 256, 4, 128)]
    print("MB of saved activations; weights do not count")
    print(f"{'net':52} {'free_early':>10} {'forward':>8} {'after dx':>8} {'dw needs':>8} {'ratio':>6} {'groups':>6} "
          f"{'at end':>6} {'with gradients':>14}")
    for bench in nets:
        for free_early in (True, False):
            alive, waiting = measure(bench, free_early)
            print(f"{bench.name:52} {str(free_early):>10} {alive[0] / MEGABYTE:8.2f} {alive[1] / MEGABYTE:8.2f} "
                  f"{bench.dw_bytes / MEGABYTE:8.2f} {alive[1] / bench.dw_bytes:6.3f} {len(alive) - 2:6d} "
                  f"{alive[-1]:6d} {waiting / MEGABYTE:14.2f}", flush=True)


if __name__ == "__main__":
    main()
