"""Kinds of arguments that several commands take."""

import argparse
import os


def count(text: str) -> int:
    """An integer from 1."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no integer") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def new_file(text: str) -> str:
    """The name of a file that can be there: told before anything is computed for it.

    >>> new_file("no such directory/run.json")
    Traceback (most recent call last):
        ...
    argparse.ArgumentTypeError: 'no such directory/run.json' cannot be written: No such file or directory
    """
    reason = ""
    if not text or not os.path.isdir(os.path.dirname(text) or os.curdir):
        reason = "No such file or directory"
    elif os.path.isdir(text):
        reason = "Is a directory"
    if reason:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {reason}")
    return text


def new_picture(text: str) -> str:
    """The same of a picture, whose kind the suffix tells."""
    from mindspore_zb.draw.picture_file import check_picture_path
    from mindspore_zb.errors import ArgumentValueError

    try:
        check_picture_path(new_file(text))
    except ArgumentValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
