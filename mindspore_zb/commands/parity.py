"""``python -m mindspore_zb parity``: hold the split backward of both engines against MindSpore's unsplit one."""

import argparse
import json
import math
from typing import Any, List

from mindspore_zb.commands._arguments import count
from mindspore_zb.errors import ArgumentValueError, ZeroBubbleError

HELP = "compare out, dx and dw of both engines with MindSpore's own; example: parity package.module:factory"

MOST_ROWS = 40
"""How many tensors the table shows if not ``--all``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("factory", metavar="package.module:factory", help="a function without arguments that returns "
                        "(fn, inputs, weights), or a dict with these and any of kwargs, grad_position, has_aux, sens")
    parser.add_argument("--tolerance", type=tolerance, metavar="X", help="the largest difference of a tensor over its "
                        "largest magnitude (default: by dtype, 1e-5 for float32)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="how often each way runs, and is "
                        "compared (default 5)")
    parser.add_argument("--ones", action="store_true", help="start the backward from ones, not from normal values")
    parser.add_argument("--all", action="store_true", help=f"show all tensors, not the {MOST_ROWS} that differ most")
    parser.add_argument("--json", action="store_true", help="print the report as JSON; infinite differences are null")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print. 0: all within tolerance; 1: something is not; 2: something cannot be compared."""
    report = _compare(arguments)
    if arguments.json:
        print(json.dumps({"factory": arguments.factory, **report.to_dict()}, indent=1))
    else:
        _show(arguments, report)
    return report.exit_code


def _compare(arguments: argparse.Namespace) -> Any:
    from mindspore_zb.factories import describe, make, needing_mindspore

    needing_mindspore()
    from mindspore_zb.parity import compare_engines

    made = make(arguments.factory)
    extras = dict(made.extras)
    if arguments.ones:
        extras["sens"] = None
    try:
        return compare_engines(made.fn, made.inputs, made.weights, micro_batches=arguments.rounds,
                               tolerance=arguments.tolerance, **extras)
    except ZeroBubbleError:
        raise
    except Exception as error:  # what fn raises without this package
        raise ArgumentValueError(f"fn of {arguments.factory} cannot be run unsplit: {describe(error)}") from error


def _show(arguments: argparse.Namespace, report: Any) -> None:
    from mindspore_zb.terminal import show_table

    ways = [(run.way, run.engine, _seconds(run.first_seconds), _seconds(run.seconds), _verdict(run))
            for run in report.runs]
    show_table(arguments.factory, ("way", "engine", "first call", "later calls", "verdict"), ways)
    for run in report.runs:
        if run.fallback_reason:
            print(f"{run.way} was run by the PyNative engine: {run.fallback_reason}")
        if run.error:
            print(f"{run.way} failed: {run.error}")
    header, rows = report.table()
    if rows:
        shown, hidden = _chosen(report, rows, arguments.all)
        print()
        show_table("largest difference over the largest magnitude of the unsplit run's", header, shown,
                   f"{hidden} more differ less (--all shows them)" if hidden else "")
    for note in report.notes:
        print(f"Note: {note}.")


def _chosen(report: Any, rows: List[Any], everything: bool) -> Any:
    """The rows to show, in order, and how many are not shown."""
    if everything or len(rows) <= MOST_ROWS:
        return rows, 0
    worst = [0.0] * len(rows)
    for run in report.runs:
        for place, difference in enumerate(run.differences[:len(rows)]):
            ratio = difference.relative / difference.allowed if difference.allowed else difference.relative
            worst[place] = max(worst[place], ratio)
    places = sorted(sorted(range(len(rows)), key=lambda place: -worst[place])[:MOST_ROWS])
    return [rows[place] for place in places], len(rows) - MOST_ROWS


def _verdict(run: Any) -> str:
    return {"within": "-" if run.way == "unsplit" else "within tolerance", "beyond": "BEYOND TOLERANCE",
            "random": "random: not compared", "failed": "FAILED"}[run.verdict]


def _seconds(seconds: Any) -> str:
    """Three digits, in the unit that suits.

    >>> _seconds(0.01234), _seconds(2.5), _seconds(None)
    ('12.3 ms', '2.50 s', '-')
    """
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def tolerance(text: str) -> float:
    """A finite number from 0."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number from 0")
    return number
