"""What commands work on: ``package.module:factory``, where the factory returns ``fn``, its inputs and its weights."""

import contextlib
import importlib
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, Tuple

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, ZeroBubbleError

EXTRAS = ("kwargs", "grad_position", "has_aux", "sens")
_FORM = "return (fn, inputs, weights), or a dict with these and any of " + ", ".join(EXTRAS)


@dataclass(frozen=True)
class Made:
    """What a factory returned.

    Attributes:
        fn: a Cell, function or other callable.
        inputs: its positional arguments.
        weights: the weights, as for :func:`~mindspore_zb.forward_and_gradfn`.
        extras: any of :data:`EXTRAS`.
    """

    fn: Callable[..., Any]
    inputs: Tuple[Any, ...]
    weights: Any
    extras: Dict[str, Any] = field(default_factory=dict)


def make(target: str) -> Made:
    """Import and call a factory. The working directory is looked in, as by ``python -m``.

    Args:
        target: ``package.module:factory``.

    Raises:
        ArgumentValueError: there is no such module or factory, or one of both raises.
        ArgumentTypeError: it returns something else.

    Example:
        >>> make("collections:no_such")
        Traceback (most recent call last):
        ...
        mindspore_zb.errors.ArgumentValueError: module collections has no function no_such
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise ArgumentValueError(f"{target!r} must be package.module:factory")
    factory = getattr(_module(module_name), name, None)
    if not callable(factory):
        raise ArgumentValueError(f"module {module_name} has no function {name}")
    try:
        made = factory()
    except (Exception, SystemExit) as error:  # it is the user's code, and may raise anything
        raise ArgumentValueError(f"{target} raised {describe(error)}: call it in Python to see where") from error
    return _checked(target, made)


def needing_mindspore() -> None:
    """Raise unless MindSpore can be imported.

    Raises:
        ArgumentValueError: it cannot.
    """
    try:
        import mindspore  # noqa: F401  pylint: disable=unused-import
    except ImportError as error:
        raise ArgumentValueError(f"MindSpore cannot be imported ({error}): see mindspore_zb doctor") from error


@contextlib.contextmanager
def failing_in_one_line(target: str) -> Iterator[None]:
    """Whatever ``fn`` of a factory raises inside is told in one line, as an error of this package.

    Raises:
        ArgumentValueError: something that is no error of this package was raised.
    """
    try:
        yield
    except ZeroBubbleError:
        raise
    except (Exception, SystemExit) as error:  # fn is the user's code, and may raise anything
        raise ArgumentValueError(f"fn of {target} failed: {describe(error)}") from error


def weights_of(made: Made) -> Any:
    """The weights that a factory returned; for None the trainable parameters of a Cell, and none of anything else."""
    if made.weights is None and hasattr(made.fn, "trainable_params"):
        return made.fn.trainable_params()
    return made.weights


def describe(error: BaseException) -> str:
    """An error in one line.

    >>> describe(ValueError("first\\n second"))
    'ValueError: first second'
    """
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:297] + '...'}"


def _module(name: str) -> Any:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a module runs whatever it holds
        raise ArgumentValueError(f"module {name} cannot be imported: {describe(error)}; run this in the directory that "
                                 "holds it, or set PYTHONPATH") from error


def _checked(target: str, made: Any) -> Made:
    if isinstance(made, dict):
        unknown = sorted(set(made) - {"fn", "inputs", "weights", *EXTRAS}, key=str)
        missing = [key for key in ("fn", "inputs", "weights") if key not in made]
        if unknown or missing:
            raise ArgumentTypeError(f"the dict of {target} " + (f"lacks {', '.join(missing)}" if missing else
                                    f"has the unknown keys {', '.join(map(str, unknown))}") + f": {_FORM}")
        extras = {key: made[key] for key in EXTRAS if key in made}
        fn, inputs, weights = made["fn"], made["inputs"], made["weights"]
    elif isinstance(made, (tuple, list)) and len(made) == 3:
        (fn, inputs, weights), extras = made, {}
    else:
        raise ArgumentTypeError(f"{target} returned a {type(made).__name__}: it must {_FORM}")
    if not callable(fn):
        raise ArgumentTypeError(f"fn of {target} is a {type(fn).__name__}, not callable: it must {_FORM}")
    if not isinstance(inputs, (tuple, list)):
        inputs = (inputs,)
    return Made(fn, tuple(inputs), weights, extras)
