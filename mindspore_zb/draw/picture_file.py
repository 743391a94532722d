"""Figures and the files they are written to; matplotlib is imported here, when a picture is drawn."""

import os
from typing import Any

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError

SUFFIXES = (".png", ".svg")


def figure_class() -> Any:
    """matplotlib's ``Figure``, which draws without a display.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError("drawing needs matplotlib: pip install matplotlib") from error
    return Figure


def check_picture_path(path: Any) -> None:
    """Raise unless ``path`` names a kind of picture that can be written.

    Raises:
        ArgumentTypeError: no path.
        ArgumentValueError: another suffix than .png or .svg.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"path must be a str or a path, not a {type(path).__name__}")
    if _suffix(path) not in SUFFIXES:
        raise ArgumentValueError(f"path must end in {' or '.join(SUFFIXES)}, but is {os.fspath(path)!r}")


def save_picture(figure: Any, path: Any) -> None:
    """Write a figure in the format that the suffix names.

    Raises:
        ArgumentValueError: the file cannot be written.
    """
    try:
        figure.savefig(path, format=_suffix(path)[1:])
    except OSError as error:
        raise ArgumentValueError(f"path {os.fspath(path)!r} cannot be written: {error.strerror or error}") from error


def _suffix(path: Any) -> str:
    return os.path.splitext(os.fspath(path))[1].lower()
