"""``mindspore_zb profile``: times of a stage, the line for ``schedule``, and errors in one line."""

import re
import sys
from types import ModuleType

import pytest
from mindspore import nn, ops

from mindspore_zb import cli


@pytest.fixture(name="module", autouse=True)
def fixture_module(monkeypatch):
    module = ModuleType("module_of_a_test")
    module.good = lambda: (nn.Dense(8, 8), (ops.ones((4, 8)),), None)
    module.function = lambda: (lambda x: x * 2, [ops.ones((4, 8))], ())
    module.wrong_shape = lambda: (nn.Dense(8, 8), (ops.ones((4, 9)),), None)
    module.no_inputs = lambda: (nn.Dense(8, 8), (), None)
    module.too_short = lambda: (nn.Dense(8, 8), ())
    module.no_tuple = lambda: 3
    module.extras = lambda: {"fn": nn.Dense(8, 8), "inputs": (ops.ones((4, 8)),), "weights": None, "grad_position": 0}
    module.raises = lambda: {}["missing"]
    module.no_function = 3
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_times_and_the_line_for_schedule(capsys):
    assert cli.main(["profile", "module_of_a_test:good", "--rounds", "2"]) == 0
    output = capsys.readouterr().out
    times = [float(re.search(rf"{name}.* ([\d.]+)$", output, re.M).group(1)) for name in ("T_F", "T_B", "T_W")]
    assert all(time > 0 for time in times)
    line = re.search(r"^python -m mindspore_zb (schedule .*)$", output, re.M).group(1)
    assert cli.main(line.split()) == 0
    assert [float(found) for found in re.findall(r"--[fbw] ([\d.]+)", line)] == pytest.approx(times, rel=1e-2)


def test_schedules_are_compared_at_once(capsys):
    assert cli.main(["profile", "module_of_a_test:function", "--rounds", "1", "-p", "2", "-m", "3"]) == 0
    output = capsys.readouterr().out
    assert "2 ranks, 3 micro-batches" in output and "zb-h1" in output


@pytest.mark.parametrize("arguments, message", [
    (["module_of_a_test"], "'module_of_a_test' must be package.module:factory"),
    (["no_such_module:x"], "module no_such_module cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
    (["module_of_a_test:nothing"], "module module_of_a_test has no function nothing"),
    (["module_of_a_test:no_function"], "module module_of_a_test has no function no_function"),
    (["module_of_a_test:raises"], "module_of_a_test:raises raised KeyError: 'missing'"),
    (["module_of_a_test:no_tuple"], "module_of_a_test:no_tuple returned a int: it must return (fn, inputs, weights)"),
    (["module_of_a_test:too_short"], "module_of_a_test:too_short returned a tuple: it must return (fn, inputs, weights)"),
    (["module_of_a_test:no_inputs"], "inputs must be the arguments of fn in a tuple, at least one"),
    (["module_of_a_test:extras"], "profile calls fn(*inputs) and cannot use the grad_position that module_of_a_test:extras"),
    (["module_of_a_test:wrong_shape"], "the stage of module_of_a_test:wrong_shape failed: ValueError: "),
    (["module_of_a_test:good", "-m", "3"], "give the ranks with -p too"),
    (["module_of_a_test:good", "--rounds", "10001"], "rounds is at most 10000, not 10001"),
    (["module_of_a_test:good", "-p", "2", "-m", "100000"], "2 ranks, 100000 micro-batches and 2 chunks make a schedule")])
def test_bad_input_is_one_line(arguments, message, capsys):
    assert cli.main(["profile", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("mindspore_zb profile: ") and output.err.count("\n") == 1
    assert message in output.err and "C++" not in output.err
