"""Tables and progress on a terminal: drawn by ``rich`` if it is installed, plain lines in a pipe or without it."""

import sys
from typing import Any, Callable, Optional, Sequence


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> None:
    """Print a table; its first column is text and is aligned left, the others are numbers. ``note`` stands below."""
    if sys.stdout.isatty() and _draw_table(title, header, rows, note):
        return
    print("\n".join([title, *plain_table(header, rows), *([note] if note else [])]))


def plain_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Sequence[str]:
    """The lines of a table.

    >>> print("\\n".join(plain_table(["name", "rate"], [["one", 0.5], ["another", 0.25]])))
    name      rate
    one        0.5
    another   0.25
    """
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return ["   ".join(cell.rjust(width) if column else cell.ljust(width)
                       for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in cells]


def _draw_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], note: str) -> bool:
    """Whether there was ``rich`` to draw it."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, name in enumerate(header):
        table.add_column(name, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    console = Console(highlight=False)
    console.print(title, style="bold", markup=False)
    console.print(table, end="")
    if note:
        console.print(note, style="dim", markup=False)
    return True


def progress_line(what: str) -> Optional[Callable[[int, int, float], None]]:
    """A function to tell ``(done, at most, lowest bubble rate so far)``: it writes over one line of stderr.

    None where stderr is no terminal.
    """
    if not sys.stderr.isatty():
        return None

    def tell(done: int, most: int, rate: float) -> None:
        print(f"\r{what}: {done / most:4.0%} of the work at most, bubble rate {rate:.4f}", end="", file=sys.stderr,
              flush=True)

    return tell


def end_progress() -> None:
    """Clear the line of :func:`progress_line`."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
