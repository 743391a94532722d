"""Bytes of saved activations that are alive after forward, dx and each dw group, and how many dw needs by formula.

    python scripts/bench_memory.py
"""

import gc
from typing import List

import bench_nets
from mindspore import ops

from mindspore_zb import forward_and_gradfn, options
from mindspore_zb.memory import SavedTensorLedger

MEGABYTE = 1e6


def measure(bench: bench_nets.BenchNet, free_early: bool) -> List[int]:
    """Bytes alive after forward, after dx and after each group; the caller holds ``out`` all the time."""
    weights = bench.net.trainable_params()
    ledger = SavedTensorLedger(ignore=weights)
    with ledger.watch(), options(free_early=free_early):
        out, grad_fn = forward_and_gradfn(bench.net, bench.x, weights=weights)
    alive = [ledger.alive_bytes()]
    grad_fn.compute_input_grad(ops.ones_like(out))
    alive.append(ledger.alive_bytes())
    for group in grad_fn.weight_groups:
        group.compute()
        alive.append(ledger.alive_bytes())
    return alive


def main() -> None:
    """Print the table."""
    gc.disable()  # freeing must not need the collector
    nets = [bench_nets.mlp("tanh"), bench_nets.mlp("silu"), bench_nets.mlp("gelu"), bench_nets.mlp("relu"),
            bench_nets.swiglu(), bench_nets.transformer(4, 256, 4, 128)]
    print(f"{'net':52} {'free_early':>10} {'forward':>9} {'after dx':>9} {'dw needs':>9} {'ratio':>6} {'groups':>6} "
          f"{'at the end':>10}   (MB of saved activations, weights not counted)")
    for bench in nets:
        for free_early in (True, False):
            alive = measure(bench, free_early)
            print(f"{bench.name:52} {str(free_early):>10} {alive[0] / MEGABYTE:9.2f} {alive[1] / MEGABYTE:9.2f} "
                  f"{bench.dw_bytes / MEGABYTE:9.2f} {alive[1] / bench.dw_bytes:6.3f} {len(alive) - 2:6d} "
                  f"{alive[-1]:10d}", flush=True)


if __name__ == "__main__":
    main()
