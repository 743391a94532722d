"""A worker of test_pipeline.py: something goes wrong on rank 1, in the third step.

    pipeline_faults.py kill | raise | leave

The rank itself is a child process, so that `msrun`, which kills all workers when one fails, sees none fail: every rank
has to end by itself. The parent prints how, and how many seconds after the fault.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FAULT_STEP, FAULT_MICROBATCH = 2, 1


def parent(kind: str) -> None:
    """Run the rank, and say how it ended."""
    done = subprocess.run([sys.executable, __file__, kind, "inner"], check=False)
    ended = time.time()
    fault = Path(f"fault_{kind}")
    deadline = time.time() + 60
    while not fault.exists() and time.time() < deadline:
        time.sleep(0.1)
    seconds = ended - float(fault.read_text()) if fault.exists() else float("nan")
    print(f"rank {os.environ['RANK_ID']} ended with {done.returncode} after {seconds:.1f} s", flush=True)


def inner(kind: str) -> None:
    """The rank."""
    from mindspore import nn, ops

    from mindspore_zb.pipeline import Pipeline, Stage, connect
    from mindspore_zb.schedule import generate

    end = connect()
    rank, last = end.rank, end.ranks - 1
    count = {"step": 0, "forward": 0}

    def note_fault() -> None:
        Path(f"fault_{kind}").write_text(str(time.time()))

    def stage(x):
        if rank == 1 and count["step"] == FAULT_STEP:
            count["forward"] += 1
            if count["forward"] == FAULT_MICROBATCH + 1:
                note_fault()
                if kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if kind == "raise":
                    raise ArithmeticError("the stage gave up")
        return ops.mean(layer(x)) if rank == last else layer(x)

    layer = nn.Dense(4, 4)
    schedule = generate("zb-h1", stages=end.ranks, microbatches=4)
    pipeline = Pipeline(schedule, Stage(stage, layer.trainable_params()), end)
    for step in range(4):
        count["step"] = step
        if kind == "leave" and rank == 1 and step == FAULT_STEP:
            note_fault()
            end.close()
            return
        pipeline.step(inputs=(ops.ones((8, 4)),) if rank == 0 else ())
        print(f"rank {rank}: step {step} done", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        parent(sys.argv[1])
    else:
        inner(sys.argv[1])
