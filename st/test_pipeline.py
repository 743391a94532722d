"""Pipelines in processes of their own. A launch takes long, so each checks many things."""

import os
import re
from pathlib import Path

import pytest

from st.launcher import run_under_msrun

WORKERS = Path(__file__).parent / "workers"
ROOT = Path(__file__).resolve().parents[1]
MOST_SECONDS = 20

pytestmark = [pytest.mark.platform_ascend910b, pytest.mark.cpu_linux, pytest.mark.allcards, pytest.mark.slow]


def launch(script, *arguments, workers, folder, timeout):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return run_under_msrun(WORKERS / script, *arguments, workers=workers, log_dir=folder / "logs", timeout=timeout,
                           environment={"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MS_NODE_TIMEOUT": "10"})


@pytest.mark.level0
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers, what, checks", [(2, "all", 46), (4, "some", 13)])
def test_values_of_all_schedules_and_stages(workers, what, checks, tmp_path):
    done = launch("pipeline_values.py", what, workers=workers, folder=tmp_path, timeout=600)
    assert done.exit_code == 0, done.report()
    for rank in range(workers):
        log = done.logs[f"worker_{rank}.log"]
        assert log.count(f"rank {rank}: checked ") == checks, done.report()
        assert f"rank {rank}: all checked" in log, done.report()


@pytest.mark.level0
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind, reason", [
    ("kill", "rank 1 ended without a word in stage 1, micro-batch 1, action 1F1"),
    ("raise", "rank 1, stage 1, micro-batch 1, action 1F1: ArithmeticError: the stage gave up")])
def test_all_ranks_end_when_one_fails(kind, reason, tmp_path):
    done = launch("pipeline_faults.py", kind, workers=3, folder=tmp_path, timeout=240)
    assert done.exit_code == 0, done.report()
    for rank in range(3):
        log = done.logs[f"worker_{rank}.log"]
        found = re.search(rf"rank {rank} ended with (-?\d+) after ([-.\d]+) s", log)
        assert found and found.group(1) != "0" and float(found.group(2)) < MOST_SECONDS, done.report()
        if rank != 1:
            place = rf"rank {rank}, stage {rank}, micro-batch \d, action {rank}\w+: stopped, as {re.escape(reason)}"
            assert re.search(place, log), done.report()
        elif kind == "raise":
            assert f"PipelineError: {reason}" in log, done.report()
    if kind == "kill":  # the scheduler, which runs the same program, does not take it for a failure to connect
        assert "this is msrun's scheduler, which ends as a rank has ended" in done.logs["scheduler.log"], done.report()


@pytest.mark.level1
@pytest.mark.timeout(300)
def test_a_rank_that_leaves_is_missed(tmp_path):
    done = launch("pipeline_faults.py", "leave", workers=2, folder=tmp_path, timeout=200)
    log = done.logs["worker_0.log"]
    found = re.search(r"rank 0 ended with (-?\d+) after ([-.\d]+) s", log)
    assert found and found.group(1) != "0" and float(found.group(2)) < MOST_SECONDS, done.report()
    assert re.search(r"rank 0, stage 0, micro-batch \d, action 0\w+: stopped, as rank 1 has left", log), done.report()
