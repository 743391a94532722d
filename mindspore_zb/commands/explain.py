"""``python -m mindspore_zb explain``: the backward graph of one forward, its split, and what recompute saves."""

import argparse
import json
from typing import Any, Tuple

from mindspore_zb.commands._arguments import count, new_picture
from mindspore_zb.errors import ArgumentValueError
from mindspore_zb.settings import RECOMPUTE_POLICIES

HELP = "print or draw the backward graph of a forward and its split; example: explain package.module:factory"

POLICIES = RECOMPUTE_POLICIES[1:]  # all but "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("factory", metavar="package.module:factory", help="a function without arguments that returns "
                        "(fn, inputs, weights), or a dict with these and any of kwargs, grad_position, has_aux, sens; "
                        "weights None: the trainable parameters of a Cell")
    parser.add_argument("--mode", choices=["auto", "pynative", "graph"], default="auto",
                        help="the engine that splits the backward (default auto)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--after-dx", action="store_true", help="run dx first: bytes that wait for dw, and no shapes")
    what.add_argument("--history", action="store_true", help="no split: the graph behind what fn returns, as "
                      "MindSpore records it")
    parser.add_argument("--recompute", choices=POLICIES, metavar="POLICY", help="measure the bytes and the time of "
                        f"options(graph_recompute=POLICY) too ({', '.join(POLICIES)}); implies --mode graph")
    parser.add_argument("--rounds", type=count, default=10, metavar="N", help="of --recompute: how often each is "
                        "measured (default 10)")
    parser.add_argument("--max-nodes", type=count, default=200, metavar="N", help="print and draw so many nodes at "
                        "most (default 200)")
    parser.add_argument("--picture", type=new_picture, metavar="FILE", help="draw the graph, to a .png or .svg file")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Explain, and print, write or draw it."""
    from mindspore_zb.factories import failing_in_one_line, make, needing_mindspore

    needing_mindspore()
    from mindspore_zb.draw.picture_file import figure_class

    if arguments.recompute and (arguments.history or arguments.mode == "pynative"):
        raise ArgumentValueError("--recompute is of the graph engine: not with --history or --mode pynative")
    if arguments.picture:
        figure_class()  # raises without matplotlib, before anything runs
    made = make(arguments.factory)
    with failing_in_one_line(arguments.factory):
        price = _price(arguments, made) if arguments.recompute else None
        explanation = _history(made) if arguments.history else _explained(arguments, made)
    if arguments.picture:
        explanation.draw(arguments.picture, max_nodes=arguments.max_nodes)
    if arguments.json:
        print(json.dumps(_as_dict(arguments, explanation, price), indent=1))
        return 0
    print(explanation.text(max_nodes=arguments.max_nodes))
    if price is not None:
        print(f"\n{price_text(price)}")
    if arguments.picture:
        print(f"\ndrawn to {arguments.picture}")
    return 0


def _arguments_of(made: Any) -> Tuple[Any, ...]:
    """What :func:`~mindspore_zb.api.run_forward` takes besides ``fn`` and the mode."""
    from mindspore_zb.factories import weights_of

    extras = made.extras
    return (made.inputs, extras.get("kwargs") or {}, weights_of(made), extras.get("has_aux", False),
            extras.get("grad_position", 0))


def _explained(arguments: argparse.Namespace, made: Any) -> Any:
    import contextlib

    from mindspore_zb import explain, options
    from mindspore_zb.api import run_forward

    policy = options(graph_recompute=arguments.recompute) if arguments.recompute else contextlib.nullcontext()
    with policy:
        _, grad_fn = run_forward(made.fn, *_arguments_of(made), "graph" if arguments.recompute else arguments.mode)
    if arguments.after_dx:
        grad_fn.compute_input_grad(made.extras.get("sens"))
        if grad_fn.state == "released":
            raise ArgumentValueError(f"nothing waits for dw after dx: {arguments.factory} has no weights")
    return explain(grad_fn)


def _history(made: Any) -> Any:
    from mindspore_zb.explanation import explain_call
    from mindspore_zb.factories import weights_of

    return explain_call(made.fn, made.inputs, weights_of(made), kwargs=made.extras.get("kwargs"))


def _price(arguments: argparse.Namespace, made: Any) -> Any:
    from mindspore_zb.factories import weights_of
    from mindspore_zb.memory.recompute_price import recompute_price

    return recompute_price(made.fn, made.inputs, weights_of(made), arguments.recompute, rounds=arguments.rounds,
                           **made.extras)


def _as_dict(arguments: argparse.Namespace, explanation: Any, price: Any) -> Any:
    from dataclasses import asdict

    found = {"factory": arguments.factory, **explanation.to_dict()}
    return found if price is None else {**found, "recompute": asdict(price)}


def price_text(price: Any) -> str:
    """Two lines on a :class:`~mindspore_zb.memory.recompute_price.RecomputePrice`.

    >>> from types import SimpleNamespace
    >>> print(price_text(SimpleNamespace(policy="cheap", saved_bytes=600, unsaved_bytes=1000, seconds=0.011,
    ...                                  unsaved_seconds=0.01, ratio=1.1, rounds=10)))
    recompute "cheap": 600 bytes cross from the forward to the backward, 1,000 with "none": 40.0% less
    time of forward, dx and dw: 11.000 ms, 10.000 ms with "none"; ratio 1.100 (median of 10 interleaved rounds)
    """
    less = 1 - price.saved_bytes / price.unsaved_bytes if price.unsaved_bytes else 0.0
    return (f'recompute "{price.policy}": {price.saved_bytes:,} bytes cross from the forward to the backward, '
            f'{price.unsaved_bytes:,} with "none": {less:.1%} less\n'
            f'time of forward, dx and dw: {price.seconds * 1e3:.3f} ms, {price.unsaved_seconds * 1e3:.3f} ms with '
            f'"none"; ratio {price.ratio:.3f} (median of {price.rounds} interleaved rounds)')
