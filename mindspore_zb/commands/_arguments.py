"""Kinds of arguments that several commands take."""

import argparse


def count(text: str) -> int:
    """An integer from 1."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no integer") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number
