"""Runs commands, and MindSpore scripts in several processes, so that none of their processes outlives its test.

The workers of `msrun` are sessions of their own: killing the process group of `msrun` does not reach them, and those
that `msrun` leaves behind have no parent to be found by. So each launch marks the environment of its processes, which
all of their descendants inherit, and ends what carries the mark. Linux only, for it reads /proc.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MARK = "ST_LAUNCH_ID"
_SECONDS_TO_DIE = 10.0


@dataclass(frozen=True)
class Finished:
    """How a launch ended.

    exit_code: that of the command, None if it was killed at the timeout.
    logs: the text of each log by file name; `launcher.log` is what the command itself printed, under msrun
        `worker_<rank>.log` and `scheduler.log` are those of its processes.
    """

    exit_code: int | None
    logs: Mapping[str, str]

    def report(self, lines: int = 40) -> str:
        """The exit code and the last lines of each log, for the message of an assertion."""
        parts = ["killed at the timeout" if self.exit_code is None else f"exit code {self.exit_code}"]
        for name, text in self.logs.items():
            parts.append(f"--- {name}")
            parts.extend(text.splitlines()[-lines:])
        return "\n".join(parts)


def free_port() -> int:
    """A TCP port of this machine that nobody listened on a moment ago; nothing reserves it for the caller."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run_under_msrun(
    script: Path,
    *arguments: str,
    workers: int,
    log_dir: Path,
    timeout: float = 300.0,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run `script` in `workers` processes that can communicate; the rest is as in `run_command`."""
    command = [sys.executable, "-m", "mindspore.parallel.cluster.run"]
    command += [f"--worker_num={workers}", f"--local_worker_num={workers}"]
    command += [f"--master_port={free_port()}", f"--cluster_time_out={max(1, int(timeout))}"]
    command += [f"--log_dir={log_dir.resolve()}", "--join=True"]
    command += [str(script.resolve()), *arguments]
    # msrun starts whatever `python` the PATH gives.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return run_command(command, log_dir=log_dir, timeout=timeout, environment={"PATH": path, **(environment or {})})


def run_command(
    command: Sequence[str],
    *,
    log_dir: Path,
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command until it ends or `timeout` seconds are over, then end every process that it started.

    `log_dir` must not exist yet, so that its logs are those of this launch alone. It is the working directory too:
    MindSpore writes files of its own there. `environment` adds to that of this process.

    Raises FileExistsError for a `log_dir` that exists, RuntimeError if a process survives being killed.
    """
    log_dir.mkdir(parents=True)
    launch_id = uuid.uuid4().hex
    all_variables = {**os.environ, **(environment or {}), _MARK: launch_id}
    try:
        # A file, not a pipe: a reader of a pipe would wait for every descendant that holds its other end.
        with open(log_dir / "launcher.log", "wb") as output:
            exit_code = _wait(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=log_dir,
                    env=all_variables,
                ),
                timeout,
            )
    finally:
        _kill_launch(launch_id)
    return Finished(exit_code, _read_logs(log_dir))


def _wait(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()  # nothing happens to one that has ended
        process.wait()


def _kill_launch(launch_id: str) -> None:
    deadline = time.monotonic() + _SECONDS_TO_DIE
    # Again until none is left: one may have started another after the list was made.
    while True:
        alive = _processes_of(launch_id)
        if not alive:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {alive} survived SIGKILL for {_SECONDS_TO_DIE:.0f} s")
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def _processes_of(launch_id: str) -> list[int]:
    mark = f"{_MARK}={launch_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or belongs to somebody else
            continue
        if mark in variables:
            found.append(int(entry.name))
    return found


def _read_logs(log_dir: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in sorted(log_dir.glob("*.log"))}
