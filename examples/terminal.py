"""Progress and tables for the examples: drawn by ``rich`` on a terminal, plain lines in a pipe or without ``rich``."""

import contextlib
import sys
from typing import Any, Callable, Iterator, Sequence

try:
    from rich import box
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table
    HAS_RICH = True
except ImportError:  # the extra "viz" is not installed
    HAS_RICH = False


def draws() -> bool:
    """Whether there is a terminal, and ``rich`` to draw on it."""
    return HAS_RICH and sys.stdout.isatty()


@contextlib.contextmanager
def progress(total: int, lines: int = 10) -> Iterator[Callable[[int, str], None]]:
    """A function to tell ``(steps done, how it goes)``: it moves a bar, or prints about ``lines`` lines in all."""
    if not draws():
        every = max(total // lines, 1)
        yield lambda done, note: print(f"step {done:>4} of {total}   {note}", flush=True) \
            if done % every == 0 or done == 1 else None
        return
    columns = (TextColumn("training"), BarColumn(bar_width=16), MofNCompleteColumn(), TextColumn("{task.description}"),
               TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, note: bar.update(task, completed=done, description=note)


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> None:
    """Print a table; its first column is text and is aligned left, the others are numbers.

    A row ``()`` is a rule. ``note`` stands below.
    """
    if draws():
        _draw_table(title, header, rows, note)
        return
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[place]) for row in cells if row) for place in range(len(header))]
    lines = ["   ".join(cell.rjust(width) if place else cell.ljust(width)
                        for place, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in cells]
    rule = "-" * (sum(widths) + 3 * (len(widths) - 1))
    print("\n".join(["", title, rule, lines[0], rule, *(line or rule for line in lines[1:]), rule]))
    if note:
        print(note)


def _draw_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], note: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(header):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        if row:
            table.add_row(*map(str, row))
        else:
            table.add_section()
    console = Console(highlight=False)
    console.print(f"\n[bold]{title}[/bold]")
    console.print(table, end="")
    if note:
        console.print(note, style="dim", markup=False)
