"""Times of the compiled split against one compiled function that computes everything, and against PyNative.

    python scripts/bench_graph.py [rounds]

The first table comes twice: on all cores, as MindSpore runs by default, and on one core, from a process of its own. They
differ, as MindSpore waits by spinning. So do micro-batches one after the other without a pause, as a training runs them,
and the first few after a pause, in which MindSpore's threads slept: the one function is quicker then.
"""

import subprocess
import sys
import time
from typing import Any, Dict

ONE_CORE = "--one-core"
if ONE_CORE in sys.argv:
    import one_core  # isort: skip  # noqa: F401  before MindSpore

import bench_nets
import mindspore as ms
import numpy as np
from interleaved import Stopwatch, milliseconds, ratio, times_of
from mindspore import nn, ops

from mindspore_zb import options, zero_bubble
from mindspore_zb.api import run_forward
from mindspore_zb.engines.graph import kernels
from mindspore_zb.engines.graph.cache import clear_programs
from mindspore_zb.engines.graph.emit import emit_piece
from mindspore_zb.engines.graph.joint import Call, compile_joint
from mindspore_zb.engines.graph.native import LoadedGraph, unique_names
from mindspore_zb.engines.graph.partition import CutSettings, Piece, cut_joint
from mindspore_zb.engines.graph.simplify import simplified
from mindspore_zb.structure import flatten


class Together(nn.Cell):
    """The yardstick: out, dx and dw from one compiled function."""

    def __init__(self, net: nn.Cell):
        super().__init__(auto_prefix=False)
        self.net = net
        self.weights = ms.ParameterTuple(net.trainable_params())
        self.gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)

    @ms.jit
    def construct(self, x, sens):
        out = self.net(x)
        return out, self.gradient(self.net, self.weights)(x, sens)


def split_run(net: Any, x: Any, sens: Any) -> Dict[str, float]:
    """Seconds of one micro-batch, and of its parts."""
    watch = Stopwatch()
    _, grad_fn = net.forward_and_gradfn(x)
    seconds = {"forward": watch.read()}
    grad_fn.compute_input_grad(sens)
    seconds["dx"] = watch.read()
    grad_fn.compute_weight_grad()
    seconds["dw"] = watch.read()
    return seconds


def split_whole(net: Any, x: Any, sens: Any) -> None:
    """One micro-batch."""
    _, grad_fn = net.forward_and_gradfn(x)
    grad_fn.compute_input_grad(sens)
    grad_fn.compute_weight_grad()


def whole_run(work: Any, calls: int = 1) -> Dict[str, float]:
    """Seconds of one call, of so many one after the other, as a training runs them."""
    watch = Stopwatch()
    for _ in range(calls):
        work()
    return {"all": watch.read() / calls}


