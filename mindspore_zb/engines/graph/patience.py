"""Long compilations show that they go on."""

import contextlib
import sys
import threading
import time
from typing import Iterator

FIRST, EVERY = 10.0, 10.0
"""Seconds until the first line, and between further ones."""


@contextlib.contextmanager
def telling_that_it_goes_on(name: str) -> Iterator[None]:
    """While the block runs for long, say so on standard error every few seconds."""
    done = threading.Event()
    start = time.monotonic()

    def tell() -> None:
        wait = FIRST
        while not done.wait(wait):
            print(f"mindspore_zb: compiling {name} since {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
            wait = EVERY

    thread = threading.Thread(target=tell, name="mindspore_zb compile progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
