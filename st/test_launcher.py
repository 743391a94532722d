"""The launcher itself, with plain Python commands: no process may outlive its launch."""

import os
import socket
import sys
import time

import pytest

from st.launcher import Finished, free_port, run_command

pytestmark = [pytest.mark.cpu_linux, pytest.mark.level0, pytest.mark.onecard]

# Starts a process in a session of its own, as msrun does, prints its number, and then does what `after` says.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
{after}
"""


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_exit_code_and_output(tmp_path):
    done = run_command([sys.executable, "-c", "print('said'); raise SystemExit(3)"], log_dir=tmp_path / "a", timeout=30)
    assert done == Finished(3, {"launcher.log": "said\n"})
    assert done.report().splitlines() == ["exit code 3", "--- launcher.log", "said"]


def test_other_logs_in_the_folder_are_read(tmp_path):
    write = "open('worker_0.log', 'wb').write(b'loss \\xff')"
    done = run_command([sys.executable, "-c", write], log_dir=tmp_path / "a", timeout=30)
    assert done.logs["worker_0.log"] == "loss \ufffd"


def test_timeout_ends_sessions_of_their_own(tmp_path):
    start = time.monotonic()
    command = [sys.executable, "-c", PARENT.format(after="time.sleep(60)")]
    done = run_command(command, log_dir=tmp_path / "a", timeout=1.0)
    assert time.monotonic() - start < 15
    assert done.exit_code is None
    assert done.report().startswith("killed at the timeout")
    assert not is_alive(int(done.logs["launcher.log"]))


def test_orphans_end_with_the_command(tmp_path):
    command = [sys.executable, "-c", PARENT.format(after="raise SystemExit(0)")]
    done = run_command(command, log_dir=tmp_path / "a", timeout=30)
    assert done.exit_code == 0
    assert not is_alive(int(done.logs["launcher.log"]))


def test_environment_is_added_to_that_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("ST_KEPT", "kept")
    show = "import os; print(os.environ['ST_KEPT'], os.environ['ST_ADDED'])"
    done = run_command(
        [sys.executable, "-c", show], log_dir=tmp_path / "a", timeout=30, environment={"ST_ADDED": "added"}
    )
    assert done.logs["launcher.log"] == "kept added\n"
    assert "ST_ADDED" not in os.environ


def test_a_folder_with_logs_of_another_launch_is_refused(tmp_path):
    with pytest.raises(FileExistsError):
        run_command([sys.executable, "-c", ""], log_dir=tmp_path, timeout=30)


def test_free_port_can_be_listened_on():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()
        assert free_port() != server.getsockname()[1]
