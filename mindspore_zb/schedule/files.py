"""Schedules as text and as CSV files."""

import csv
import io
import re
from typing import Any, List

from mindspore_zb.checks import check_kind, check_path, check_text
from mindspore_zb.counted import counted
from mindspore_zb.errors import ScheduleError
from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.programs import Schedule

_TITLE = re.compile(r"(.*): (\d{1,10}) ranks?, (\d{1,10}) micro-batch(?:es)?, (\d{1,10}) chunks?", re.ASCII)
_NUMBER = re.compile(r"\d{1,10}", re.ASCII)
_COLUMNS = ("name", "microbatches", "chunks")


def parse_schedule(text: str) -> Schedule:
    """The schedule that prints as ``text``.

    Raises:
        ArgumentTypeError: no text.
        ScheduleError: a line, or an action in it, cannot be read; the message holds it.

    >>> text = '''tiny: 1 rank, 1 micro-batch, 1 chunk
    ... rank 0: 0F0 0B0 0W0'''
    >>> str(parse_schedule(text)) == text
    True
    """
    lines = [line.strip() for line in check_text("text", text).strip().splitlines()]
    title = _TITLE.fullmatch(lines[0]) if lines else None
    if title is None:
        raise ScheduleError("the text of a schedule starts with a line such as 'zb-h1: 2 ranks, 4 micro-batches, "
                            f"1 chunk', not with {lines[0][:80] if lines else ''!r}")
    actions = []
    for rank, line in enumerate(lines[1:]):
        start = f"rank {rank}:"
        if not line.startswith(start):
            raise ScheduleError(f"a line that starts with {start!r} is expected, not {line[:40]!r}")
        actions.append(_parse_actions(rank, line[len(start):].split()))
    if len(actions) != int(title.group(2)):
        raise ScheduleError(f"the first line says {counted(int(title.group(2)), 'rank')}, but {len(actions)} "
                            f"follow{'s' if len(actions) == 1 else ''}")
    return Schedule(title.group(1), int(title.group(3)), tuple(actions), int(title.group(4)))


def save_csv(schedule: Schedule, path: Any) -> None:
    """Write a schedule to a file: a line of its name, micro-batches and chunks, then a line of actions for each rank.

    Raises:
        ArgumentTypeError, ArgumentValueError: no schedule, or no path.
        ScheduleError: the file cannot be written.
    """
    check_kind("schedule", schedule, Schedule)
    path = check_path("path", path)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["name", schedule.name, "microbatches", schedule.microbatches, "chunks", schedule.chunks])
    writer.writerows([["rank", rank, *map(str, actions)] for rank, actions in enumerate(schedule.actions)])
    try:
        content = text.getvalue().encode("utf-8")  # what cannot be encoded overwrites nothing
        with open(path, "wb") as file:
            file.write(content)
    except (OSError, UnicodeEncodeError) as error:
        raise ScheduleError(f"{path!r} cannot be written: {getattr(error, 'strerror', None) or error}") from error


def load_csv(path: Any) -> Schedule:
    """The schedule that :func:`save_csv` wrote.

    Raises:
        ArgumentTypeError, ArgumentValueError: no path.
        ScheduleError: the file, or an action in it, cannot be read.

    >>> import os, tempfile
    >>> from mindspore_zb.schedule import generate
    >>> schedule = generate("zb-h2", stages=2, microbatches=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_csv(schedule, os.path.join(folder, "schedule.csv"))
    ...     load_csv(os.path.join(folder, "schedule.csv")) == schedule
    True
    """
    path = check_path("path", path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # spreadsheets mark their UTF-8
            rows = [row for row in map(_without_padding, csv.reader(file)) if row]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ScheduleError(f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    title = rows[0] if rows else []
    if len(title) != 6 or tuple(title[::2]) != _COLUMNS or not all(map(_NUMBER.fullmatch, title[3::2])):
        raise ScheduleError(f"{path!r} is no schedule: its first line is not name,...,microbatches,...,"
                            "chunks,...")
    actions = []
    for rank, row in enumerate(rows[1:]):
        if row[:2] != ["rank", str(rank)]:
            raise ScheduleError(f"{path!r}: a line of rank {rank} is expected, not one of {row[:2]}")
        actions.append(_parse_actions(rank, [cell.strip() for cell in row[2:]]))
    return Schedule(title[1], int(title[3]), tuple(actions), int(title[5]))


def _without_padding(row: List[str]) -> List[str]:
    """The row without the empty cells with which spreadsheets make all rows equally long."""
    filled = [place for place, cell in enumerate(row, 1) if cell]
    return row[:filled[-1]] if filled else []


def _parse_actions(rank: int, words: List[str]) -> List[Action]:
    try:
        return [Action.parse(word) for word in words]
    except ScheduleError as error:
        raise ScheduleError(f"rank {rank}: {error}") from error
