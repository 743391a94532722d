"""Measure pipelines in processes of their own, against what the simulator says of the same schedules.

    python scripts/bench_pipeline.py [sleeps] [matmuls]

sleeps: all computation is replaced by sleeps of the same length, so that only the schedule, the runner and the
communication are measured; 2 and 4 processes, 8 micro-batches. Exit code 1 if 1F1B / ZB-H1 is below 0.97 of the
simulated ratio, or a makespan is not within 3% of the simulated one.

matmuls: stages of large matmuls, 2 processes with a core each, 4 micro-batches; medians of interleaved steps, and the
ratio that the simulator gives for the times that were measured. Exit code 1 if ZB-H1 or ZB-H2 is not faster than 1F1B.
"""

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
SLEEP, SLEEP_MICROBATCHES = 0.4, 8
WIDTH, ROWS, LAYERS, MATMUL_MICROBATCHES, ROUNDS = 1024, 256, 6, 4, 9
NAMES = ("1f1b", "zb-h1", "zb-h2")
LEAST_OF_RATIO, MOST_OFF = 0.97, 0.03


def sleeping_stage():
    """A stage whose F, B and W sleep."""
    import time

    import mindspore as ms

    from mindspore_zb.pipeline import Stage, TensorMeta
    from mindspore_zb.pipeline.stages import Flight

    class SleepingFlight(Flight):
        """Sends small tensors that are there already."""

        def forward(self, args):
            self._state = "forward done"
            time.sleep(SleepingStage.seconds)
            return tensors[self._stage.fn is last]

        def input_grad(self, sens):
            self._state = "dx done"
            time.sleep(SleepingStage.seconds)
            return [tensors[0]]

        def weight_grad(self, part, parts):
            time.sleep(SleepingStage.seconds)
            return (), ()

        @property
        def held(self):
            return "nothing"

    class SleepingStage(Stage):
        """Of such flights."""

        seconds = 0.0

        def new_flight(self, takes):
            return SleepingFlight(self, takes)

    def last():
        """Marks the last stage."""

    tensors = {False: ms.ops.ones((256,)), True: ms.Tensor(1.0, ms.float32)}
    rank, ranks = int(os.environ["RANK_ID"]), int(os.environ["MS_WORKER_NUM"])
    stage = SleepingStage(last if rank + 1 == ranks else print, gives=TensorMeta(() if rank + 1 == ranks else (256,)))
    return stage, SleepingStage


def run_sleeps(results: Path) -> None:
    """A worker: one step of each schedule, behind one without sleeps."""
    from mindspore_zb.pipeline import Pipeline, connect
    from mindspore_zb.schedule import generate

    end = connect()
    stage, kind = sleeping_stage()
    found = {}
    for name in NAMES[:2]:
        schedule = generate(name, stages=end.ranks, microbatches=SLEEP_MICROBATCHES)
        pipeline = Pipeline(schedule, stage, end)
        kind.seconds = 0.0
        pipeline.step()
        kind.seconds = SLEEP
        entries = pipeline.collect(pipeline.step().entries)
        found[name] = [[rank, str(action), start, finish] for rank, action, start, finish in entries]
    if end.rank == 0:
        results.write_text(json.dumps(found), encoding="utf-8")
    end.close()


