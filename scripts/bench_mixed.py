"""An eager net of compiled blocks: how soon it is ready, without and with a cache directory, and its step against the
whole net compiled as one. The steps are measured twice: as MindSpore is by default, and with its
``runtime.launch_blocking()``, as by default each block wakes one of MindSpore's threads, which then takes time from the graphs.

    python scripts/bench_mixed.py [rounds]
"""

import subprocess
import sys
import tempfile
import time
from typing import Any

import bench_nets
import mindspore as ms
from bench_graph import split_run, split_whole, whole_run
from interleaved import milliseconds, ratio, times_of
from mindspore import nn

from mindspore_zb import options, zero_bubble
from mindspore_zb.memory import synchronize

READY, BLOCKING = "--ready", "--blocking"
SIZES = ((64, 2, 16), (512, 4, 128))
"""Width, batch and length of the nets."""


class CompiledBlock(bench_nets.Block):
    """The transformer block, compiled on its own."""

    @ms.jit
    def construct(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(bench_nets.ops.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Blocks(nn.Cell):
    """An eager net of equal blocks."""

    def __init__(self, kind: type, count: int, width: int):
        super().__init__()
        self.blocks = nn.CellList([kind(width, 4) for _ in range(count)])

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def ready_seconds(count: int, width: int, batch: int, length: int, directory: str) -> float:
    """Seconds until the first forward, dx and dw of a net are done, in this process."""
    net, x = zero_bubble(Blocks(CompiledBlock, count, width)), bench_nets.normal(batch, length, width)
    synchronize()
    start = time.perf_counter()
    with options(graph_cache=directory or None):
        out, grad_fn = net.forward_and_gradfn(x)
    grad_fn.compute_input_grad(out)
    for grad in grad_fn.compute_weight_grad():
        grad.asnumpy()
    return time.perf_counter() - start


def ready_in_new_process(count: int, size: tuple, directory: str = "") -> float:
    """The same in a process that has compiled nothing yet."""
    done = subprocess.run([sys.executable, __file__, READY, str(count), *map(str, size), directory],
                          capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def bench_ready(size: tuple, rounds: int) -> None:
    """Print how much longer twelve blocks take than two, and how much less from a cache directory."""
    with tempfile.TemporaryDirectory() as directory:
        ready_in_new_process(12, size, directory)
        ways = {"2": lambda: ready_in_new_process(2, size), "12": lambda: ready_in_new_process(12, size),
                "cached": lambda: ready_in_new_process(12, size, directory)}
        times = times_of({name: lambda way=way: {"ready": way()} for name, way in ways.items()}, rounds, warmup=0)
    print(f"ready, width {size[0]}, batch {size[1]}, length {size[2]}: "
          + ", ".join(f"{blocks} blocks {milliseconds(times[f'{name} ready']) / 1e3:.2f} s"
                      for name, blocks in (("2", "2"), ("12", "12"), ("cached", "from the cache 12"))))
    print(f"  12/2 {ratio(times['12 ready'], times['2 ready']):.2f}, "
          f"from the cache/12 {ratio(times['cached ready'], times['12 ready']):.3f}", flush=True)


def bench_step(size: tuple, rounds: int, calls: int, count: int = 12) -> None:
    """Print the times of one micro-batch; for "all", ``calls`` are timed together, one after the other without a pause."""
    width, batch, length = size
    x = bench_nets.normal(batch, length, width)
    mixed = zero_bubble(Blocks(CompiledBlock, count, width))
    whole: Any = zero_bubble(Blocks(bench_nets.Block, count, width), mode="graph")
    nets = {"mixed": mixed, "whole": whole}
    times = times_of({name: lambda net=net: {**split_run(net, x, x), **whole_run(lambda: split_whole(net, x, x), calls)}
                      for name, net in nets.items()}, rounds)
    print(f"step of {count} blocks, width {width}, batch {batch}, length {length}, ms:")
    for name in nets:
        print(f"  {name}: " + ", ".join(f"{part} {milliseconds(times[f'{name} {part}']):.2f}"
                                        for part in ("forward", "dx", "dw", "all")))
    print(f"  mixed/whole {ratio(times['mixed all'], times['whole all']):.3f}", flush=True)


def main() -> None:
    """Print all tables."""
    if READY in sys.argv:
        print(ready_seconds(*map(int, sys.argv[2:6]), sys.argv[6]))
        return
    blocking = BLOCKING in sys.argv
    numbers = [argument for argument in sys.argv[1:] if argument != BLOCKING]
    rounds = int(numbers[0]) if numbers else 15
    if blocking:
        ms.runtime.launch_blocking()  # cannot be taken back: hence a process of its own
        print("with launch_blocking():")
    else:
        bench_ready(SIZES[0], 5)
    bench_step(SIZES[0], rounds, calls=50)
    bench_step(SIZES[1], max(rounds // 3, 3), calls=2)
    if not blocking:
        subprocess.run([sys.executable, __file__, BLOCKING, str(rounds)], check=True)


if __name__ == "__main__":
    main()
