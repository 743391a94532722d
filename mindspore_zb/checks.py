"""Arguments looked at before they are used. Each check returns the value in its plain form, or raises in one sentence
that names the argument. No framework is needed here.
"""

import math
import operator
import os
from typing import Any, Optional, Tuple, Type, Union

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError

MOST = 10 ** 9
"""The largest count: sums and products of counts and costs are still numbers."""


def kind_of(value: Any) -> str:
    """What a value is, for messages.

    >>> kind_of(None), kind_of(2.5)
    ('None', 'float')
    """
    return "None" if value is None else type(value).__name__


def a_kind_of(value: Any) -> str:
    """The same with an article, for messages.

    >>> a_kind_of(None), a_kind_of(2.5)
    ('None', 'a float')
    """
    return "None" if value is None else f"a {type(value).__name__}"


def check_count(name: str, value: Any, least: int = 1, most: int = MOST) -> int:
    """An integer within bounds.

    >>> check_count("stages", 0)
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.ArgumentValueError: stages is at least 1, not 0
    """
    if type(value) is not int:
        if _is_bool(value) or not hasattr(value, "__index__"):
            raise ArgumentTypeError(f"{name} is an integer, not {kind_of(value)}")
        try:
            value = operator.index(value)
        except (TypeError, ValueError):  # arrays and tensors have __index__, whatever they hold
            raise ArgumentTypeError(f"{name} is an integer, not {kind_of(value)}") from None
    if value < least:
        raise ArgumentValueError(f"{name} is at least {least}, not {in_short(value)}")
    if value > most:
        raise ArgumentValueError(f"{name} is at most {most}, not {in_short(value)}")
    return value


def check_number(name: str, value: Any, *, positive: bool = False, most: float = math.inf, hint: str = "") -> float:
    """A finite number, from 0 or above 0.

    >>> check_number("loss_scale", float("nan"), positive=True)
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.ArgumentValueError: loss_scale is a finite number above 0, not nan
    """
    wanted = f"{name} is a finite number {'above 0' if positive else 'from 0'}{hint}"
    if _is_bool(value) or isinstance(value, (str, bytes)):
        raise ArgumentTypeError(f"{wanted}, not {kind_of(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise ArgumentValueError(f"{wanted}, not one of so many digits") from None
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{wanted}, not {kind_of(value)}") from None
    if not 0 <= number < math.inf or (positive and not number):  # nan neither
        raise ArgumentValueError(f"{wanted}, not {number:g}")
    if number > most:
        raise ArgumentValueError(f"{name} is at most {most:g}, not {number:g}")
    return number


def check_flag(name: str, value: Any) -> bool:
    """True or False, and nothing that only counts as one of them.

    >>> check_flag("measured", "no")
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.ArgumentTypeError: measured is True or False, not str
    """
    if not _is_bool(value):
        raise ArgumentTypeError(f"{name} is True or False, not {kind_of(value)}")
    return bool(value)


def check_text(name: str, value: Any) -> str:
    """A str."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name} is a str, not {kind_of(value)}")
    return value


def check_kind(name: str, value: Any, kind: Union[Type, Tuple[Type, ...]], wanted: Optional[str] = None) -> Any:
    """An instance of ``kind``.

    >>> check_kind("microbatches", 1.5, int)
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.ArgumentTypeError: microbatches is a int, not float
    """
    if not isinstance(value, kind):
        raise ArgumentTypeError(f"{name} is {wanted or 'a ' + kind.__name__}, not {kind_of(value)}")
    return value


def check_path(name: str, value: Any) -> str:
    """A path of a file, as a str.

    >>> check_path("path", 0)
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.ArgumentTypeError: path is a str or a path, not int
    """
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise ArgumentTypeError(f"{name} is a str or a path, not {kind_of(value)}")
    if not path or "\0" in path:
        raise ArgumentValueError(f"{name} {path!r} names no file")
    return path


def _is_bool(value: Any) -> bool:
    """numpy's booleans too, by name: nothing imports numpy here."""
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def in_short(number: int) -> str:
    """The digits of an integer, or how many there are: Python refuses to print very many.

    >>> in_short(12), in_short(10 ** 400)
    ('12', 'one of 401 digits')
    """
    return str(number) if abs(number) < 10 ** 20 else f"one of {int(number.bit_length() * 0.30103) + 1} digits"
