"""``python -m mindspore_zb explain``: what it prints, and how it refuses bad input."""

import json

import pytest

from mindspore_zb.cli import main
from tests.commands.factories_of_tests import BAD_FACTORIES, install, refused


@pytest.fixture(autouse=True)
def factories(monkeypatch):
    install(monkeypatch)


def printed(capsys, *arguments):
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


def test_before_dx_there_are_shapes(capsys):
    output = printed(capsys, "factories_of_a_test:good")
    assert output.startswith("Backward of one forward: pynative engine, fresh\n")
    assert "MatMul (2, 3)  BOUNDARY of group 1 at edge 1" in output and "cross from the compiled" not in output
    assert max(map(len, output.splitlines())) <= 100


def test_after_dx_there_are_bytes(capsys):
    output = printed(capsys, "factories_of_a_test:good", "--after-dx")
    # Four gradients, two of them shared by a bias and its matmul; the input of each matmul.
    assert f"{4 * 2 * (3 + 8 + 8 + 4)} bytes wait for dw" in output


def test_history(capsys):
    output = printed(capsys, "factories_of_a_test:good", "--history")
    assert output.startswith("History of 1 tensor: 9 nodes, 4 leaves among them\nleaf second.bias (3) Float32\n")
    assert "first.weight (8, 4)" in output and "BOUNDARY" not in output


def test_json(capsys):
    found = json.loads(printed(capsys, "factories_of_a_test:extras", "--json"))
    assert found["factory"] == "factories_of_a_test:extras" and found["state"] == "fresh"
    assert [leaf["name"] for leaf in found["inputs"]] == ["inputs[0]", "kwargs['b']"]
    assert [node["name"] for node in found["nodes"]][0] == "Mul" and found["saved_bytes"] is None


@pytest.mark.slow
def test_recompute(capsys):
    found = json.loads(printed(capsys, "factories_of_a_test:good", "--recompute", "elementwise", "--rounds", "1",
                               "--json"))
    saved, unsaved = found["recompute"]["saved_bytes"], found["recompute"]["unsaved_bytes"]
    assert (saved, unsaved) == (found["saved_bytes"], found["unsaved_bytes"])
    assert saved == unsaved == 4 * 2 * (4 + 8)  # x, and what tanh gives: nothing cheaper would do
    assert found["engine"] == "graph" and found["recompute"]["rounds"] == 1 and found["recompute"]["ratio"] > 0


def test_what_a_compiled_forward_saves_is_said(capsys):
    output = printed(capsys, "factories_of_a_test:good", "--mode", "graph")
    assert "\n96 bytes cross from the compiled forward to dx and dw\n" in output


def test_picture(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    for name, more in (("split.png", ()), ("history.svg", ("--history",))):
        output = printed(capsys, "factories_of_a_test:good", "--picture", str(tmp_path / name), *more)
        assert output.endswith(f"drawn to {tmp_path / name}\n")
        assert (tmp_path / name).stat().st_size > 5000


@pytest.mark.parametrize("arguments, message", [
    *BAD_FACTORIES,
    (["factories_of_a_test:integer", "--history"], "the tensor has no history to explain"),
    (["factories_of_a_test:number", "--history"], "fn returns no tensor, so there is no history to explain"),
    (["factories_of_a_test:good", "--recompute", "all"], "argument --recompute: invalid choice: 'all'"),
    (["factories_of_a_test:good", "--recompute", "cheap", "--mode", "pynative"], "--recompute is of the graph engine"),
    (["factories_of_a_test:branching", "--recompute", "cheap"], "cannot be compiled and split: it has control flow"),
    (["factories_of_a_test:good", "--max-nodes", "0"], "argument --max-nodes: 0 is below 1"),
    (["factories_of_a_test:good", "--history", "--after-dx"], "not allowed with argument"),
    ([], "the following arguments are required: package.module:factory")])
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert message in refused(main, "explain", arguments, capsys)


@pytest.mark.parametrize("missing", ["matplotlib", "mindspore"])
def test_without_a_package(missing, capsys, without_package, tmp_path):
    without_package(missing)
    message = {"matplotlib": "drawing needs matplotlib: pip install matplotlib",
               "mindspore": "MindSpore cannot be imported (mindspore): see mindspore_zb doctor"}[missing]
    line = refused(main, "explain", ["factories_of_a_test:raises", "--picture", str(tmp_path / "a.png")], capsys)
    assert message in line
