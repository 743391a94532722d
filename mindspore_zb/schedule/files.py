"""Schedules as text and as CSV files."""

import csv
import os
import re
from typing import Any, List

from mindspore_zb.errors import ScheduleError
from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.programs import Schedule

_TITLE = re.compile(r"(.*): (\d+) ranks, (\d+) micro-batches, (\d+) chunks?", re.ASCII)
_COLUMNS = ("name", "microbatches", "chunks")


def parse_schedule(text: str) -> Schedule:
    """The schedule that prints as ``text``.

    Raises:
        ScheduleError: a line, or an action in it, cannot be read; the message holds it.

    >>> text = '''tiny: 1 ranks, 1 micro-batches, 1 chunk
    ... rank 0: 0F0 0B0 0W0'''
    >>> str(parse_schedule(text)) == text
    True
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    title = _TITLE.fullmatch(lines[0]) if lines else None
    if title is None:
        raise ScheduleError("the text of a schedule starts with a line such as 'zb-h1: 2 ranks, 4 micro-batches, "
                            f"1 chunk', not with {lines[0] if lines else ''!r}")
    actions = []
    for rank, line in enumerate(lines[1:]):
        start = f"rank {rank}:"
        if not line.startswith(start):
            raise ScheduleError(f"a line that starts with {start!r} is expected, not {line[:40]!r}")
        actions.append(_parse_actions(rank, line[len(start):].split()))
    if len(actions) != int(title.group(2)):
        raise ScheduleError(f"the first line says {title.group(2)} ranks, but {len(actions)} follow")
    return Schedule(title.group(1), int(title.group(3)), tuple(actions), int(title.group(4)))


def save_csv(schedule: Schedule, path: Any) -> None:
    """Write a schedule to a file: a line of its name, micro-batches and chunks, then a line of actions for each rank.

    Raises:
        ScheduleError: the file cannot be written.
    """
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["name", schedule.name, "microbatches", schedule.microbatches, "chunks", schedule.chunks])
            writer.writerows([["rank", rank, *map(str, actions)] for rank, actions in enumerate(schedule.actions)])
    except OSError as error:
        raise ScheduleError(f"{os.fspath(path)!r} cannot be written: {error.strerror or error}") from error


def load_csv(path: Any) -> Schedule:
    """The schedule that :func:`save_csv` wrote.

    Raises:
        ScheduleError: the file, or an action in it, cannot be read.

    >>> import os, tempfile
    >>> from mindspore_zb.schedule import generate
    >>> schedule = generate("zb-h2", stages=2, microbatches=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_csv(schedule, os.path.join(folder, "schedule.csv"))
    ...     load_csv(os.path.join(folder, "schedule.csv")) == schedule
    True
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [row for row in map(_without_padding, csv.reader(file)) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScheduleError(f"{os.fspath(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}"
                            ) from error
    title = rows[0] if rows else []
    if len(title) != 6 or tuple(title[::2]) != _COLUMNS or not (title[3].isdecimal() and title[5].isdecimal()):
        raise ScheduleError(f"{os.fspath(path)!r} is no schedule: its first line is not name,...,microbatches,...,"
                            "chunks,...")
    actions = []
    for rank, row in enumerate(rows[1:]):
        if row[:2] != ["rank", str(rank)]:
            raise ScheduleError(f"{os.fspath(path)!r}: a line of rank {rank} is expected, not one of {row[:2]}")
        actions.append(_parse_actions(rank, [cell.strip() for cell in row[2:]]))
    return Schedule(title[1], int(title[3]), tuple(actions), int(title[5]))


def _without_padding(row: List[str]) -> List[str]:
    """The row without the empty cells with which spreadsheets make all rows equally long."""
    while row and not row[-1]:
        row = row[:-1]
    return row


def _parse_actions(rank: int, words: List[str]) -> List[Action]:
    try:
        return [Action.parse(word) for word in words]
    except ScheduleError as error:
        raise ScheduleError(f"rank {rank}: {error}") from error
