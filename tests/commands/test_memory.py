"""``python -m mindspore_zb memory``: what it prints, and how it refuses bad input."""

import json
import re

import pytest

from mindspore_zb.cli import main
from mindspore_zb.commands.memory import step_rows
from mindspore_zb.memory.report import MemoryStep, MemoryTimeline
from tests.commands.factories_of_tests import BAD_FACTORIES, install, refused

X, HIDDEN = 4 * 2 * 4, 4 * 2 * 8
"""Bytes of the input, and of what tanh gives."""


@pytest.fixture(autouse=True)
def factories(monkeypatch):
    install(monkeypatch)


def printed(capsys, *arguments):
    assert main(["memory", *arguments]) == 0
    return capsys.readouterr().out


def row(output, *start):
    """The cells of the line that starts with these."""
    lines = [re.split(r"  +", line) for line in output.splitlines()]
    return next(cells for cells in lines if tuple(cells[:len(start)]) == start)


def test_tables(capsys):
    output = printed(capsys, "factories_of_a_test:good")
    assert output.startswith("factories_of_a_test:good: pynative engine, weights 268 B\npeak ")
    assert row(output, "forward") == ["forward", f"{X + HIDDEN} B", "0 B", "0 B", f"{X + HIDDEN} B", f"{X + HIDDEN} B"]
    gradients = 4 * 2 * (3 + 8)
    assert row(output, "dx")[1:5] == [f"{X + HIDDEN} B", f"{gradients} B", "0 B", f"{X + HIDDEN + gradients} B"]
    assert row(output, "optimizer") == ["optimizer", "0 B", "0 B", "0 B", "0 B", "268 B"]
    assert row(output, "first") == ["first", f"{X} B", f"{X} B", "160 B"]
    assert row(output, "the net itself")[1:] == [f"{HIDDEN} B", f"{HIDDEN} B", "0 B"]
    assert max(map(len, output.splitlines())) <= 110 and "\x1b" not in output


def test_json_and_no_optimizer(capsys):
    found = json.loads(printed(capsys, "factories_of_a_test:good", "--optimizer", "none", "--json"))
    assert [step["name"] for step in found["steps"]] == ["forward", "dx", "dw 0", "dw 1", "dw 2", "dw 3"]
    assert found["curve"][:2] == [X, X + HIDDEN] and found["curve"][-1] == 0
    assert [storage["saved_in"] for storage in found["storages"]] == ["forward", "forward"]
    assert found["peak"]["nbytes"] == max(sum(step[key] for key in ("saved_bytes", "held_bytes", "grad_bytes"))
                                          for step in found["steps"])


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_other_optimizers(optimizer, capsys):
    assert "optimizer" in printed(capsys, "factories_of_a_test:good", "--optimizer", optimizer)


@pytest.mark.parametrize("name", ["extras", "no_weights", "integer"])
def test_without_weights_there_is_no_dw(name, capsys):
    found = json.loads(printed(capsys, f"factories_of_a_test:{name}", "--json"))
    assert [step["name"] for step in found["steps"]] == ["forward", "dx"]


def test_compiled(capsys):
    output = printed(capsys, "factories_of_a_test:compiled")
    assert "graph engine" in output and "Note: compiled code tells neither layers nor operations" in output
    assert row(output, "forward")[1:3] == ["0 B", f"{X + HIDDEN} B"]


def test_picture(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "memory.png"
    assert printed(capsys, "factories_of_a_test:good", "--picture", str(path)).endswith(f"drawn to {path}\n")
    assert path.stat().st_size > 5000


def many(count, device=None):
    return MemoryTimeline("pynative", None, tuple(
        MemoryStep(f"dw {place}", (), 0, 0, place, 0, 0, device, device) for place in range(count)), (), (), 0, ())


def test_of_many_steps_the_middle_is_left_out():
    (_, rows), note = step_rows(many(30), 12)
    assert [cells[0] for cells in rows] == [*(f"dw {place}" for place in range(6)), "...",
                                            *(f"dw {place}" for place in range(24, 30))]
    assert note == "18 steps in between are left out (--all shows them)"
    (_, rows), note = step_rows(many(30), None)
    assert len(rows) == 30 and note == ""


def test_figures_of_the_device_have_columns_where_there_are_any():
    (header, rows), _ = step_rows(many(1, device=2000), 12)
    assert header[-2:] == ["device", "device peak"] and rows[0][-2:] == ["2 kB", "2 kB"]
    assert len(step_rows(many(1), 12)[0][0]) == 6


def test_transformer(capsys):
    output = printed(capsys, "--transformer", "2,3,2,4")
    assert row(output, "gelu")[1:] == ["8BLWe", "768", "768"]
    assert row(output, "together")[-2:] == ["1,776", "1,776"]
    assert output.endswith("Measured and formula agree to the byte.\n")
    assert max(map(len, output.splitlines())) <= 90
    found = json.loads(printed(capsys, "--transformer", "2,3,2,4", "--dtype", "float16", "--json"))
    assert found["agrees"] and found["measured_bytes"] == (1776 - 96) // 2 + 96


def test_a_block_that_differs_is_exit_code_1(capsys, monkeypatch):
    from mindspore_zb.memory import transformer_block
    monkeypatch.setattr(transformer_block, "block_bytes", lambda *_: 5)
    assert main(["memory", "--transformer", "1,1,1,1"]) == 1
    assert "MEASURED AND FORMULA DIFFER" in capsys.readouterr().out
    assert main(["memory", "--transformer", "1,1,1,1", "--json"]) == 1


@pytest.mark.parametrize("arguments, message", [
    *BAD_FACTORIES,
    ([], "give either package.module:factory or --transformer B,L,H,W"),
    (["factories_of_a_test:good", "--transformer", "1,1,1,1"], "give either package.module:factory or --transformer"),
    (["--transformer", "1,2,3"], "'1,2,3' is not batch,length,heads,width"),
    (["--transformer", "1,x,1,1"], "'x' is no integer"),
    (["--transformer", "1,1,3,4"], "heads must divide width, but 3 does not divide 4"),
    (["--transformer", "1,1,1,1", "--picture", "a.png"], "--picture is for a factory"),
    (["factories_of_a_test:good", "--depth", "0"], "argument --depth: 0 is below 1"),
    (["factories_of_a_test:good", "--optimizer", "lamb"], "argument --optimizer: invalid choice: 'lamb'")])
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert message in refused(main, "memory", arguments, capsys)


def test_without_matplotlib(capsys, without_package, tmp_path):
    without_package("matplotlib")
    line = refused(main, "memory", ["factories_of_a_test:raises", "--picture", str(tmp_path / "a.png")], capsys)
    assert "drawing needs matplotlib: pip install matplotlib" in line


def test_on_a_terminal_it_is_drawn_by_rich(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "─" in printed(capsys, "factories_of_a_test:good")
