"""Train the language model of the first example over two processes, by two pipeline schedules.

    python examples/02_train_in_a_pipeline.py      # starts the two processes itself; PNGs need: pip install -e .[viz]

The first process has the embedding and the first blocks, the second one the other blocks, the head and the loss. By
1F1B each backward is run whole; by ZB-H1 the gradients of the weights (dw) are postponed into time in which a process
would otherwise wait (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241). Both trainings begin with the
same weights and see the same text, so their losses must be equal: the program checks it, and ends with exit code 1 if
they are not. It prints the times of the steps and, for each schedule, draws what the processes did in the last step.
"""

import argparse
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence

from terminal import show_table

RANKS, MICRO_BATCHES, BATCH, LENGTH, HEADS = 2, 4, 4, 64, 4
SCHEDULES = ("1f1b", "zb-h1")
LEARNING_RATE = 2e-3
TOLERANCE = 1e-4  # largest relative difference of two losses that count as equal
UNTIMED_STEPS = 2  # MindSpore sets itself up in the first steps
TEXT_BYTES = 2_000_000


def train_one_rank(options: argparse.Namespace, results: Path) -> None:
    """What each process does: both trainings, in turn step by step."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(cores) >= RANKS:  # before MindSpore is imported: its threads take the cores that there are then
        os.sched_setaffinity(0, {cores[int(os.environ["RANK_ID"])]})
    import mindspore as ms
    from language_model import LanguageModel, endless_steps, read_text
    from mindspore import nn, ops

    from mindspore_zb.pipeline import Pipeline, Stage, connect, makespan
    from mindspore_zb.schedule import generate

    end = connect()
    pipelines = {}
    for name in SCHEDULES:
        ms.set_seed(options.seed)
        model = LanguageModel(options.blocks, options.width, HEADS, LENGTH)
        part = (model.first, model.last)[end.rank]
        optimizer = nn.AdamWeightDecay(part.trainable_params(), learning_rate=LEARNING_RATE, beta2=0.95)
        schedule = generate(name, stages=RANKS, microbatches=MICRO_BATCHES)
        pipelines[name] = Pipeline(schedule, Stage(part), end, optimizer=optimizer)
    text = read_text(options.text, TEXT_BYTES)
    losses: Dict[str, List[float]] = {name: [] for name in SCHEDULES}
    spans: Dict[str, List[float]] = {name: [] for name in SCHEDULES}
    timelines: Dict[str, Any] = {}
    for step, batches in zip(range(options.steps), endless_steps(text, MICRO_BATCHES, BATCH, LENGTH, options.seed)):
        ids, targets = (ops.cat([pair[place] for pair in batches]) for place in (0, 1))
        for name in sorted(SCHEDULES, reverse=step % 2 == 1):  # neither is always the first
            result = pipelines[name].step(inputs=(ids,), targets=(targets,))
            if result.loss is not None:
                losses[name].append(float(result.loss))
            entries = pipelines[name].collect(result.entries)
            spans[name].append(makespan(entries))
            timelines[name] = [[rank, str(action), start, stop] for rank, action, start, stop in entries]
        if end.rank == RANKS - 1 and (step % max(options.steps // 5, 1) == 0 or step + 1 == options.steps):
            print(f"step {step + 1:>3} of {options.steps}   loss "
                  + ", ".join(f"{losses[name][-1]:.4f} {name}" for name in SCHEDULES), flush=True)
    found = {"losses": losses} if end.rank == RANKS - 1 else {"spans": spans, "timelines": timelines}
    (results / f"rank_{end.rank}.json").write_text(json.dumps(found), encoding="utf-8")
    end.close()


def start_processes(arguments: Sequence[str], folder: Path) -> Dict[str, Any]:
    """Run this program once for each rank under ``msrun``; what the ranks found."""
    with socket.socket() as probe:  # a port that nobody uses
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mindspore.parallel.cluster.run", f"--worker_num={RANKS}",
               f"--local_worker_num={RANKS}", f"--master_port={port}", "--cluster_time_out=120", "--join=True",
               f"--tail_worker_log={RANKS - 1}", f"--log_dir={folder / 'logs'}", str(Path(__file__).resolve()),
               "--results", str(folder), *arguments]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    # Threads that spin for work take the time of the other process where cores are few.
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
                          env=environment) as process:
        for line in process.stdout:
            if line.startswith("step"):
                print(line, end="", flush=True)
    found: Dict[str, Any] = {}
    for rank in range(RANKS):
        path = folder / f"rank_{rank}.json"
        if process.returncode != 0 or not path.exists():
            logs = "\n".join((folder / "logs" / f"worker_{number}.log").read_text(encoding="utf-8", errors="replace")
                             for number in range(RANKS))
            raise RuntimeError(f"the processes failed:\n{logs[-4000:]}")
        found.update(json.loads(path.read_text(encoding="utf-8")))
    return found


def show(found: Dict[str, Any], pictures: Path) -> bool:
    """Print and draw what came out; whether the losses are equal."""
    one, other = (found["losses"][name] for name in SCHEDULES)
    differences = [abs(left - right) / abs(right) for left, right in zip(one, other)]
    equal = all(difference <= TOLERANCE for difference in differences)
    every = max(len(one) // 5, 1)
    shown = sorted({0, len(one) - 1, *range(every - 1, len(one), every)})
    show_table("Loss of the same training by two schedules", ("step", *SCHEDULES, "relative difference"),
               [(step + 1, f"{one[step]:.6f}", f"{other[step]:.6f}", f"{differences[step]:.1e}") for step in shown],
               f"largest relative difference of all {len(one)} steps: {max(differences):.1e}, "
               f"{'equal' if equal else 'NOT EQUAL'} within {TOLERANCE:g}")
    spans = {name: times[UNTIMED_STEPS:] for name, times in found["spans"].items()}
    ratio = statistics.median(one / other for one, other in zip(*(spans[name] for name in SCHEDULES)))
    show_table(f"Time of one step of {MICRO_BATCHES} micro-batches on {RANKS} processes", ("schedule", "milliseconds"),
               [(name, f"{statistics.median(spans[name]) * 1e3:.1f}") for name in SCHEDULES],
               f"{SCHEDULES[0]} / {SCHEDULES[1]} = {ratio:.3f}, the median over {len(spans[SCHEDULES[0]])} steps in "
               "which the two took turns")
    draw(found["timelines"], pictures)
    return equal


def draw(timelines: Dict[str, Any], pictures: Path) -> None:
    """A picture, if matplotlib is there, and a trace of the last step of each schedule."""
    from mindspore_zb.draw.timeline import draw_timeline
    from mindspore_zb.draw.trace import write_trace
    from mindspore_zb.errors import UnsupportedError

    print()
    for name, entries in timelines.items():
        trace = pictures / f"pipeline_{name}.json"
        write_trace(entries, trace)
        try:
            picture = pictures / f"pipeline_{name}.png"
            draw_timeline(entries, picture, title=f"{name}, measured", unit="s")
            print(f"{name}: what each process did is drawn in {picture}; open {trace} at ui.perfetto.dev")
        except UnsupportedError:
            print(f"{name}: open {trace} at ui.perfetto.dev; for pictures: pip install -e .[viz]")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; a wrong one ends the program with one line and exit code 2."""
    parser = argparse.ArgumentParser(description="Train a small language model over two processes by 1F1B and ZB-H1.",
                                     epilog="example: python examples/02_train_in_a_pipeline.py --steps 8 --width 64")
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: error: {message}\n")
    option = functools.partial(parser.add_argument, metavar="N")
    option("--steps", type=functools.partial(whole_number, least=UNTIMED_STEPS + 1), default=10,
           help="training steps (default: %(default)s)")
    option("--width", type=functools.partial(whole_number, least=HEADS), default=128,
           help=f"size of the activations, a multiple of {HEADS} (default: %(default)s)")
    option("--blocks", type=functools.partial(whole_number, least=2), default=4,
           help="transformer blocks (default: %(default)s)")
    option("--seed", type=functools.partial(whole_number, least=0), default=1,
           help="of weights and text (default: %(default)s)")
    option("--text", type=Path, default=Path(sysconfig.get_paths()["stdlib"]), metavar="FOLDER",
           help="where the text is (default: the sources of Python's standard library)")
    option("--pictures", type=Path, default=Path(), metavar="FOLDER",
           help="where pictures and traces go (default: here)")
    option("--results", type=Path, help=argparse.SUPPRESS)  # given to the processes that this program starts
    options = parser.parse_args(arguments)
    if options.width % HEADS:
        parser.error(f"argument --width: must be a multiple of {HEADS}, not {options.width}")
    if not options.pictures.is_dir():
        parser.error(f"argument --pictures: there is no folder {options.pictures}")
    options.text = options.text.resolve()
    return options


def whole_number(text: str, least: int) -> int:
    """A number from the command line."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least}, not {text!r}")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    """Train, print what came out; 0 if the losses are equal."""
    options = parse_arguments(arguments)
    if options.results is not None:
        train_one_rank(options, options.results)
        return 0
    passed_on: List[str] = []
    for name in ("steps", "width", "blocks", "seed", "text"):
        passed_on += [f"--{name}", str(getattr(options, name))]
    print(f"{RANKS} processes: {options.blocks} blocks of width {options.width}; each step {MICRO_BATCHES} x {BATCH} x "
          f"{LENGTH} bytes of text from {options.text}\nstarting them takes about 20 seconds", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            from language_model import read_text
            read_text(options.text, TEXT_BYTES)
            found = start_processes(passed_on, Path(folder))
        except (OSError, RuntimeError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2 if isinstance(error, OSError) else 1
    return 0 if show(found, options.pictures.resolve()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
