"""The end of a process, with operators that only write down what they are given; and starting without others."""

import os
import subprocess
import sys

import mindspore as ms
import pytest

from mindspore_zb.errors import ArgumentValueError, StateError
from mindspore_zb.pipeline import TensorMeta, connect
from mindspore_zb.pipeline.communication import ProcessEnd


class Operators:
    """Sends and receives."""

    def __init__(self):
        self.calls = []

    def send(self, tensor, peer, group, tag):
        self.calls.append(("send", str(tensor.dtype), peer, group))

    def receive(self, buffer, tag, peer, group):
        self.calls.append(("receive", str(buffer.dtype), peer, group))


def test_messages_go_to_the_peer_in_the_world():
    operators = Operators()
    end = ProcessEnd(1, 3, "world", operators.send, operators.receive)
    end.send(ms.ops.ones((2,)), 2)
    end.send(ms.ops.ones((2,)).astype(ms.bool_), 0)
    assert end.receive(TensorMeta((2,), "bool_"), 0).dtype == ms.bool_
    end.receive(TensorMeta((2,), "float16"), 2)
    assert operators.calls == [("send", "Float32", 2, "world"), ("send", "UInt8", 0, "world"),
                               ("receive", "UInt8", 0, "world"), ("receive", "Float16", 2, "world")]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool_"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_what_is_empty_is_not_sent(shape, dtype):
    """Not every backend can; the receiver knows shape and dtype, and makes it."""
    operators, meta = Operators(), TensorMeta(shape, dtype)
    end = ProcessEnd(1, 3, "world", operators.send, operators.receive)
    end.send(meta.new(), 2)
    found = end.receive(meta, 0)
    assert (found.shape, found.dtype) == (shape, meta.framework_dtype)
    assert not operators.calls
    end.send(TensorMeta(()).new(), 2)
    assert len(operators.calls) == 1, "a scalar is sent"


def test_each_direction_can_have_a_group_of_its_own():
    groups, routes = {}, []
    for rank in range(4):
        operators = Operators()
        end = ProcessEnd(rank, 4, "world", operators.send, operators.receive)
        mine = []
        end.use_groups(lambda name, members, mine=mine: mine.append((name, tuple(members))))
        groups[rank] = mine
        for peer in range(4):
            if peer != rank:
                end.send(ms.ops.ones((1,)), peer)
                end.receive(TensorMeta((1,)), peer)
                (_, _, to, out), (_, _, source, back) = operators.calls[-2:]
                members = dict(mine)
                assert members.get(out, range(4))[to] == peer and members.get(back, range(4))[source] == peer
                assert (out == "world") == (abs(peer - rank) > 1) and (out == "world" or out != back)
                routes.append(((rank, peer), out, back))
    for (rank, peer), out, _ in routes:
        assert next(back for pair, _, back in routes if pair == (peer, rank)) == out, "both ends use one group"
    for rank in range(3):
        shared = [group for group in groups[rank] if group in groups[rank + 1]]
        assert len(shared) == 2, "made by both, in the same order"


def test_the_time_to_wait_is_above_zero():
    with pytest.raises(ArgumentValueError, match="timeout is a finite number above 0, in seconds, not 0"):
        connect(timeout=0)


@pytest.mark.slow
def test_a_process_on_its_own_is_told_what_is_missing():
    script = ("from mindspore_zb.pipeline import connect\n"
              "try:\n    connect()\nexcept RuntimeError as error:\n    print(type(error).__name__, error)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "StateError the processes could not be connected; were they started by msrun?" in done.stdout, done.stderr


def scheduler(monkeypatch, error):
    """``connect()`` as the scheduler of msrun calls it, where MindSpore's ``init`` raises."""
    import mindspore.communication

    def init():
        raise error

    monkeypatch.setattr(mindspore.communication, "init", init)
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    for variable in ("MS_CPU_COMM_OP_TIMEOUT", "HCCL_EXEC_TIMEOUT"):
        monkeypatch.setenv(variable, "10")
    with pytest.raises(StateError) as caught:
        connect()
    return str(caught.value)


def test_the_scheduler_says_that_a_rank_has_ended(monkeypatch):
    """It was connected, and nothing is wrong with it."""
    monkeypatch.setattr(os, "environ", os.environ.copy())  # what is set is forgotten again
    monkeypatch.delenv("MS_NODE_TIMEOUT", raising=False)
    message = scheduler(monkeypatch, RuntimeError("worker 1 is the first one timed out\n\n- C++ Call Stack: (For\nx.cc"))
    assert message == ("this is msrun's scheduler, which ends as a rank has ended or gives no sign of life: the log of "
                       "that rank, worker_N.log, says why. MindSpore: worker 1 is the first one timed out")
    assert os.environ["MS_NODE_TIMEOUT"] == "30"


def test_what_the_environment_says_of_the_scheduler_stays(monkeypatch):
    monkeypatch.setenv("MS_NODE_TIMEOUT", "77")
    scheduler(monkeypatch, RuntimeError("wrong"))
    assert os.environ["MS_NODE_TIMEOUT"] == "77"
