"""``python -m mindspore_zb parity``: what it prints, its exit codes, and how it refuses bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mindspore_zb.cli import main
from mindspore_zb.commands.parity import MOST_ROWS, _chosen
from mindspore_zb.parity import Difference, EngineRun, ParityReport

ROOT = Path(__file__).resolve().parents[2]

FACTORIES = '''
import numpy as np
from mindspore import Tensor, nn, ops


def perceptron():
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 3))
    return net, (Tensor(np.ones((2, 4), np.float32)),), net.trainable_params()


def with_keywords():
    return {"fn": lambda x, scale: (x * scale, scale), "inputs": [ops.ones((2, 3))], "weights": None,
            "kwargs": {"scale": ops.ones((3,))}, "has_aux": True, "grad_position": -1}


def dropout():
    net = nn.SequentialCell(nn.Dense(4, 64), nn.Dropout(p=0.5)).set_train()
    return net, (ops.ones((8, 4)),), net.trainable_params()


def raising():
    raise RuntimeError("no\\n data")


def number():
    return 3


def two_things():
    return ops.tanh, (ops.ones((2, 3)),)


def lacking():
    return {"fn": ops.tanh, "inputs": ()}


def unknown():
    return {"fn": ops.tanh, "inputs": (), "weights": None, "input": 3}


def not_callable():
    return 3, (), None


def wrong_weights():
    return ops.tanh, (ops.ones((2, 3)),), [3]


def failing():
    def fn(x):
        raise KeyError("a mistake of the net")
    return fn, (ops.ones((2, 3)),), None


not_a_function = 3
'''


@pytest.fixture(autouse=True)
def factories(tmp_path, monkeypatch):
    (tmp_path / "parity_factories.py").write_text(FACTORIES)
    (tmp_path / "broken_factories.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("parity_factories", None)
    return tmp_path


def test_within_tolerance(capsys):
    assert main(["parity", "parity_factories:perceptron", "--rounds", "2"]) == 0
    output = capsys.readouterr().out
    lines = [line.split() for line in output.splitlines() if line]
    assert lines[0] == ["parity_factories:perceptron"]
    assert "\x1b" not in output
    assert [line[:3] for line in lines if line[0] == "split"] == [["split", "pynative", "pynative"],
                                                                 ["split", "graph", "graph"]]
    assert [line[0] for line in lines if line[-1] == "1e-05"] == ["out", "dx", "dw", "dw", "dw", "dw"]


def test_a_wrong_gradient_is_exit_code_1(capsys, monkeypatch):
    from mindspore_zb.engines.graph.recording import GraphRecording

    right = GraphRecording.input_grads
    monkeypatch.setattr(GraphRecording, "input_grads", lambda self, sens: [2 * grad for grad in right(self, sens)])
    assert main(["parity", "parity_factories:perceptron", "--rounds", "1"]) == 1
    output = capsys.readouterr().out
    assert "BEYOND TOLERANCE" in output and "1.0e+00 BEYOND" in output
    assert main(["parity", "parity_factories:perceptron", "--rounds", "1", "--tolerance", "2"]) == 0


def test_json(capsys):
    assert main(["parity", "parity_factories:with_keywords", "--rounds", "2", "--json", "--ones"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["factory"] == "parity_factories:with_keywords" and report["passed"]
    assert [run["way"] for run in report["runs"]] == ["unsplit", "split pynative", "split graph"]
    names = [one["name"] for one in report["runs"][1]["differences"]]
    assert names == ["out", "aux[0]", "dx[0][0]", "dx[1]['scale']"]


def test_a_random_net_is_exit_code_2_and_says_what_to_do(capsys):
    assert main(["parity", "parity_factories:dropout", "--rounds", "1"]) == 2
    output = capsys.readouterr().out
    assert "random: not compared" in output and "set_train(False)" in output


@pytest.mark.parametrize("arguments, message", [
    (["parity_factories"], "'parity_factories' must be package.module:factory"),
    (["no_such_module:f"], "module no_such_module cannot be imported: ModuleNotFoundError"),
    (["broken_factories:f"], "No module named 'nothing_of_this_name'"),
    (["parity_factories:nothing"], "module parity_factories has no function nothing"),
    (["parity_factories:not_a_function"], "module parity_factories has no function not_a_function"),
    (["parity_factories:raising"], "parity_factories:raising raised RuntimeError: no data"),
    (["parity_factories:number"], "returned a int: it must return (fn, inputs, weights)"),
    (["parity_factories:two_things"], "returned a tuple: it must return (fn, inputs, weights)"),
    (["parity_factories:lacking"], "the dict of parity_factories:lacking lacks weights"),
    (["parity_factories:unknown"], "has the unknown keys input"),
    (["parity_factories:not_callable"], "fn of parity_factories:not_callable is a int, not callable"),
    (["parity_factories:wrong_weights"], "weights[0] must be a Parameter, not a int"),
    (["parity_factories:failing"], "cannot be run unsplit: KeyError: 'a mistake of the net'"),
    (["parity_factories:perceptron", "--rounds", "0"], "argument --rounds: 0 is below 1"),
    (["parity_factories:perceptron", "--rounds", "x"], "argument --rounds: 'x' is no integer"),
    (["parity_factories:perceptron", "--tolerance", "nan"], "'nan' is no finite number from 0"),
    (["parity_factories:perceptron", "--tolerance", "x"], "'x' is no number"),
    ([], "the following arguments are required: package.module:factory"),
])
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    try:
        code = main(["parity", *arguments])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2 and captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1 and captured.err.startswith("mindspore_zb parity: ")


def test_of_many_tensors_those_that_differ_most_are_shown():
    differences = tuple(Difference("dw", str(place), float(place), 1e3, "within") for place in range(100))
    report = ParityReport((EngineRun("split graph", "graph", "within", differences),))
    _, rows = report.table()
    shown, hidden = _chosen(report, rows, False)
    assert [row[0] for row in shown] == [f"dw {place}" for place in range(100 - MOST_ROWS, 100)] and hidden == 60
    assert _chosen(report, rows, True) == (rows, 0)


def test_on_a_terminal_it_is_drawn_by_rich(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["parity", "parity_factories:perceptron", "--rounds", "1"]) == 0
    assert "─" in capsys.readouterr().out


def test_as_a_module_it_finds_factories_in_the_working_directory(factories):
    done = subprocess.run([sys.executable, "-m", "mindspore_zb", "parity", "parity_factories:perceptron", "--rounds",
                           "1", "--json"], cwd=factories, capture_output=True, text=True, timeout=300, check=False,
                          env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"]
    assert sorted(path.name for path in factories.iterdir() if path.suffix == ".py") == [
        "broken_factories.py", "parity_factories.py"]
