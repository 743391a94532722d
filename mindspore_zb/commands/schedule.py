"""``python -m mindspore_zb schedule``: compare pipeline schedules, and draw and save one of them."""

import argparse
import os
import sys
from typing import Any, List, Union

from mindspore_zb.commands._arguments import count, new_file, new_picture
from mindspore_zb.counted import counted
from mindspore_zb.errors import ScheduleError

HELP = "compare pipeline schedules under given costs; draw, trace and save one of them"

LARGE = 10_000
"""From how many computations on it is said beforehand that it takes a while: several seconds."""
MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("-p", "--stages", type=count, default=4, metavar="P", help="ranks of the pipeline (default 4)")
    parser.add_argument("-m", "--microbatches", type=count, default=8, metavar="M", help="micro-batches (default 8)")
    costs = parser.add_argument_group(
        "costs of one micro-batch", "a number, or one for each rank with commas between them: 1,1,1,2")
    for name, default, what in (("f", 1.0, "time of the forward"), ("b", 1.0, "time of dx alone"),
                                ("w", 1.0, "time of dw"), ("comm", 0.0, "time of a message to the next rank"),
                                ("m-b", 1.0, "activation memory from the forward to dx"),
                                ("m-w", 0.5, "how much of it is held on from dx to dw")):
        costs.add_argument(f"--{name}", type=numbers, default=default, metavar="X",
                           help=f"{what} (default {default:g})")
    parser.add_argument("--unit", choices=list(MICROSECONDS), default="ms", help="unit of the times (default ms)")
    parser.add_argument("--memory-limit", type=positive, metavar="X", help="the most activation memory of a rank, in "
                        "the unit of --m-b (default: search with the memory of 1F1B, and with twice that)")
    parser.add_argument("--chunks", type=count, default=2, metavar="V", help="the most stages per rank (default 2, "
                        "which admits zb-v)")
    parser.add_argument("--weight-parts", type=count, default=1, metavar="N", help="in how many parts to cut each dw")
    parser.add_argument("--names", type=names, default=None, metavar="NAME,...", help="which schedules to compare, of "
                        "1f1b,zb-h1,zb-h2,zb-v,auto (default: all; without auto nothing is searched for)")
    parser.add_argument("--load", metavar="CSV", help="compare the schedule in this file too")
    one = parser.add_argument_group("one of the schedules")
    one.add_argument("--show", metavar="NAME", help="which of the table (default: the lowest bubble rate that fits)")
    one.add_argument("--text", action="store_true", help="print it")
    one.add_argument("--csv", type=new_file, metavar="FILE", help="save it, to be loaded again")
    one.add_argument("--picture", type=new_picture, metavar="FILE", help="draw its timeline, to a .png or .svg file")
    one.add_argument("--trace", type=new_file, metavar="FILE",
                     help="write its trace for ui.perfetto.dev or chrome://tracing")


def run(arguments: argparse.Namespace) -> int:
    """Print the table and write what was asked for."""
    from mindspore_zb.schedule import NAMES, Costs
    from mindspore_zb.schedule_table import HEADER, compare
    from mindspore_zb.terminal import end_progress, progress_line, show_table

    costs = Costs(f=arguments.f, b=arguments.b, w=arguments.w, comm=arguments.comm, m_b=arguments.m_b,
                  m_w=arguments.m_w)
    others = _loaded(arguments)
    _tell_if_large(arguments)
    try:
        comparison = compare(
            costs, arguments.stages, arguments.microbatches, memory_limit=arguments.memory_limit,
            chunks=arguments.chunks, weight_parts=arguments.weight_parts, names=arguments.names or NAMES,
            others=others, progress=progress_line("searching"))
    finally:
        end_progress()
    label = arguments.show or comparison.best()
    shown = comparison.run(label)  # raises if there is none of that name, before anything is printed
    limit = "" if arguments.memory_limit is None else f", memory limit {arguments.memory_limit:g}"
    title = f"{_sizes(arguments.stages, arguments.microbatches)}{limit}"
    notes = {"auto-1x": "auto-1x, auto-2x: found by search, with the memory of 1F1B and with twice that",
             "auto": "auto: found by search"}
    columns = len(HEADER) - (arguments.memory_limit is None)
    show_table(title, HEADER[:columns], [row[:columns] for row in comparison.rows()],
               next((notes[label] for label in comparison.labels() if label in notes), ""))
    _write_one(arguments, label, shown)
    return 0


def _tell_if_large(arguments: argparse.Namespace) -> None:
    """A word on stderr, in a pipe too, before what takes long; what would take too long is refused without it."""
    from mindspore_zb.schedule.sizes import MOST_COMPUTATIONS, MOST_SEARCHED, computations

    most = MOST_SEARCHED if "auto" in (arguments.names or ["auto"]) else MOST_COMPUTATIONS
    number = computations(arguments.stages, arguments.microbatches, min(arguments.chunks, 2), arguments.weight_parts)
    if LARGE <= number <= most:
        print(f"mindspore_zb schedule: schedules of {number} computations take a while; Ctrl-C ends it",
              file=sys.stderr, flush=True)


def _sizes(ranks: int, microbatches: int, between: str = ", ") -> str:
    return f"{counted(ranks, 'rank')}{between}{counted(microbatches, 'micro-batch')}"


def _loaded(arguments: argparse.Namespace) -> List[Any]:
    """The schedule of ``--load``, checked, with its label."""
    from mindspore_zb.schedule import load_csv, validate

    if arguments.load is None:
        return []
    schedule = load_csv(arguments.load)
    validate(schedule)
    if (schedule.ranks, schedule.microbatches) != (arguments.stages, arguments.microbatches):
        raise ScheduleError(f"{arguments.load} is of {_sizes(schedule.ranks, schedule.microbatches, ' and ')}: give "
                            f"-p {schedule.ranks} -m {schedule.microbatches}")
    return [(os.path.basename(arguments.load), schedule)]


def _write_one(arguments: argparse.Namespace, label: str, result: Any) -> None:
    from mindspore_zb.draw.timeline import draw_timeline
    from mindspore_zb.draw.trace import write_trace
    from mindspore_zb.schedule import save_csv

    if arguments.text:
        print(f"\n{result.schedule}")
    if arguments.csv:
        save_csv(result.schedule, arguments.csv)
    if arguments.picture:
        title = (f"{label}: {_sizes(result.schedule.ranks, result.schedule.microbatches)}, bubble rate "
                 f"{result.bubble_rate:.4f}")
        draw_timeline(result.entries(), arguments.picture, title=title, unit=arguments.unit)
    if arguments.trace:
        write_trace(result.entries(), arguments.trace, microseconds_per_unit=MICROSECONDS[arguments.unit])
    for path in (arguments.csv, arguments.picture, arguments.trace):
        if path:
            print(f"{label} written to {path}")


def names(text: str) -> List[str]:
    """Names with commas between them.

    >>> names("1f1b, zb-h1")
    ['1f1b', 'zb-h1']
    """
    return [name.strip() for name in text.split(",")]


def positive(text: str) -> float:
    """A number above 0."""
    number = numbers(text)
    if isinstance(number, list) or not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def numbers(text: str) -> Union[float, List[float]]:
    """A number, or several with commas between them.

    >>> numbers("1.5"), numbers("1,2")
    (1.5, [1.0, 2.0])
    """
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, and no numbers with commas between them") from None
    return values[0] if len(values) == 1 else values