def run_matmuls(results: Path) -> None:
    """A worker: interleaved steps of the schedules."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn, ops

    from mindspore_zb.pipeline import Pipeline, Stage, connect, makespan
    from mindspore_zb.schedule import generate

    end = connect()
    last = end.rank + 1 == end.ranks
    layers = nn.SequentialCell([nn.Dense(WIDTH, WIDTH, has_bias=False) for _ in range(LAYERS)])

    def fn(x):
        return ops.mean(layers(x)) if last else layers(x)

    stage = Stage(fn, layers.trainable_params())
    pipelines = {name: Pipeline(generate(name, stages=end.ranks, microbatches=MATMUL_MICROBATCHES), stage, end)
                 for name in NAMES}
    x = ms.Tensor(np.random.default_rng(0).standard_normal((ROWS * MATMUL_MICROBATCHES, WIDTH)).astype(np.float32))
    spans = {name: [] for name in NAMES}
    times = {}
    for number in range(ROUNDS + 2):
        for name in NAMES if number % 2 else reversed(NAMES):
            entries = pipelines[name].collect(pipelines[name].step(inputs=(x,)).entries)
            if number < 2 or end.rank:
                continue
            spans[name].append(makespan(entries))
            for rank, action, start, finish in entries:
                if action.computes:
                    times.setdefault(f"{action.kind}{rank}", []).append(finish - start)
    if end.rank == 0:
        results.write_text(json.dumps({"spans": spans, "times": times}), encoding="utf-8")
    end.close()


def launch(kind: str, workers: int):
    """Run this script in ``workers`` processes; what they found."""
    from st.launcher import run_under_msrun

    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        done = run_under_msrun(Path(__file__), "worker", kind, str(results), workers=workers, timeout=600,
                               log_dir=Path(folder) / "logs", environment={"OMP_NUM_THREADS": "1"})
        if done.exit_code != 0 or not results.exists():
            sys.exit(done.report())
        return json.loads(results.read_text(encoding="utf-8"))


def hop_seconds(entries) -> float:
    """The median time of a message that its receiver was waiting for, from the send to the end of the receive."""
    sent = {str(action.counterpart): start for _, action, start, _ in entries if action.sends}
    waits = [finish - sent[str(action)] for _, action, start, finish in entries
             if action.receives and start <= sent[str(action)]]
    return statistics.median(waits) if waits else 0.0


def compare_sleeps(ranks: int) -> bool:
    """Print the measured and the simulated makespans; whether they agree."""
    from mindspore_zb.pipeline import makespan
    from mindspore_zb.schedule import Action, Costs, generate, simulate

    found = {name: [(rank, Action.parse(text), start, finish) for rank, text, start, finish in entries]
             for name, entries in launch("sleeps", ranks).items()}
    hop = statistics.median([hop_seconds(entries) for entries in found.values()])
    spans, wanted = {}, {}
    fine = True
    for name, entries in found.items():
        schedule = generate(name, stages=ranks, microbatches=SLEEP_MICROBATCHES)
        spans[name] = makespan(entries)
        wanted[name] = simulate(schedule, Costs(f=SLEEP, b=SLEEP, w=SLEEP, comm=hop)).makespan
        ideal = simulate(schedule, Costs(f=SLEEP, b=SLEEP, w=SLEEP)).makespan
        off = spans[name] / wanted[name] - 1
        fine = fine and abs(off) <= MOST_OFF
        print(f"p={ranks} m={SLEEP_MICROBATCHES} {name}: makespan {spans[name]:.3f} s, simulated {wanted[name]:.3f} s "
              f"({off:+.2%}); without communication {ideal:.3f} s")
    measured, simulated = spans["1f1b"] / spans["zb-h1"], wanted["1f1b"] / wanted["zb-h1"]
    print(f"p={ranks} m={SLEEP_MICROBATCHES}: 1F1B / ZB-H1 measured {measured:.4f}, simulated {simulated:.4f}, "
          f"quotient {measured / simulated:.4f}; a message takes {hop * 1e3:.1f} ms")
    return fine and measured / simulated >= LEAST_OF_RATIO


def compare_matmuls(ranks: int = 2) -> bool:
    """Print the measured ratios and the ideal ones; whether splitting won."""
    from mindspore_zb.schedule import Costs, generate, simulate

    found = launch("matmuls", ranks)
    spans = found["spans"]
    times = {kind: [statistics.median(found["times"][f"{kind}{rank}"]) for rank in range(ranks)] for kind in "FBW"}
    costs = Costs(f=times["F"], b=times["B"], w=times["W"])
    for kind, seconds in times.items():
        print(f"T_{kind} by rank: {', '.join(f'{second * 1e3:.0f} ms' for second in seconds)}")
    ideal = {name: simulate(generate(name, stages=ranks, microbatches=MATMUL_MICROBATCHES), costs).makespan
             for name in NAMES}
    print(f"p={ranks} m={MATMUL_MICROBATCHES} 1f1b: median {statistics.median(spans['1f1b']):.3f} s of {ROUNDS} steps")
    fine = True
    for name in NAMES[1:]:
        ratios = [one / other for one, other in zip(spans["1f1b"], spans[name])]
        ratio = statistics.median(ratios)
        fine = fine and ratio > 1
        print(f"p={ranks} m={MATMUL_MICROBATCHES} {name}: median {statistics.median(spans[name]):.3f} s; 1F1B / {name} "
              f"median {ratio:.3f} (from {min(ratios):.3f} to {max(ratios):.3f}), ideal "
              f"{ideal['1f1b'] / ideal[name]:.3f}")
    return fine


def main(arguments) -> int:
    """Run what was asked for; 0 if all is as it should be."""
    if arguments[:1] == ["worker"]:
        kind, results = arguments[1], Path(arguments[2])
        if kind == "matmuls":  # before MindSpore is imported
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[int(os.environ["RANK_ID"]) % len(cores)]})
        (run_sleeps if kind == "sleeps" else run_matmuls)(results)
        return 0
    known = {"sleeps": lambda: all([compare_sleeps(2), compare_sleeps(4)]), "matmuls": compare_matmuls}
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(f"bench_pipeline.py: {unknown[0]!r} is no measurement; there are {', '.join(known)}", file=sys.stderr)
        return 2
    return 0 if all([known[name]() for name in arguments or known]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
