"""``python -m mindspore_zb profile``: measure F, B and W of a stage, for the schedules."""

import argparse
from typing import List

from mindspore_zb.commands import schedule
from mindspore_zb.commands._arguments import count
from mindspore_zb.counted import counted
from mindspore_zb.errors import ArgumentValueError, ZeroBubbleError
from mindspore_zb.factories import make
from mindspore_zb.schedule.sizes import check_size

HELP = "measure T_F, T_B and T_W of a stage and compare schedules under them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("factory", metavar="MODULE:FACTORY", help="a function without arguments that returns "
                        "(fn, inputs, weights): the stage, the tuple of its inputs for one micro-batch, and its "
                        "weights (None: the trainable parameters of a Cell)")
    parser.add_argument("--mode", choices=["auto", "pynative", "graph"], default="auto",
                        help="the engine that splits the backward (default auto)")
    parser.add_argument("--rounds", type=count, default=10, metavar="N",
                        help="how many micro-batches are measured, behind three others (default 10)")
    then = parser.add_argument_group("compare schedules under these times, as the command schedule does")
    then.add_argument("-p", "--stages", type=count, metavar="P", help="ranks of the pipeline")
    then.add_argument("-m", "--microbatches", type=count, metavar="M", help="micro-batches (default 2 P)")
    then.add_argument("--memory-limit", type=schedule.positive, metavar="X", help="as of schedule")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    if arguments.stages is None and (arguments.microbatches or arguments.memory_limit):
        raise ArgumentValueError("-m and --memory-limit are for comparing schedules: give the ranks with -p too")
    if arguments.stages is not None:  # before anything is measured
        check_size(arguments.stages, arguments.microbatches or 2 * arguments.stages, 2, 1, searched=True,
                   advice="take fewer of one of them, or measure without -p and give the command schedule --names")
    made = make(arguments.factory)
    if made.extras:
        raise ArgumentValueError(f"profile calls fn(*inputs) and cannot use the {', '.join(made.extras)} that "
                                 f"{arguments.factory} returned")

    from mindspore_zb.pipeline import stage_times
    from mindspore_zb.pipeline.wording import short
    from mindspore_zb.terminal import show_table

    try:
        times = stage_times(made.fn, made.inputs, made.weights, mode=arguments.mode, rounds=arguments.rounds)
    except ZeroBubbleError:
        raise
    except Exception as error:  # the stage is not ours: whatever it raises is said in one line
        raise ArgumentValueError(f"the stage of {arguments.factory} failed: {type(error).__name__}: "
                                 f"{short(error)}") from error
    show_table(f"one micro-batch of {arguments.factory}, engine {times.engine}", ("", "ms"),
               [(name, f"{seconds * 1e3:.3f}") for name, seconds in (("T_F, forward", times.f), ("T_B, dx", times.b),
                                                                     ("T_W, dw", times.w))],
               f"medians of {counted(arguments.rounds, 'micro-batch')}")
    line = schedule_line(arguments, [times.f * 1e3, times.b * 1e3, times.w * 1e3])
    print(f"\npython -m mindspore_zb schedule {' '.join(line)}\n")
    if arguments.stages is None:
        return 0
    parser = argparse.ArgumentParser(prog="mindspore_zb schedule")
    schedule.add_arguments(parser)
    return schedule.run(parser.parse_args(line))


def schedule_line(arguments: argparse.Namespace, times: List[float]) -> List[str]:
    """What to give to the command ``schedule``."""
    ranks = arguments.stages or 4
    line = ["-p", str(ranks), "-m", str(arguments.microbatches or 2 * ranks)]
    for name, milliseconds in zip("fbw", times):
        line += [f"--{name}", f"{milliseconds:.4g}"]
    if arguments.memory_limit is not None:
        line += ["--memory-limit", f"{arguments.memory_limit:g}"]
    return [*line, "--unit", "ms"]
