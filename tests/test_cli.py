"""The command line: finding commands, help, and errors that are one line."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mindspore_zb import cli
from mindspore_zb._version import __version__
from mindspore_zb.errors import StateError

ROOT = Path(__file__).resolve().parents[1]


def stopped(*arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    return stop.value.code


def test_help_names_every_command(capsys):
    assert stopped("--help") == 0
    output = capsys.readouterr().out
    assert "schedule" in cli.command_names()
    for name in cli.command_names():
        assert name in output
        assert stopped(name, "--help") == 0


def test_version(capsys):
    assert stopped("--version") == 0
    assert capsys.readouterr().out == f"mindspore_zb {__version__}\n"


@pytest.mark.parametrize("arguments, message", [([], "the following arguments are required: COMMAND"),
                                                (["nothing"], "invalid choice: 'nothing'")])
def test_without_a_command(arguments, message, capsys):
    assert stopped(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def command(monkeypatch, run):
    """A command ``extra``, the only one there is."""
    module = ModuleType("mindspore_zb.commands.extra")
    module.HELP, module.run = "Extra", run
    module.add_arguments = lambda parser: parser.add_argument("--number", type=int, default=3)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "command_names", lambda: ["extra"])


def test_a_command_gets_its_arguments_and_gives_the_exit_code(monkeypatch):
    command(monkeypatch, lambda arguments: arguments.number)
    assert cli.main(["extra", "--number", "5"]) == 5


def test_an_error_of_ours_is_one_line(monkeypatch, capsys):
    def run(_):
        raise StateError("first\n  second")

    command(monkeypatch, run)
    assert cli.main(["extra"]) == 2
    assert capsys.readouterr().err == "mindspore_zb extra: first second\n"


def test_an_error_of_the_program_is_not_hidden(monkeypatch):
    def run(_):
        raise KeyError("a mistake of the command")

    command(monkeypatch, run)
    with pytest.raises(KeyError):
        cli.main(["extra"])


def test_a_reader_that_has_seen_enough_is_no_error():
    with subprocess.Popen([sys.executable, "-m", "mindspore_zb", "schedule", "-p", "8", "-m", "64", "--text"], cwd=ROOT,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_a_full_output_is_one_line():
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, "-m", "mindspore_zb", "schedule", "-p", "2", "-m", "2"], cwd=ROOT,
                              stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "mindspore_zb schedule: the output cannot be written (No space left on device)\n"


def test_too_little_memory_is_one_line(monkeypatch, capsys):
    def run(_):
        raise MemoryError

    command(monkeypatch, run)
    assert cli.main(["extra"]) == 2
    assert capsys.readouterr().err == "mindspore_zb extra: not enough memory: choose smaller sizes\n"
