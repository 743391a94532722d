"""``python -m mindspore_zb profile``: measure F, B and W of a stage, for the schedules."""

import argparse
import importlib
import os
import sys
from typing import Any, Callable, List

from mindspore_zb.commands import schedule
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, ZeroBubbleError

HELP = "measure T_F, T_B and T_W of a stage and compare schedules under them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("factory", metavar="MODULE:FACTORY", help="a function without arguments that returns "
                        "(fn, inputs, weights): the stage, the tuple of its inputs for one micro-batch, and its "
                        "weights (None: the trainable parameters of a Cell)")
    parser.add_argument("--mode", choices=["auto", "pynative", "graph"], default="auto",
                        help="the engine that splits the backward (default auto)")
    parser.add_argument("--rounds", type=schedule.count, default=10, metavar="N",
                        help="how many micro-batches are measured, behind three others (default 10)")
    then = parser.add_argument_group("compare schedules under these times, as the command schedule does")
    then.add_argument("-p", "--stages", type=schedule.count, metavar="P", help="ranks of the pipeline")
    then.add_argument("-m", "--microbatches", type=schedule.count, metavar="M", help="micro-batches (default 2 P)")
    then.add_argument("--memory-limit", type=schedule.positive, metavar="X", help="as of schedule")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    if arguments.stages is None and (arguments.microbatches or arguments.memory_limit):
        raise ArgumentValueError("-m and --memory-limit are for comparing schedules: give the ranks with -p too")
    factory = find_factory(arguments.factory)

    from mindspore_zb.pipeline import stage_times
    from mindspore_zb.pipeline.wording import short
    from mindspore_zb.terminal import show_table

    fn, inputs, weights = _call(factory, arguments.factory)
    try:
        times = stage_times(fn, inputs, weights, mode=arguments.mode, rounds=arguments.rounds)
    except ZeroBubbleError:
        raise
    except Exception as error:  # the stage is not ours: whatever it raises is said in one line
        raise ArgumentValueError(f"the stage of {arguments.factory} failed: {type(error).__name__}: "
                                 f"{short(error)}") from error
    show_table(f"one micro-batch of {arguments.factory}, engine {times.engine}", ("", "ms"),
               [(name, f"{seconds * 1e3:.3f}") for name, seconds in (("T_F, forward", times.f), ("T_B, dx", times.b),
                                                                     ("T_W, dw", times.w))],
               f"medians of {arguments.rounds}")
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


def find_factory(text: str) -> Callable[[], Any]:
    """The function that ``package.module:name`` names.

    Raises:
        ArgumentValueError: there is none, or its module cannot be imported.

    >>> find_factory("os:getcwd") is os.getcwd
    True
    """
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise ArgumentValueError(f"{text!r} is not of the form package.module:factory")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # of whatever the module does while it is imported
        raise ArgumentValueError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        raise ArgumentValueError(f"{module_name} has no function {name!r}")
    return factory


def _call(factory: Callable[[], Any], text: str) -> Any:
    try:
        made = factory()
    except Exception as error:  # it is not ours
        raise ArgumentValueError(f"{text} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, (tuple, list)) or len(made) != 3:
        raise ArgumentTypeError(f"{text} must return (fn, inputs, weights), but it returned a {type(made).__name__}"
                                + (f" of {len(made)}" if isinstance(made, (tuple, list)) else ""))
    return made
