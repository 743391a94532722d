"""Bytes of saved tensors and times of a transformer under each policy of recompute, against none.

Times are medians of the ratios of interleaved rounds, on one core.

    python scripts/bench_recompute.py [rounds]
"""

import sys

import one_core  # noqa: F401 - before MindSpore
import bench_nets

from mindspore_zb.memory import measure_recompute
from mindspore_zb.terminal import show_table

MEGABYTE = 1e6
POLICIES = {"full": {"policy": "full"}, "every 2nd": {"policy": "every", "every": 2},
            "every, default k": {"policy": "every"}, "selective": {"policy": "selective"}}


def main() -> int:
    """Print the tables."""
    if len(sys.argv) > 2 or not all(argument.isdecimal() and int(argument) for argument in sys.argv[1:]):
        print("usage: bench_recompute.py [rounds, at least 1]", file=sys.stderr)
        return 2
    rounds = int(sys.argv[1]) if len(sys.argv) == 2 else 9
    for bench in (bench_nets.transformer(9, 256, 4, 128), bench_nets.transformer(9, 128, 1, 512)):
        costs = measure_recompute(bench.net, (bench.x,), bench.net.trainable_params(), bench.net, POLICIES, rounds)
        none = costs[0]
        show_table(bench.name, ["recompute", "MB after forward", "of none", "MB after dx", "forward ms",
                                "dx + dw ms", "time / none"],
                   [[cost.policy, f"{cost.forward_bytes / MEGABYTE:.2f}",
                     f"{cost.forward_bytes / none.forward_bytes:.3f}", f"{cost.dx_bytes / MEGABYTE:.2f}",
                     f"{cost.forward_seconds * 1e3:.0f}", f"{cost.backward_seconds * 1e3:.0f}",
                     f"{cost.time_ratio:.3f}"] for cost in costs],
                   f"saved tensors, weights not counted; medians of {rounds} interleaved rounds")
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
