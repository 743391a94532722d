"""Times of dx and dw against the unsplit backward, of many groups against one run, and of the planning.

    python scripts/bench_split.py [rounds]
"""

import sys
import time
from typing import Any, Dict

import one_core  # isort: skip  # noqa: F401  before MindSpore
import bench_nets
import numpy as np
from interleaved import Stopwatch, milliseconds, ratio, times_of
from mindspore import Parameter, Tensor, ops

from mindspore_zb import forward_and_gradfn, options
from mindspore_zb.engines.pynative.planner import clear_plans


def run(bench: bench_nets.BenchNet, sens: Any, how: str, free_early: bool = True) -> Dict[str, float]:
    """Seconds of the forward, and of what ``how`` says of the backward: unsplit, both halves, or each of them."""
    weights = bench.net.trainable_params()
    with options(free_early=free_early):
        watch = Stopwatch()
        _, grad_fn = forward_and_gradfn(bench.net, bench.x, weights=weights)
        seconds = {"forward": watch.read()}
    if how == "unsplit":
        grad_fn(sens)
        seconds["backward"] = watch.read()
    elif how == "split":
        grad_fn.compute_input_grad(sens)
        grad_fn.compute_weight_grad()
        seconds["backward"] = watch.read()
    else:
        grad_fn.compute_input_grad(sens)
        seconds["dx"] = watch.read()
        grad_fn.compute_weight_grad()
        seconds["dw"] = watch.read()
    return seconds


def bench_net(bench: bench_nets.BenchNet, rounds: int) -> None:
    """Print the row of one net."""
    sens = bench_nets.normal(*bench.net(bench.x).shape)
    times = times_of({
        "unsplit": lambda: run(bench, sens, "unsplit"),
        "split": lambda: run(bench, sens, "split"),
        "early": lambda: run(bench, sens, "halves"),
        "late": lambda: run(bench, sens, "halves", free_early=False)}, rounds)
    print(f"{bench.name:52} {milliseconds(times['unsplit backward']):9.2f} {milliseconds(times['early dx']):9.2f} "
          f"{milliseconds(times['early dw']):9.2f} {ratio(times['split backward'], times['unsplit backward']):9.3f} "
          f"{ratio(times['early dx'], times['late dx']):9.3f} "
          f"{ratio(times['early forward'], times['late forward']):9.3f}", flush=True)


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

    def timed(compute: Any) -> Dict[str, float]:
        _, grad_fn = forward_and_gradfn(fn, x, weights=parameters)
        grad_fn.compute_input_grad()
        found = grad_fn.weight_groups
        watch = Stopwatch()
        compute(grad_fn, found)
        return {"dw": watch.read()}

    def combined(grad_fn: Any, found: Any) -> None:
        recording = grad_fn._recording  # the engine's own single run, the yardstick
        from mindspore_zb.engines.pynative import dw
        before, dw.AT_ONCE = dw.AT_ONCE, groups
        try:
            recording.weight_grads(range(len(found)), False)
        finally:
            dw.AT_ONCE = before

    times = times_of({
        "combined": lambda: timed(combined),
        "compute_weight_grad": lambda: timed(lambda grad_fn, _: grad_fn.compute_weight_grad()),
        "one by one": lambda: timed(lambda _, found: [group.compute() for group in found])}, rounds)
    print(f"\ndw of {groups} groups of {size}x{size}: one combined run {milliseconds(times['combined dw']):.2f} ms, "
          f"compute_weight_grad {ratio(times['compute_weight_grad dw'], times['combined dw']):.3f} of it, "
          f"groups one by one {ratio(times['one by one dw'], times['combined dw']):.3f} of it")


def bare_walk(root: Any) -> int:
    """Visit every node once and do nothing with it: what any Python code pays for looking at the graph."""
    nodes, seen = [root], {root._unique_id()}
    for node in nodes:
        for child, _ in node.next_functions:
            if child is not None and child._unique_id() not in seen:
                seen.add(child._unique_id())
                nodes.append(child)
    return len(nodes)


def bench_planning(rounds: int, nodes: int = 10_000, weights: int = 500) -> None:
    """Print the time of planning a large graph, the first time and from the cache, beside that of a bare walk."""
    fn, x, parameters = chain(nodes, weights)

    def timed(work: Any, first: bool = False) -> Dict[str, float]:
        _, grad_fn = forward_and_gradfn(fn, x, weights=parameters)
        if first:
            clear_plans()
        recording = grad_fn._recording
        Stopwatch()  # waits for the forward, which would run beside the planning
        start = time.perf_counter()
        work(recording)
        return {"time": time.perf_counter() - start, "nodes": len(recording.plan().graph.edges)}

    times = times_of({"bare walk": lambda: timed(lambda recording: bare_walk(recording._roots[0][0])),
                      "first": lambda: timed(lambda recording: recording.plan(), first=True),
                      "cached": lambda: timed(lambda recording: recording.plan())}, rounds)
    print(f"\nplanning a graph of {times['first nodes'][0]:.0f} nodes with {weights} weights: first "
          f"{milliseconds(times['first time']):.1f} ms, cached {milliseconds(times['cached time']):.1f} ms; a bare walk "
          f"over the graph takes {milliseconds(times['bare walk time']):.1f} ms; ratios to it "
          f"{ratio(times['first time'], times['bare walk time']):.2f} and "
          f"{ratio(times['cached time'], times['bare walk time']):.2f}")


def main() -> None:
    """Print all tables."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    print(f"medians of {rounds} interleaved rounds; ratios are medians of each round's ratio\n")
    print(f"{'net':52} {'unsplit':>9} {'dx':>9} {'dw':>9} {'(dx+dw)':>9} {'dx, freed':>9} {'forward,':>9}")
    print(f"{'':52} {'ms':>9} {'ms':>9} {'ms':>9} {'/unsplit':>9} {'early/late':>9} {'same':>9}")
    for bench in (bench_nets.mlp("tanh", batch=1024), bench_nets.mlp("silu", batch=1024), bench_nets.transformer(2, 256, 4, 128)):
        bench_net(bench, rounds)
    bench_groups(max(rounds // 3, 3))
    bench_planning(max(rounds // 3, 3))


if __name__ == "__main__":
    main()
