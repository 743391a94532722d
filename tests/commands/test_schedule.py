"""``python -m mindspore_zb schedule``: what it prints and writes, and how it refuses bad input."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mindspore_zb.cli import main
from mindspore_zb.schedule import generate, load_csv, parse_schedule, validate

ROOT = Path(__file__).resolve().parents[2]
ROW = ["-p", "8", "-m", "24", "--f", "18.522", "--b", "18.086", "--w", "9.337", "--comm", "0.601"]


def table(text):
    """The lines of the table as words, by their first."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}


def refusal(capsys, *arguments):
    """The line on stderr with which arguments are refused, with exit code 2."""
    try:
        code = main(["schedule", *arguments])
    except SystemExit as stop:
        code = stop.code
    output, error = capsys.readouterr()
    assert code == 2 and output == ""
    assert error.count("\n") == 1 and error.endswith("\n") and error.startswith("mindspore_zb schedule: ")
    return error


def test_the_table_of_the_published_row(capsys):
    assert main(["schedule", *ROW]) == 0
    rows = table(capsys.readouterr().out)
    assert rows["schedule"] == "stages per rank bubble rate makespan peak memory".split()
    assert rows["1f1b"] == ["1", "0.2431", "1456.75", "8"]
    assert rows["zb-h1"][1] == "0.1585" and rows["zb-h2"][1] == "0.1083"
    assert float(rows["auto-2x"][1]) <= 0.05


def test_a_memory_limit_says_what_fits(capsys):
    assert main(["schedule", "-p", "4", "-m", "8", "--memory-limit", "4", "--chunks", "1"]) == 0
    rows = table(capsys.readouterr().out)
    assert {name: rows[name][-1] for name in ("1f1b", "zb-h1", "zb-h2", "auto")} == {
        "1f1b": "yes", "zb-h1": "yes", "zb-h2": "no", "auto": "yes"}
    assert "zb-v" not in rows


def test_costs_of_each_rank(capsys):
    assert main(["schedule", "-p", "2", "-m", "4", "--f", "1,3", "--m-b", "2", "--m-w", "1"]) == 0
    rows = table(capsys.readouterr().out)
    assert rows["1f1b"][3] == "4"
    # F, B and W of rank 1 without a pause, the F of rank 0 before and its B and W after.
    assert float(rows["1f1b"][2]) == 4 * 5 + 3


