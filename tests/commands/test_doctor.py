"""``python -m mindspore_zb doctor``: findings, exit codes, and one line where MindSpore cannot be used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mindspore_zb import health
from mindspore_zb.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_here_all_works(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "All works."
    states = {line[:15].strip(): line[17:25].strip() for line in lines[:-1]}
    assert states["PyNative engine"] == states["graph engine"] == states["mindspore"] == states["device"] == "ok"


def test_json(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["good"] and report["findings"][0]["what"] == "mindspore_zb"


@pytest.mark.parametrize("module", ["mindspore_zb.engines.pynative.native", "mindspore_zb.engines.graph.native"])
def test_a_missing_primitive_is_named(module, capsys, monkeypatch):
    __import__(module)
    monkeypatch.setattr(sys.modules[module], "missing_features", lambda: ["grad node .next_functions"])
    assert main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "MindSpore lacks grad node .next_functions (install mindspore 2.9.0 or 2.10.0)" in output
    assert output.splitlines()[-1].startswith("Does not work: ")


def test_wrong_gradients_and_failures_are_found(capsys, monkeypatch):
    from mindspore_zb.engines.graph.recording import GraphRecording

    right = GraphRecording.input_grads
    monkeypatch.setattr(GraphRecording, "input_grads", lambda self, sens: [2 * grad for grad in right(self, sens)])
    assert main(["doctor"]) == 1
    assert "the gradients of x @ w are wrong" in capsys.readouterr().out
    monkeypatch.setattr(GraphRecording, "input_grads", lambda *_: 1 // 0)
    assert main(["doctor"]) == 1
    assert "a first split failed: ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize("versions, line", [
    (((3, 8), "2.10.0", "1.26.4"), "python: 3.8. To mend it: use Python 3.9 to 3.12"),
    (((3, 13), "2.10.0", "1.26.4"), "python: 3.13. To mend it: use Python 3.9 to 3.12"),
    (((3, 11), None, None), "mindspore: not installed. To mend it: pip install mindspore==2.10.0 'numpy<2'"),
    (((3, 9), "2.7.1", "1.26.4"), "mindspore: 2.7.1, not 2.9 or 2.10. To mend it: pip install mindspore==2.9.0"),
    (((3, 11), "2.11.0", "1.26.4"), "mindspore: 2.11.0, not 2.9 or 2.10. To mend it: pip install mindspore==2.10.0"),
    (((3, 11), "2.10.0", "2.1.0"), "numpy: 2.1.0. To mend it: pip install 'numpy<2': MindSpore's extensions need it"),
    (((3, 11), "2.10.0", None),
     "numpy: not installed. To mend it: pip install 'numpy<2': MindSpore's extensions need it"),
])
def test_what_keeps_mindspore_from_being_used_is_one_line(versions, line, capsys, monkeypatch):
    obstacle = health._obstacle(*versions)
    monkeypatch.setattr(health, "examine", lambda: (obstacle,))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == line + "\n"


@pytest.mark.parametrize("versions", [((3, 9), "2.9.0", "1.26.4"), ((3, 12), "2.10.0rc1", "1.26.4")])
def test_no_obstacle(versions):
    assert health._obstacle(*versions) is None


def run(*script, path=ROOT):
    return subprocess.run([sys.executable, *script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
                          env={"PYTHONPATH": str(path), "PATH": "/usr/bin:/bin"})


def test_without_mindspore_it_runs_too():
    done = run("-S", "-m", "mindspore_zb", "doctor")  # -S: no installed packages
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("\n") == 1 and done.stdout.startswith("mindspore: not installed.")
    parity = run("-S", "-m", "mindspore_zb", "parity", "a:b")
    assert parity.returncode == 2 and parity.stderr.count("\n") == 1
    assert "see mindspore_zb doctor" in parity.stderr


def test_a_mindspore_that_cannot_be_imported_is_one_line():
    script = ("import sys; sys.modules['mindspore'] = None; from mindspore_zb.cli import main; "
              "sys.exit(main(['doctor']))")
    done = run("-c", script)
    assert done.returncode == 1 and done.stdout.count("\n") == 1
    assert "cannot be imported: ModuleNotFoundError" in done.stdout
