"""Notices that a neighbouring rank failed, while this one may be stuck in a receive that nobody will answer.

Beside the framework's messages each rank has a socket to the rank before and to the rank after it. Over it goes what
the rank is about to do, and, if it fails, why. A process that is killed says nothing, but its sockets close at once.
Who hears of a failure passes it on, says so on stderr, and stops: by an exception where its program can still raise
one, else by ending the process, as nothing else ends a receive.
"""

import os
import secrets
import socket
import sys
import threading
import time
from typing import Any, List, Optional

SECONDS_TO_RAISE = 3.0
"""How long the program has to notice a failure itself."""
SECONDS_AFTER_LEAVING = 5.0
"""How long a step may wait on after a neighbour has left in good order: its last messages may be on their way."""
FAILED = 70
_CONNECT_SECONDS = 60.0


class Watch:
    """The sockets of one rank.

    Attributes:
        rank: of this process.
        failure: what is known of a failure elsewhere; None as long as all is well.
    """

    def __init__(self, rank: int, exit_process: Any = os._exit):
        self.rank = rank
        self.failure: Optional[str] = None
        self._exit = exit_process
        self._links: List[_Link] = []
        self._lock = threading.Lock()
        self._doing = ""
        self._count = 0
        self._noticed = False
        self._closed = False

    @classmethod
    def join(cls, end: Any) -> "Watch":
        """Connect to the neighbours of ``end``, which is asked to pass on where this rank listens."""
        watch = cls(end.rank)
        secret = secrets.token_hex(16)
        server = None
        if end.rank + 1 < end.ranks:
            server = socket.create_server(("", 0))
            server.settimeout(_CONNECT_SECONDS)
            end.send_note(f"{_own_address()} {server.getsockname()[1]} {secret}", end.rank + 1)
        if end.rank > 0:
            host, port, password = end.receive_note(end.rank - 1).split()
            link = socket.create_connection((host, int(port)), _CONNECT_SECONDS)
            link.sendall(password.encode() + b"\n")
            watch.add_link(link, end.rank - 1)
        if server is not None:
            watch.add_link(_accept(server, secret), end.rank + 1)
            server.close()
        return watch

    def add_link(self, connection: socket.socket, peer: int) -> None:
        """Listen to a neighbour."""
        connection.settimeout(None)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(self, connection, peer)
        self._links.append(link)
        link.start()

    def doing(self, place: str) -> None:
        """Tell the neighbours what this rank does from now on; "" for nothing that they wait for.

        Raises:
            ConnectionError: another rank failed; the message says which, where and why.
        """
        self._doing = place
        self._count += 1
        if self.failure is not None:
            self._noticed = True
            raise ConnectionError(self.failure)
        for link in self._links:
            link.say("doing", place)

    def tell_failure(self, reason: str) -> None:
        """This rank fails: tell the neighbours, unless the reason came from them."""
        self._noticed = True
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            for link in self._links:
                link.say("failed", f"rank {self.rank}{', ' if self._doing else ''}{self._doing}: {reason}")
                link.finish()

    def close(self) -> None:
        """This rank leaves in good order."""
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            for link in self._links:
                link.say("bye", "")
                link.finish()

    def heard_failure(self, text: str, source: Any) -> None:
        """A neighbour failed or passes on a failure."""
        with self._lock:
            if self._closed or self.failure is not None:
                return
            self.failure = text
        for link in self._links:
            if link is not source:
                link.say("failed", text)
        where = f"rank {self.rank}{', ' if self._doing else ''}{self._doing}"
        print(f"PipelineError: {where}: stopped, as {text}", file=sys.stderr, flush=True)
        threading.Thread(target=self._end_unless_noticed, daemon=True).start()

    def _end_unless_noticed(self) -> None:
        time.sleep(SECONDS_TO_RAISE)
        if not self._noticed:
            sys.stdout.flush()
            self._exit(FAILED)

    def heard_bye(self, peer: int, last: str, source: Any) -> None:
        """A neighbour left in good order: right between steps, a failure if this rank goes on waiting for it."""
        while not self._closed and self.failure is None:
            count = self._count
            time.sleep(SECONDS_AFTER_LEAVING)
            if self._doing and count == self._count and not self._closed:
                self.heard_failure(f"rank {peer} has left{f' after {last}' if last else ''}", source)


class _Link(threading.Thread):
    """One socket: reads lines in a thread of its own.

    What is said has left this process when `say` returns, so that a peer hears the last word of one that is killed
    right afterwards. Nobody waits for a peer that does not read: what has no room is sent by another thread.
    """

    def __init__(self, watch: Watch, connection: socket.socket, peer: int):
        super().__init__(daemon=True, name=f"watch of rank {peer}")
        self._watch, self._connection, self._peer = watch, connection, peer
        self._unsent: List[bytes] = []
        self._writing = False
        self._finished = False
        self._turn = threading.Condition()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def say(self, what: str, text: str) -> None:
        """Send a line."""
        line = f"{what} {' '.join(text.split())}\n".encode("utf-8", "replace")
        with self._turn:
            if not self._unsent and not self._writing:
                line = line[self._send_what_fits(line):]
            if line:
                self._unsent.append(line)
                self._turn.notify()

    def finish(self) -> None:
        """Send what is waiting, and no more."""
        with self._turn:
            self._finished = True
            self._turn.notify()
        self._writer.join(2.0)

    def _send_what_fits(self, line: bytes) -> int:
        try:
            return self._connection.send(line, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # the reader hears of it too, and says so
            return len(line)

    def _write(self) -> None:
        try:
            while True:
                with self._turn:
                    self._writing = False
                    self._turn.wait_for(lambda: self._unsent or self._finished)
                    if not self._unsent:
                        break
                    data, self._unsent, self._writing = b"".join(self._unsent), [], True
                self._connection.sendall(data)
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:  # as above
            pass

    def run(self) -> None:
        """Read until the other end is closed."""
        try:
            self._read()
        finally:
            self._connection.close()

    def _read(self) -> None:
        doing = ""
        try:
            with self._connection.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    what, _, text = line.rstrip("\n").partition(" ")
                    if what == "failed":
                        self._watch.heard_failure(text, self)
                        return
                    if what == "bye":
                        self._watch.heard_bye(self._peer, doing, self)
                        return
                    doing = text
        except OSError:
            pass
        self._watch.heard_failure(f"rank {self._peer} ended without a word{f' in {doing}' if doing else ''}", self)


def _accept(server: socket.socket, secret: str) -> socket.socket:
    """The connection that knows the secret; others, of whoever scans ports, are closed."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    while time.monotonic() < deadline:
        connection, _ = server.accept()
        connection.settimeout(5.0)
        try:
            if secrets.compare_digest(_first_line(connection), secret):
                return connection
        except OSError:
            pass
        connection.close()
    raise TimeoutError("the next rank did not connect")


def _first_line(connection: socket.socket) -> str:
    """Byte by byte, so that nothing behind it is taken."""
    line = b""
    while len(line) < 100:
        byte = connection.recv(1)
        if byte in (b"\n", b""):
            break
        line += byte
    return line.decode("ascii", "replace")


def _own_address() -> str:
    """The address under which the other processes reach this machine: that of the way to the one that coordinates."""
    coordinator = os.environ.get("MS_SCHED_HOST", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((coordinator, 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
