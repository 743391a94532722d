"""Each example runs as a user would run it, and says what it promises."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = ROOT / "examples" / "02_train_in_a_pipeline.py"
MEMORY_HUNT = ROOT / "examples" / "04_memory_hunt.py"
LANGUAGE_MODEL = ROOT / "examples" / "01_train_language_model.py"
RECOMPUTE = ROOT / "examples" / "03_recompute_and_accumulate.py"


def run(script, *arguments, folder, without=()):
    """Run an example in ``folder``; ``without`` names packages that it is not to find."""
    for name in without:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name}')", encoding="utf-8")
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run([sys.executable, str(script), *arguments], cwd=folder, capture_output=True, text=True,
                          timeout=500, check=False, env={**os.environ, "PYTHONPATH": path})


@pytest.fixture(name="small_text")
def fixture_small_text(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "lines.txt").write_text("the cat sat on the mat\n" * 100, encoding="utf-8")
    return tmp_path / "text"


@pytest.mark.slow
def test_language_model(tmp_path, small_text):
    done = run(LANGUAGE_MODEL, "--steps", "4", "--width", "16", "--blocks", "2", "--text", str(small_text),
               folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "step    4 of 4" in done.stdout
    split = [line.split() for line in done.stdout.split("Loss of")[1].splitlines()[4:8]]
    assert [line[0] for line in split] == ["1", "2", "3", "4"]
    assert all(abs(float(line[1]) - float(line[2])) <= 1e-4 * float(line[2]) for line in split)
    assert float(split[-1][1]) < float(split[0][1])
    assert "equal within 0.0001" in done.stdout and "NOT EQUAL" not in done.stdout
    assert "(dx + dw) / unsplit backward = " in done.stdout


@pytest.mark.slow
def test_language_model_memory_falls_to_nothing(tmp_path, small_text):
    done = run(LANGUAGE_MODEL, "--steps", "3", "--width", "32", "--blocks", "2", "--text", str(small_text),
               folder=tmp_path, without=["rich"])
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("Memory of one micro-batch of stage 2"):]
    lines = [line for line in table.splitlines()[4:] if line.endswith("%")]
    saved = [float(line.split()[-4]) for line in lines]
    assert lines[0].startswith("forward") and lines[1].startswith("dx") and lines[2].startswith("dw of")
    assert saved == sorted(saved, reverse=True), "nothing grows after the forward"
    assert saved[1] < saved[0] / 2, "dx frees most of it"
    assert saved[-1] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("arguments, reason", [
    (["--steps", "0"], "--steps"), (["--width", "30"], "multiple of 4"), (["--blocks", "two"], "'two'"),
    (["--text", "nowhere"], "no text to train on"), (["--colour"], "--colour")])
def test_language_model_refuses_bad_arguments(tmp_path, arguments, reason):
    done = run(LANGUAGE_MODEL, *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and reason in done.stderr


@pytest.mark.slow
def test_pipeline(tmp_path, small_text):
    done = run(PIPELINE, "--steps", "4", "--width", "16", "--blocks", "2", "--text", str(small_text), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "equal within 0.0001" in done.stdout and "NOT EQUAL" not in done.stdout
    assert "1f1b / zb-h1 = " in done.stdout
    for name in ("1f1b", "zb-h1"):
        events = json.loads((tmp_path / f"pipeline_{name}.json").read_text(encoding="utf-8"))["traceEvents"]
        assert {event["pid"] for event in events} == {0, 1}
        assert sum(event.get("cat") in ("F", "B", "W") for event in events) == 2 * 4 * 3
        assert (tmp_path / f"pipeline_{name}.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("arguments, reason", [
    (["--steps", "2"], "--steps"), (["--width", "30"], "multiple of 4"), (["--text", "nowhere"], "no text to train on"),
    (["--pictures", "nowhere"], "no folder nowhere")])
def test_pipeline_refuses_bad_arguments(tmp_path, arguments, reason):
    done = run(PIPELINE, *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and reason in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("without", [[], ["rich"]])
def test_recompute_and_accumulate(tmp_path, without):
    done = run(RECOMPUTE, folder=tmp_path, without=without)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count("equal to the bit") == 3 and "NOT EQUAL" not in done.stdout
    shares = {line.split()[0]: float(line.split()[3]) for line in done.stdout.splitlines() if "to the bit" in line}
    assert shares["every"] < shares["full"] < shares["selective"] < 1
    assert "equal within 1e-05 of the whole batch" in done.stdout


def test_memory_hunt(tmp_path):
    done = run(MEMORY_HUNT, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Trainer.history" in done.stdout and "GradFunction       5     0-4   983040" in done.stdout
    assert "ChangedTensorError: the weight down.weight, saved for the backward of Stage.down (Dense), MatMul at " \
        "04_memory_hunt.py:" in done.stdout
    assert done.stdout.count("Mended.") == 2 and "the same to the bit" in done.stdout
