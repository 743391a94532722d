"""Counts what the split does, so that tests of its cost need no clock."""

import sys
from contextlib import contextmanager
from pathlib import Path

import mindspore_zb.split

FOLDER = str(Path(mindspore_zb.split.__file__).parent)


class Count:
    """A number that counting code adds to."""

    total = 0


@contextmanager
def lines_run():
    """Count the lines of the split's own modules that run inside the ``with`` block.

    Everything the split does in Python shows up here: climbing twice where once is enough, looking for the top of a
    long chain of sets again and again, walking a list inside a loop.
    """
    count = Count()

    def on_line(frame, event, _):
        if event == "line":
            count.total += 1
        return on_line

    def on_call(frame, *_):
        return on_line if frame.f_code.co_filename.startswith(FOLDER) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield count
    finally:
        sys.settrace(before)


class CountedList(list):
    """A list that counts the elements read from it one by one; searching it is an error, as that is linear."""

    def __init__(self, items, count):
        super().__init__(items)
        self._count = count

    def __iter__(self):
        for item in super().__iter__():
            self._count.total += 1
            yield item

    def __getitem__(self, index):
        self._count.total += 1
        return super().__getitem__(index)

    def __contains__(self, item):
        raise AssertionError(f"searched a list of {len(self)} for {item}")

    def index(self, *_):
        """Not to be used by the split."""
        raise AssertionError(f"searched a list of {len(self)}")