def test_one_schedule_is_printed_drawn_traced_and_saved(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    paths = {name: str(tmp_path / f"run.{name}") for name in ("csv", "svg", "json")}
    assert main(["schedule", "-p", "2", "-m", "4", "--show", "zb-h1", "--text", "--csv", paths["csv"], "--picture",
                 paths["svg"], "--trace", paths["json"], "--unit", "s"]) == 0
    output = capsys.readouterr().out
    schedule = generate("zb-h1", stages=2, microbatches=4)
    start = output.index("zb-h1: 2 ranks")
    assert parse_schedule("\n".join(output[start:].splitlines()[:3])) == load_csv(paths["csv"]) == schedule
    events = json.loads(Path(paths["json"]).read_text())["traceEvents"]
    assert {"name": "0F0", "cat": "F", "ph": "X", "ts": 0.0, "dur": 1e6, "pid": 0, "tid": 0,
            "args": {"stage": 0, "microbatch": 0}} in events
    assert Path(paths["svg"]).read_bytes().startswith(b"<?xml")
    assert all(f"zb-h1 written to {path}" in output for path in paths.values())


def test_a_saved_schedule_is_compared(tmp_path, capsys):
    path = str(tmp_path / "mine.csv")
    assert main(["schedule", "-p", "3", "-m", "5", "--show", "zb-h2", "--csv", path]) == 0
    capsys.readouterr()
    assert main(["schedule", "-p", "3", "-m", "5", "--load", path]) == 0
    rows = table(capsys.readouterr().out)
    assert rows["mine.csv"] == rows["zb-h2"]
    validate(load_csv(path))
    assert "is of 3 ranks and 5 micro-batches: give -p 3 -m 5" in refusal(capsys, "--load", path)


def test_a_saved_schedule_that_cannot_run_is_refused(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    assert main(["schedule", "-p", "2", "-m", "2", "--show", "zb-h1", "--csv", str(path)]) == 0
    path.write_text(path.read_text().replace("0B1,", ""))
    capsys.readouterr()
    assert "rank 0 never runs 0B1" in refusal(capsys, "-p", "2", "-m", "2", "--load", str(path))


@pytest.mark.parametrize("arguments, message", [
    (["-p", "0"], "argument -p/--stages: 0 is below 1"),
    (["-m", "two"], "argument -m/--microbatches: 'two' is no integer"),
    (["--f", "x"], "argument --f: 'x' is no number, and no numbers with commas between them"),
    (["--f", "1,2"], "f has 2 numbers for 4 ranks: give one number, or one for each rank"),
    (["--w=-1"], "w is made of numbers from 0 to 1e+100, and -1.0 is not one"),
    (["--memory-limit", "0"], "argument --memory-limit: '0' is no number above 0"),
    (["--memory-limit", "1,2"], "argument --memory-limit: '1,2' is no number above 0"),
    (["--memory-limit", "0.5"], "no schedule fits a memory limit of 0.5"),
    (["--chunks", "3"], "chunks is 1 or 2, not 3"),
    (["--show", "gpipe"], "there is no schedule 'gpipe' here; there are 1f1b, zb-h1, zb-h2, zb-v, auto-1x, auto-2x"),
    (["--picture", "run.pdf"], "path must end in .png or .svg, but is 'run.pdf'"),
    (["--trace", "missing/run.json"], "argument --trace: 'missing/run.json' cannot be written: No such file or directory"),
    (["--csv", "missing/run.csv"], "argument --csv: 'missing/run.csv' cannot be written: No such file or directory"),
    (["--load", "missing.csv"], "'missing.csv' cannot be read: No such file or directory"),
    (["--unit", "h"], "argument --unit: invalid choice: 'h'"),
    (["-p", "1000000"], "1000000 ranks, 8 micro-batches and 2 chunks make a schedule of 48000000 computations, but 60000 "
     "are the most that is searched among: leave out the search (--names 1f1b,zb-h1,zb-h2,zb-v), or take fewer"),
    (["-m", "40000", "--names", "zb-v"], "make a schedule of 960000 computations, but 500000 are the most that is made"),
    (["-m", "9" * 5000], "is no integer"),
    (["--memory-limit", "inf"], "argument --memory-limit: 'inf' is no number above 0"),
    (["--f", "nan"], "f is made of numbers from 0 to 1e+100, and nan is not one"),
    (["--f", "1,1,1"], "f has 3 numbers for 4 ranks: give one number, or one for each rank"),
    (["--f", "1,"], "argument --f: '1,' is no number"),
    (["--names", "gpipe"], "names is made of 1f1b, zb-h1, zb-h2, zb-v, auto, and 'gpipe' is none of them"),
    (["--names", "zb-v", "--chunks", "1"], "zb-v has two chunks on each rank"),
    (["--names", "zb-h1", "--show", "1f1b"], "there is no schedule '1f1b' here; there are zb-h1"),
    (["--gpus", "8"], "unrecognized arguments: --gpus 8 (see mindspore_zb schedule --help)"),
])
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--picture", "--csv", "--trace"])
@pytest.mark.parametrize("path", ["missing/run.svg", "", "."])
def test_what_cannot_be_written_is_told_before_anything_is_computed(option, path, capsys):
    assert "cannot be written" in refusal(capsys, option, path)


def test_chosen_schedules_without_a_search(capsys, monkeypatch):
    monkeypatch.setattr("mindspore_zb.schedule_table.search", None)
    assert main(["schedule", "-p", "2", "-m", "4", "--names", "zb-h1,1f1b"]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[2].startswith("1f1b") and output.splitlines()[3].startswith("zb-h1")
    assert len(output.splitlines()) == 4, "and no note about a search"


def test_one_of_a_thing_is_said_in_the_singular(tmp_path, capsys):
    assert main(["schedule", "-p", "1", "-m", "1", "--show", "1f1b", "--text", "--csv", str(tmp_path / "one.csv")]) == 0
    output = capsys.readouterr().out
    assert output.startswith("1 rank, 1 micro-batch\n") and "1f1b: 1 rank, 1 micro-batch, 1 chunk\n" in output
    assert "1 ranks" not in output and "1 micro-batches" not in output
    assert "is of 1 rank and 1 micro-batch: give -p 1 -m 1" in refusal(capsys, "--load", str(tmp_path / "one.csv"))


def test_what_takes_a_while_is_told_beforehand_in_a_pipe_too(capsys, monkeypatch):
    monkeypatch.setattr("mindspore_zb.commands.schedule.LARGE", 24)
    assert main(["schedule", "-p", "2", "-m", "2"]) == 0
    told = capsys.readouterr()
    assert told.err == "mindspore_zb schedule: schedules of 24 computations take a while; Ctrl-C ends it\n"
    assert "24 computations" not in told.out
    assert main(["schedule", "-p", "1", "-m", "2"]) == 0
    assert capsys.readouterr().err == ""


def test_ctrl_c_is_one_line():
    process = subprocess.Popen([sys.executable, "-m", "mindspore_zb", "schedule", "-p", "20", "-m", "400"], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        first = process.stderr.readline()
        assert "schedules of 48000 computations take a while" in first
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, output, error) == (130, "", "mindspore_zb schedule: interrupted\n")


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_as_a_module_it_needs_no_mindspore_and_prints_plain_text_in_a_pipe():
    script = ("import sys; from mindspore_zb.cli import main; code = main(['schedule', '-p', '2', '-m', '2']); "
              "print([name for name in sys.modules if name.split('.')[0] in ('mindspore', 'rich', 'numpy')]); "
              "sys.exit(code)")
    done = python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"
    assert "\x1b" not in done.stdout
    assert python("-m", "mindspore_zb", "schedule", "-p", "2", "-m", "2").stdout == "".join(
        line + "\n" for line in done.stdout.splitlines()[:-1])


def test_on_a_terminal_it_is_drawn_by_rich(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["schedule", "-p", "2", "-m", "2"]) == 0
    output = capsys.readouterr().out
    assert "─" in output and "0.3333" in output