def bench(bench_net: bench_nets.BenchNet, rounds: int, calls: int, first: int) -> None:
    """Print the row of one net.

    Args:
        bench_net: the net.
        rounds: how often everything is timed.
        calls: how many micro-batches are timed together, one after the other without a pause; a tenth in PyNative mode.
        first: how many are the first few after a pause.
    """
    clear_programs()
    net, x = bench_net.net, bench_net.x
    sens = bench_nets.normal(*net(x).shape)
    together = Together(net)
    compiled, eager = zero_bubble(net, mode="graph"), None
    graph_call = compiled.forward_and_gradfn
    start = time.perf_counter()
    graph_call(x)
    compile_seconds = time.perf_counter() - start

    class Caller:
        """The same net through one of the engines."""

        def __init__(self, call: Any):
            self.forward_and_gradfn = call

    eager = Caller(zero_bubble(net, mode="pynative").forward_and_gradfn)
    graph = Caller(graph_call)

    def to_together(count: int) -> float:
        times = times_of({"graph": lambda: whole_run(lambda: split_whole(graph, x, sens), count),
                          "together": lambda: whole_run(lambda: together(x, sens), count)}, rounds)
        return ratio(times["graph all"], times["together all"])

    steady, paused = to_together(calls), to_together(first)
    beside = times_of({"parts": lambda: split_run(graph, x, sens),  # apart: PyNative's threads go on waiting for a while
                       "graph": lambda: whole_run(lambda: split_whole(graph, x, sens), calls),
                       "pynative": lambda: whole_run(lambda: split_whole(eager, x, sens), max(calls // 10, 1))}, rounds)
    print(f"{bench_net.name:56} {milliseconds(beside['parts forward']):8.2f} {milliseconds(beside['parts dx']):8.2f} "
          f"{milliseconds(beside['parts dw']):8.2f} {steady:9.3f} {paused:9.3f} "
          f"{ratio(beside['graph all'], beside['pynative all']):9.3f} {compile_seconds:9.1f}", flush=True)


def bench_recompute(rounds: int, width: int = 512) -> None:
    """Print what each policy saves between forward and backward, and what it costs."""
    bench_net = bench_nets.transformer(4, width, 4, 128)
    net, x = bench_net.net, bench_net.x
    sens = bench_nets.normal(*net(x).shape)
    call = zero_bubble(net, mode="graph").forward_and_gradfn
    policies = ("none", "views", "elementwise", "cheap", "selective")
    held: Dict[str, int] = {}

    def run(policy: str) -> Dict[str, float]:
        with options(graph_recompute=policy):
            watch = Stopwatch()
            _, grad_fn = call(x)
        values = [value for value in grad_fn._recording._values.values() if not isinstance(value, ms.Parameter)]
        held[policy] = sum({value.data_ptr(): value.nbytes for value in values}.values())
        grad_fn.compute_input_grad(sens)
        grad_fn.compute_weight_grad()
        return {"all": watch.read()}

    times = times_of({policy: lambda policy=policy: run(policy) for policy in policies}, rounds)
    compiled = cut_joint(_joint_of(bench_net), CutSettings()).saved_bytes
    print(f"\nrecompute, {bench_net.name}: MB alive after the forward, saved of the {compiled / 1e6:.2f} MB of the graph as "
          'MindSpore compiles it, saved of "none", and time over "none"')
    for policy in policies:
        print(f"  {policy:12} {held[policy] / 1e6:8.2f} {1 - held[policy] / compiled:8.1%} "
              f"{1 - held[policy] / held['none']:8.1%} {ratio(times[f'{policy} all'], times['none all']):8.3f}", flush=True)


def bench_operations() -> None:
    """Print how many operations a net has as MindSpore compiles it, as it is rewritten, and with quick kernels."""
    bench_net = bench_nets.transformer(4, 64, 2, 16)
    joint = _joint_of(bench_net)
    small = simplified(joint)
    partitions = [cut_joint(joint, CutSettings()), cut_joint(small, CutSettings())]
    partitions.append(kernels.with_quick_kernels(small, partitions[1])[1])
    counts = [", ".join(map(str, (len(partition.forward.nodes), len(partition.dx.nodes),
                                  sum(len(part.piece.nodes) for part in partition.dw)))) for partition in partitions]
    print(f"\noperations of forward, dx and dw, {bench_net.name}: {counts[0]} as compiled, {counts[1]} as rewritten, "
          f"{counts[2]} with quick kernels")


def _joint_of(bench_net: bench_nets.BenchNet) -> Any:
    """The joint graph of a net as MindSpore compiles it."""
    leaves, structure = flatten(((bench_net.x,), {}))
    with unique_names(bench_net.net.get_parameters()):
        return compile_joint(Call(bench_net.net, structure, leaves, (0,), tuple(bench_net.net.trainable_params()), False))


def bench_kernels(rounds: int) -> None:
    """Print how long what may be replaced by quick kernels takes, by itself and as several, and the errors of both.

    The errors are the largest ones against double precision, relative to the largest number of the result.
    """
    net = nn.SequentialCell(nn.Dense(8, 8), nn.GELU(), nn.Dense(8, 8))
    graph = _joint_of(bench_nets.BenchNet("", net, bench_nets.normal(2, 8), 0)).graph
    grad = bench_nets.normal(*kernels.SIZE)
    x = ms.Tensor(np.linspace(-3, 3, grad.size, dtype=np.float32).reshape(kernels.SIZE))
    out = ops.gelu(x, approximate="tanh")
    right, slope = _gelu(x.asnumpy().astype(np.float64))
    rights = {"GeLU": ((x,), right), "GeLUGrad": ((ops.ones_like(x), x, out), slope),
              "BiasAddGrad": ((grad,), grad.asnumpy().astype(np.float64).sum(0))}
    print(f"\nkernels, {kernels.SIZE[0]}x{kernels.SIZE[1]} float32: ms alone, ms as several, error alone, error as several")
    for kind, (arguments, expected) in rights.items():
        node = next(node for node in graph.order if graph.kind(node) == kind)
        one, several = (kernels.loaded(found, arguments) for found in kernels.both_ways(graph, node))
        times = times_of({"one": lambda run=one: whole_run(run), "several": lambda run=several: whole_run(run)}, rounds)
        errors = [abs(run() - expected).max() / abs(expected).max() for run in (one, several)]
        print(f"  {kind:12} {milliseconds(times['one all']):8.2f} {milliseconds(times['several all']):8.2f} "
              f"{errors[0]:8.1e} {errors[1]:8.1e}", flush=True)


def _gelu(x: Any) -> Any:
    """GeLU by tanh and its derivative."""
    inner, slope = (2 / np.pi) ** 0.5 * (x + 0.044715 * x ** 3), (2 / np.pi) ** 0.5 * (1 + 3 * 0.044715 * x ** 2)
    half = (1 + np.tanh(inner)) / 2
    return x * half, half + x * (1 - np.tanh(inner) ** 2) / 2 * slope


def bench_host_cost(rounds: int, count: int = 20) -> None:
    """Print what the calls of a net with some 100 residuals cost beyond the kernels: our Python, and handing residuals over.

    The kernels' time is that of the same nodes run as one piece, which hands nothing over. ``count`` calls come one after
    the other.
    """
    layers = 34

    def fn(x):
        for _ in range(layers):
            x = ops.tanh(x) * ops.sin(x)
        return x

    x = bench_nets.normal(2, 2)
    leaves, structure = flatten(((x,), {}))
    joint = compile_joint(Call(fn, structure, leaves, (0,), (), False))
    partition = cut_joint(joint, CutSettings())
    everything = partition.forward.nodes | partition.dx.nodes
    outs, sens = joint.outs, joint.graph.inputs[1:]
    alone = {"forward": _run_alone(joint, Piece("forward", partition.forward.nodes, joint.graph.inputs[:1], outs), x),
             "both": _run_alone(joint, Piece("both", everything, (*joint.graph.inputs[:1], *sens),
                                             (*outs, *joint.dxs)), x)}

    def calls() -> Dict[str, float]:
        watch, seconds = Stopwatch(), {"forward": 0.0, "dx": 0.0}
        for _ in range(count):
            _, grad_fn = run_forward(fn, (x,), {}, None, False, 0, "graph")
            seconds["forward"] += watch.read() / count
            grad_fn.compute_input_grad(x)
            seconds["dx"] += watch.read() / count
        return seconds

    times = times_of({"calls": calls, **{name: lambda run=run: whole_run(run, count) for name, run in alone.items()}},
                     rounds)
    forward, both = milliseconds(times["forward all"]), milliseconds(times["both all"])
    print(f"\nhost cost with {len(partition.forward.gives) - len(outs)} residuals: forward "
          f"{milliseconds(times['calls forward']) - forward:.2f} ms besides {forward:.2f} ms of kernels, dx "
          f"{milliseconds(times['calls dx']) - (both - forward):.2f} ms besides {both - forward:.2f} ms")


def _run_alone(joint: Any, piece: Piece, x: Any) -> Any:
    """A call of the executor that runs a piece on ``x`` for each of its arguments."""
    model = emit_piece(joint.graph, piece, f"alone_{piece.name}")
    graph = LoadedGraph(model.SerializeToString(), [x] * len(piece.reads))
    return lambda: graph((x,) * len(piece.reads))


def bench_nets_of_both_sizes(rounds: int, where: str, calls: int) -> None:
    """Print the first table; ``calls`` of the small net are timed together, and a twentieth of the large one."""
    print(f"{where:56} {'forward':>8} {'dx':>8} {'dw':>8} {'/together':>9} {'/together':>9} {'/pynative':>9} {'compile':>9}")
    print(f"{'':56} {'ms':>8} {'ms':>8} {'ms':>8} {'':>9} {'(paused)':>9} {'':>9} {'s':>9}")
    bench(bench_nets.transformer(4, 64, 2, 16), rounds, calls, first=min(calls, 10))
    bench(bench_nets.transformer(4, 512, 4, 128), max(rounds // 3, 3), max(calls // 20, 1), first=1)


def main() -> None:
    """Print all tables."""
    numbers = [argument for argument in sys.argv[1:] if argument != ONE_CORE]
    rounds = int(numbers[0]) if numbers else 15
    if ONE_CORE in sys.argv:
        bench_nets_of_both_sizes(rounds, "on one core", calls=10)  # where the one function takes eight times as long
        return
    print(f"medians of {rounds} interleaved rounds; ratios are medians of each round's ratio\n")
    bench_nets_of_both_sizes(rounds, "on all cores", calls=100)
    subprocess.run([sys.executable, __file__, ONE_CORE, str(rounds)], check=True)
    bench_operations()
    bench_recompute(max(rounds // 3, 3))
    bench_kernels(rounds)
    bench_host_cost(rounds * 3)


if __name__ == "__main__":
    main()
