"""What a guard costs: the time of a training step under it, over that of the same step without.

    python scripts/bench_guard.py [rounds]

Two nets, one of many small operations and one of few large ones; forward, dx and dw by the split backward. Also how fast
this machine takes and compares contents, by copies and by checksums: that decides which the guard does unless told.
"""

import contextlib
import sys
import time
from typing import Any, Callable, Dict

import one_core  # isort: skip  # noqa: F401  before MindSpore
import bench_nets
from interleaved import Stopwatch, milliseconds, ratio, times_of

from mindspore_zb import forward_and_gradfn
from mindspore_zb.memory import SavedTensorLedger, guard
from mindspore_zb.memory.contents import Checksum, CopiedContents


def step(bench: bench_nets.BenchNet, sens: Any, watching: Callable[[], Any]) -> Dict[str, float]:
    """Seconds of one step."""
    weights = bench.net.trainable_params()
    watch = Stopwatch()
    with watching():
        _, grad_fn = forward_and_gradfn(bench.net, bench.x, weights=weights)
        grad_fn.compute_input_grad(sens)
        grad_fn.compute_weight_grad()
    return {"step": watch.read()}


def bench_net(bench: bench_nets.BenchNet, rounds: int) -> None:
    """Print the row of one net."""
    sens = bench_nets.normal(*bench.net(bench.x).shape)
    times = times_of({
        "plain": lambda: step(bench, sens, contextlib.nullcontext),
        "hooks": lambda: step(bench, sens, lambda: SavedTensorLedger().watch()),
        "copies": lambda: step(bench, sens, guard),
        "checksums": lambda: step(bench, sens, lambda: guard(exact=False))}, rounds)
    with guard() as watch:
        _, grad_fn = forward_and_gradfn(bench.net, bench.x, weights=bench.net.trainable_params())
        megabytes = watch.nbytes / 1e6
        grad_fn.release()
    plain = times["plain step"]
    print(f"{bench.name:52} {milliseconds(plain):9.2f} {ratio(times['hooks step'], plain):9.2f} "
          f"{ratio(times['copies step'], plain):9.2f} {ratio(times['checksums step'], plain):9.2f} {watch.saved:9} "
          f"{megabytes:9.1f}", flush=True)


def bench_contents(rounds: int) -> None:
    """Print gigabytes a second of taking and of comparing."""
    tensor = bench_nets.normal(1024, 4096)
    print()
    for name, kind in (("copies", CopiedContents), ("checksums", Checksum)):
        taken = kind(tensor)
        speeds = []
        for work in (lambda: kind(tensor), lambda: taken.difference(tensor)):
            seconds = []
            for _ in range(max(rounds, 5)):
                start = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - start)
            speeds.append(tensor.nbytes / min(seconds) / 1e9)
        print(f"{name}: {speeds[0]:.1f} GB/s to take, {speeds[1]:.1f} GB/s to compare, best of {max(rounds, 5)}")


def main() -> None:
    """Print all tables."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    print(f"one step, medians of {rounds} interleaved rounds; ratios are medians of each round's ratio\n")
    print(f"{'net':52} {'plain':>9} {'hooks':>9} {'guard,':>9} {'guard,':>9} {'saved':>9} {'copies':>9}")
    print(f"{'':52} {'ms':>9} {'/plain':>9} {'copies':>9} {'checksums':>9} {'tensors':>9} {'MB':>9}")
    for bench in (bench_nets.mlp("tanh", width=64, layers=12, batch=8), bench_nets.transformer(2, 128, 2, 64),
                  bench_nets.mlp("silu", batch=512)):
        bench_net(bench, rounds)
    bench_contents(rounds)


if __name__ == "__main__":
    main()
