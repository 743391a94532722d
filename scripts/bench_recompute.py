"""Bytes of saved tensors and times of a transformer under each policy of recompute, against none.

Times are medians of the ratios of interleaved rounds, on one core. Recompute puts hooks on saved tensors, and MindSpore
issues operations one by one where there are any; what is then no longer waited for can outweigh the second forward.
So there is a second baseline: no recompute, under hooks that do nothing. Against it only the second forward counts.

    python scripts/bench_recompute.py [rounds]
"""

import contextlib
import sys
from typing import Any, Callable, ContextManager, Dict

import one_core  # noqa: F401 - before MindSpore
import bench_nets
import mindspore as ms
from interleaved import Stopwatch, milliseconds, ratio, times_of

from mindspore_zb import forward_and_gradfn
from mindspore_zb.memory import apply_recompute, measure_recompute
from mindspore_zb.terminal import show_table

MEGABYTE = 1e6
HOOKS = "none, hooks"
POLICIES = {"full": {"policy": "full"}, "every 3rd (default)": {"policy": "every"},
            "selective": {"policy": "selective"}}


def timed(bench: bench_nets.BenchNet, recompute: Callable[[], ContextManager[Any]]) -> Dict[str, float]:
    """Seconds of one forward, and of its dx and dw."""
    with recompute():
        watch = Stopwatch()
        _, grad_fn = forward_and_gradfn(bench.net, bench.x, weights=bench.net.trainable_params())
        forward = watch.read()
        grad_fn.compute_input_grad()
        grad_fn.compute_weight_grad()
        backward = watch.read()
    return {"forward": forward, "backward": backward, "both": forward + backward}


def hooks_that_do_nothing() -> ContextManager[Any]:
    """What the forward saves, it saves as it is."""
    return ms.saved_tensors_hooks(lambda tensor: tensor.data, lambda tensor: tensor)


def main() -> int:
    """Print the tables."""
    if len(sys.argv) > 2 or not all(argument.isdecimal() and int(argument) for argument in sys.argv[1:]):
        print("usage: bench_recompute.py [rounds, at least 1]", file=sys.stderr)
        return 2
    rounds = int(sys.argv[1]) if len(sys.argv) == 2 else 5
    for bench in (bench_nets.transformer(9, 128, 4, 64), bench_nets.transformer(9, 64, 1, 256)):
        costs = measure_recompute(bench.net, (bench.x,), bench.net.trainable_params(), bench.net, POLICIES, rounds=0)
        ways: Dict[str, Callable[[], Dict[str, float]]] = {
            "none": lambda bench=bench: timed(bench, contextlib.nullcontext),
            HOOKS: lambda bench=bench: timed(bench, hooks_that_do_nothing)}
        for name, arguments in POLICIES.items():
            ways[name] = lambda bench=bench, arguments=arguments: timed(
                bench, lambda: apply_recompute(bench.net, **arguments))
        times = times_of(ways, rounds)
        rows = [[cost.policy, f"{cost.forward_bytes / MEGABYTE:.2f}",
                 f"{cost.forward_bytes / costs[0].forward_bytes:.3f}", f"{cost.dx_bytes / MEGABYTE:.2f}",
                 f"{milliseconds(times[f'{cost.policy} forward']):.0f}",
                 f"{milliseconds(times[f'{cost.policy} backward']):.0f}",
                 f"{ratio(times[f'{cost.policy} both'], times['none both']):.3f}",
                 f"{ratio(times[f'{cost.policy} both'], times[f'{HOOKS} both']):.3f}"] for cost in costs]
        show_table(bench.name, ["recompute", "MB after forward", "of none", "MB after dx", "forward ms",
                                "dx + dw ms", "time / none", "/ none, hooks"], rows,
                   f"saved tensors, weights not counted; medians of {rounds} interleaved rounds")
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
