"""``python -m mindspore_zb memory``: what a training step holds, from when to when, and for which layer."""

import argparse
import json
from dataclasses import asdict
from typing import Any, List, Optional, Sequence, Tuple

from mindspore_zb.commands._arguments import count, new_picture
from mindspore_zb.errors import ArgumentValueError

HELP = "the memory of a training step: its course, its peak and what holds it; example: memory package.module:factory"

MOST_ROWS = 12
"""How many rows a table shows if not ``--all``."""

OPTIMIZERS = ("none", "sgd", "momentum", "adam")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("factory", nargs="?", metavar="package.module:factory", help="a function without arguments "
                        "that returns (fn, inputs, weights), or a dict with these and any of kwargs, grad_position, "
                        "has_aux, sens; weights None: the trainable parameters of a Cell")
    parser.add_argument("--mode", choices=["auto", "pynative", "graph"], default="auto",
                        help="the engine that splits the backward (default auto); compiled code tells no layers")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd", help="whose step follows dw (default sgd)")
    parser.add_argument("--depth", type=count, metavar="N", help="put layers together whose names agree in their first "
                        "N parts")
    parser.add_argument("--all", action="store_true", help=f"show all rows, not {MOST_ROWS} of a table")
    parser.add_argument("--picture", type=new_picture, metavar="FILE",
                        help="draw the course of it, to a .png or .svg file")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    block = parser.add_argument_group("a transformer block instead of a factory")
    block.add_argument("--transformer", type=four, metavar="B,L,H,W", help="batch, length, heads and width: what each "
                       "operation of a block saves, measured beside the formula")
    block.add_argument("--dtype", choices=["float32", "float16"], default="float32", help="of the block (default "
                       "float32)")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. 1: a measured block differs from the formula."""
    if (arguments.factory is None) == (arguments.transformer is None):
        raise ArgumentValueError("give either package.module:factory or --transformer B,L,H,W")
    from mindspore_zb.factories import needing_mindspore

    needing_mindspore()
    if arguments.transformer is not None:
        return _run_block(arguments)
    from mindspore_zb.draw.picture_file import figure_class

    if arguments.picture:
        figure_class()  # raises without matplotlib, before anything runs
    timeline = _measured(arguments)
    if arguments.picture:
        timeline.draw(arguments.picture, arguments.depth)
    if arguments.json:
        print(json.dumps({"factory": arguments.factory, **timeline.to_dict()}, indent=1))
    else:
        _show(arguments, timeline)
    return 0


def _measured(arguments: argparse.Namespace) -> Any:
    from mindspore_zb.arguments import check_weights
    from mindspore_zb.factories import failing_in_one_line, make, weights_of
    from mindspore_zb.memory import memory_timeline

    made = make(arguments.factory)
    weights = check_weights(weights_of(made)).parameters
    with failing_in_one_line(arguments.factory):
        optimizer = _optimizer(arguments.optimizer, weights)
        return memory_timeline(made.fn, made.inputs, weights, mode=arguments.mode, optimizer=optimizer, **made.extras)


def _optimizer(name: str, weights: Sequence[Any]) -> Any:
    from mindspore import nn

    weights = [weight for weight in weights if weight.requires_grad]
    if name == "none" or not weights:
        return None
    made = {"sgd": lambda: nn.SGD(weights, learning_rate=0.01),
            "momentum": lambda: nn.Momentum(weights, learning_rate=0.01, momentum=0.9),
            "adam": lambda: nn.Adam(weights, learning_rate=0.001)}
    return made[name]()


def _show(arguments: argparse.Namespace, timeline: Any) -> None:
    from mindspore_zb.draw.text import format_bytes as size
    from mindspore_zb.terminal import show_table

    most = None if arguments.all else MOST_ROWS
    peak = timeline.peak
    print(f"{arguments.factory}: {timeline.engine} engine, weights {size(timeline.weight_bytes)}")
    if timeline.fallback_reason:
        print(f"no graph engine because {timeline.fallback_reason}")
    print(f"peak {size(peak.nbytes)} in {peak.step}: {size(peak.saved_bytes)} saved, {size(peak.held_bytes)} waits "
          f"for dw, {size(peak.grad_bytes)} gradients\n")
    steps, note = step_rows(timeline, most)
    show_table("at the end of each step, and its peak", *steps, note)
    layers = [(_of_layer(row.layer), size(row.saved_bytes), size(row.after_dx_bytes), size(row.grad_bytes))
              for row in timeline.by_layer(arguments.depth)]
    if layers:
        print()
        shown, note = _first(layers, most)
        show_table("by layer", ("layer", "saved", "left after dx", "gradients"), shown, note)
    holders = [(_of_layer(row.layer), row.saved_by, row.count, size(row.nbytes))
               for row in timeline.holders(arguments.depth)]
    if holders:
        print()
        shown, note = _first(holders, most)
        show_table("saved at the peak, by layer and by what saved it", ("layer", "saved by", "tensors", "bytes"), shown,
                   note)
        print()
        shown, note = _first([(row.saved_by, row.count, size(row.nbytes)) for row in timeline.operations()], most)
        show_table("saved at the peak, by what saved it", ("saved by", "tensors", "bytes"), shown, note)
    for line in timeline.notes:
        print(f"Note: {line}.")
    if arguments.picture:
        print(f"drawn to {arguments.picture}")


def step_rows(timeline: Any, most: Optional[int]) -> Tuple[Tuple[Sequence[str], List[Sequence[str]]], str]:
    """Header and rows of the table of steps, and a note; of many groups of dw the middle ones are left out."""
    from mindspore_zb.draw.text import format_bytes as size

    header = ["step", "saved", "waits for dw", "gradients", "together", "peak"]
    has_device = any(step.device_bytes is not None for step in timeline.steps)
    if has_device:
        header += ["device", "device peak"]
    rows = []
    for step, peak in zip(timeline.steps, timeline.step_peaks()):
        row = [step.name, *map(size, (step.saved_bytes, step.held_bytes, step.grad_bytes, step.total, peak.nbytes))]
        if has_device:
            row += [size(step.device_bytes or 0), size(step.device_peak or 0)]
        rows.append(row)
    if most is None or len(rows) <= most:
        return (header, rows), ""
    half = most // 2
    hidden = len(rows) - 2 * half
    return (header, [*rows[:half], ["..."] * len(header), *rows[-half:]]), \
        f"{hidden} steps in between are left out (--all shows them)"


def _first(rows: Sequence[Any], most: Optional[int]) -> Tuple[Sequence[Any], str]:
    if most is None or len(rows) <= most:
        return rows, ""
    return rows[:most], f"{len(rows) - most} more (--all shows them)"


def _of_layer(name: str) -> str:
    """The end of a long name tells more than its start."""
    return "the net itself" if not name else name if len(name) <= 34 else "..." + name[-31:]


def _run_block(arguments: argparse.Namespace) -> int:
    from mindspore_zb.memory import measure_block
    from mindspore_zb.terminal import show_table

    if arguments.picture:
        raise ArgumentValueError("--picture is for a factory, not for --transformer")
    block = measure_block(*arguments.transformer, arguments.dtype)
    if arguments.json:
        print(json.dumps({**asdict(block), "agrees": block.agrees}, indent=1))
        return 0 if block.agrees else 1
    rows = [(one.item.layer, one.item.formula, f"{one.item.nbytes:,}", f"{one.measured:,}") for one in block.items]
    rows.append(("together", "e(16BLW + BHLL) + 16BL", f"{block.formula_bytes:,}", f"{block.measured_bytes:,}"))
    size = f"B {block.batch}, L {block.length}, H {block.heads}, W {block.width}"
    show_table(f"Bytes that a transformer block saves: {size}, {block.dtype}",
               ("saved by", "formula", "by formula", "measured"), rows,
               f"The block of Korthikanti et al., arXiv 2205.05198, with dropouts and in 16 bits:\n"
               f"LB(34W + 5HL) = {block.korthikanti_bytes:,}")
    print("Measured and formula agree to the byte." if block.agrees else "MEASURED AND FORMULA DIFFER.")
    return 0 if block.agrees else 1


def four(text: str) -> Tuple[int, int, int, int]:
    """Four integers from 1.

    >>> four("2,128,4,256")
    (2, 128, 4, 256)
    """
    words = text.split(",")
    if len(words) != 4:
        raise argparse.ArgumentTypeError(f"{text!r} is not batch,length,heads,width")
    batch, length, heads, width = map(count, words)
    return batch, length, heads, width
