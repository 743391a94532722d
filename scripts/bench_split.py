"""Times of dx and dw against the unsplit backward, of many groups against one run, and of the planning.

    python scripts/bench_split.py [rounds]
"""

import sys
from typing import Any, Dict

import bench_nets
import numpy as np
from interleaved import Stopwatch, milliseconds, ratio, times_of
from mindspore import Parameter, Tensor, ops

from mindspore_zb import forward_and_gradfn, options
from mindspore_zb.engines.pynative.planner import clear_plans


def split_run(fn: Any, x: Any, weights: Any, sens: Any, name: str, free_early: bool) -> Dict[str, float]:
    """Seconds of forward, dx and dw."""
    with options(free_early=free_early):
        watch = Stopwatch()
        _, grad_fn = forward_and_gradfn(fn, x, weights=weights)
        forward = watch.read()
        grad_fn.compute_input_grad(sens)
        dx = watch.read()
        grad_fn.compute_weight_grad()
        dw = watch.read()
    return {f"{name} forward": forward, f"{name} dx": dx, f"{name} dw": dw, f"{name} dx+dw": dx + dw}


def unsplit_run(fn: Any, x: Any, weights: Any, sens: Any) -> Dict[str, float]:
    """Seconds of forward and of the unsplit backward."""
    watch = Stopwatch()
    _, grad_fn = forward_and_gradfn(fn, x, weights=weights)
    forward = watch.read()
    grad_fn(sens)
    return {"unsplit forward": forward, "unsplit backward": watch.read()}


def bench_net(bench: bench_nets.BenchNet, rounds: int) -> None:
    """Print the row of one net."""
    weights = bench.net.trainable_params()
    sens = ops.ones_like(bench.net(bench.x))
    times = times_of({
        "unsplit": lambda: unsplit_run(bench.net, bench.x, weights, sens),
        "split": lambda: split_run(bench.net, bench.x, weights, sens, "split", True),
        "cut": lambda: split_run(bench.net, bench.x, weights, sens, "cut", False)}, rounds)
    print(f"{bench.name:52} {milliseconds(times['unsplit backward']):9.2f} {milliseconds(times['split dx']):9.2f} "
          f"{milliseconds(times['split dw']):9.2f} {ratio(times['split dx+dw'], times['unsplit backward']):7.3f} "
          f"{ratio(times['cut dx+dw'], times['unsplit backward']):7.3f} "
          f"{ratio(times['split dx'], times['cut dx']):7.3f} "
          f"{ratio(times['split forward'], times['cut forward']):7.3f}", flush=True)


def chain(nodes: int, weights: int, size: int = 2) -> Any:
    """A chain of ``nodes`` elementwise operations in which ``weights`` Parameters take part, each alone."""
    parameters = [Parameter(np.ones((size, size), np.float32), name=f"w{place}") for place in range(weights)]
    every = nodes // weights

    def fn(x):
        for place in range(nodes):
            x = x * parameters[place // every] if place % every == 0 and place // every < weights else x + 1.0
        return x

    return fn, Tensor(np.ones((size, size), np.float32)), parameters


def bench_groups(rounds: int, groups: int = 500, size: int = 64) -> None:
    """Print dw of many groups one by one, and all at once, against one combined run of the engine."""
    parameters = [Parameter(np.eye(size, dtype=np.float32), name=f"w{place}") for place in range(groups)]

    def fn(x):
        for parameter in parameters:
            x = ops.matmul(x, parameter)
        return x

    x = Tensor(np.ones((size, size), np.float32))

    def run(name: str, compute: Any) -> Dict[str, float]:
        _, grad_fn = forward_and_gradfn(fn, x, weights=parameters)
        grad_fn.compute_input_grad()
        found = grad_fn.weight_groups
        watch = Stopwatch()
        compute(grad_fn, found)
        return {name: watch.read()}

    def combined(grad_fn: Any, found: Any) -> None:
        recording = grad_fn._recording  # the engine's own single run, the yardstick
        from mindspore_zb.engines.pynative import dw
        before, dw.AT_ONCE = dw.AT_ONCE, groups
        try:
            recording.weight_grads(range(len(found)), False)
        finally:
            dw.AT_ONCE = before

    times = times_of({
        "combined": lambda: run("combined", combined),
        "compute_weight_grad": lambda: run("compute_weight_grad", lambda grad_fn, _: grad_fn.compute_weight_grad()),
        "one by one": lambda: run("one by one", lambda _, found: [group.compute() for group in found])}, rounds)
    print(f"\ndw of {groups} groups of {size}x{size}: one combined run {milliseconds(times['combined']):.2f} ms, "
          f"compute_weight_grad {ratio(times['compute_weight_grad'], times['combined']):.3f} of it, "
          f"groups one by one {ratio(times['one by one'], times['combined']):.3f} of it")


def bench_planning(rounds: int, nodes: int = 10_000, weights: int = 500) -> None:
    """Print the time of planning a large graph, the first time and from the cache."""
    fn, x, parameters = chain(nodes, weights)

    def plan(first: bool) -> Dict[str, float]:
        _, grad_fn = forward_and_gradfn(fn, x, weights=parameters)
        if first:
            clear_plans()
        watch = Stopwatch()
        plan = grad_fn._recording.plan()
        return {"first" if first else "cached": watch.read(), "nodes": len(plan.graph.edges)}

    times = times_of({"first": lambda: plan(True), "cached": lambda: plan(False)}, rounds)
    print(f"\nplanning a graph of {times['nodes'][0]:.0f} nodes with {weights} weights: first "
          f"{milliseconds(times['first']):.1f} ms, cached {milliseconds(times['cached']):.1f} ms")


def main() -> None:
    """Print all tables."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    print(f"medians of {rounds} interleaved rounds; ratios are medians of each round's ratio\n")
    print(f"{'net':52} {'unsplit':>9} {'dx':>9} {'dw':>9} {'(dx+dw)':>7} {'same,':>7} {'dx early':>7} {'forward':>7}")
    print(f"{'':52} {'ms':>9} {'ms':>9} {'ms':>9} {'/unspl.':>7} {'cut':>7} {'/cut':>7} {'/cut':>7}")
    for bench in (bench_nets.mlp("tanh"), bench_nets.mlp("silu"), bench_nets.transformer(2, 256, 4, 128)):
        bench_net(bench, rounds)
    bench_groups(max(rounds // 3, 3))
    bench_planning(max(rounds // 3, 3))


if __name__ == "__main__":
    main()
