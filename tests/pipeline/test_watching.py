"""A failure is heard of, passed on, told, and ends what nothing else would end. Plain sockets, no processes."""

import socket
import subprocess
import sys
import time

import pytest

from mindspore_zb.pipeline import watching
from mindspore_zb.pipeline.watching import Watch


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(watching, "SECONDS_TO_RAISE", 0.3)
    monkeypatch.setattr(watching, "SECONDS_AFTER_LEAVING", 0.3)


class Row:
    """Ranks in a row, with what they exited with."""

    def __init__(self, ranks):
        self.exits = {}
        self.watches = [Watch(rank, lambda code, rank=rank: self.exits.setdefault(rank, code)) for rank in range(ranks)]
        self.sockets = {}
        for rank in range(ranks - 1):
            left, right = socket.socketpair()
            self.sockets[rank, rank + 1], self.sockets[rank + 1, rank] = left, right
            self.watches[rank].add_link(left, rank + 1)
            self.watches[rank + 1].add_link(right, rank)

    def kill(self, rank):
        """As the end of a process does."""
        self.watches[rank]._closed = True
        for (owner, _), connection in self.sockets.items():
            if owner == rank:
                connection.shutdown(socket.SHUT_RDWR)


def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_a_rank_that_raises(capsys):
    row = Row(3)
    row.watches[0].doing("stage 0, micro-batch 2, action 0RECV_B2")
    row.watches[2].doing("stage 2, micro-batch 4, action 2F4")
    row.watches[2].tell_failure("ValueError: wrong")
    until(lambda: row.watches[0].failure)
    reason = "rank 2, stage 2, micro-batch 4, action 2F4: ValueError: wrong"
    assert row.watches[0].failure == row.watches[1].failure == reason
    until(lambda: set(row.exits) == {0, 1})
    assert set(row.exits.values()) == {watching.FAILED}
    told = capsys.readouterr().err
    assert f"PipelineError: rank 0, stage 0, micro-batch 2, action 0RECV_B2: stopped, as {reason}\n" in told


def test_a_rank_that_is_killed():
    row = Row(3)
    row.watches[1].doing("stage 1, micro-batch 0, action 1B0")
    time.sleep(0.1)
    row.kill(1)
    until(lambda: set(row.exits) == {0, 2})
    assert row.watches[0].failure == "rank 1 ended without a word in stage 1, micro-batch 0, action 1B0"


LAST_WORD = """
import os, signal, socket, sys
from mindspore_zb.pipeline.watching import Watch

watch = Watch(1)
watch.add_link(socket.socket(fileno=int(sys.argv[1])), 0)
for microbatch in range(100):
    watch.doing(f"stage 1, micro-batch {microbatch}, action 1F{microbatch}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_last_word_of_a_rank_that_is_killed():
    for _ in range(5):
        left, right = socket.socketpair()
        with left, right:
            subprocess.run([sys.executable, "-c", LAST_WORD, str(right.fileno())], pass_fds=[right.fileno()], check=False)
            right.close()
            with left.makefile("r") as lines:
                assert list(lines)[-1:] == ["doing stage 1, micro-batch 99, action 1F99\n"]


def test_nobody_waits_for_a_rank_that_does_not_read():
    watch = Watch(0)
    left, right = socket.socketpair()
    watch.add_link(left, 1)
    count, place = 3000, "stage 0, " + "x" * 1000
    for microbatch in range(count):
        watch.doing(f"{place} {microbatch}")
    with right.makefile("r") as lines:
        for microbatch in range(count):
            assert next(lines) == f"doing {place} {microbatch}\n"
        watch.close()
        assert list(lines) == ["bye \n"]
    right.close()


def test_a_program_that_notices_is_not_ended():
    row = Row(2)
    row.kill(1)
    until(lambda: row.watches[0].failure)
    with pytest.raises(ConnectionError, match="rank 1 ended without a word"):
        row.watches[0].doing("stage 0, micro-batch 0, action 0B0")
    time.sleep(0.6)
    assert row.exits == {}


def test_leaving_in_good_order():
    row = Row(3)
    for watch in row.watches:
        watch.close()
    time.sleep(0.6)
    assert row.exits == {} and all(watch.failure is None for watch in row.watches)


def test_waiting_for_a_rank_that_has_left_is_a_failure():
    row = Row(2)
    row.watches[1].close()
    time.sleep(0.5)
    assert row.watches[0].failure is None, "nobody waits for it yet"
    row.watches[0].doing("stage 0, micro-batch 0, action 0RECV_B0")
    until(lambda: row.exits)
    assert row.watches[0].failure == "rank 1 has left"


def test_a_failure_is_told_once():
    row = Row(2)
    row.watches[1].tell_failure("first")
    row.watches[1].tell_failure("second")
    row.watches[1].close()
    until(lambda: row.watches[0].failure)
    assert row.watches[0].failure == "rank 1: first"


def test_a_stranger_is_turned_away():
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(5)
    stranger = socket.create_connection(server.getsockname(), 5)
    stranger.sendall(b"guess\n")
    friend = socket.create_connection(server.getsockname())
    friend.sendall(b"secret\nbehind")
    accepted = watching._accept(server, "secret")
    assert accepted.recv(6) == b"behind"
    assert stranger.recv(1) == b""
    for connection in (accepted, stranger, friend, server):
        connection.close()
