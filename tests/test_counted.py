"""One of a thing is called otherwise than several."""

import re
from pathlib import Path

import pytest

from mindspore_zb.counted import counted
from mindspore_zb.errors import ZeroBubbleError
from mindspore_zb.schedule import Costs, Schedule, generate, parse_schedule

PACKAGE = Path(__file__).resolve().parents[1] / "mindspore_zb"
ALWAYS_SEVERAL = r"\{[^{}]+\} (?:ranks|micro-batches|chunks|numbers|stages|pairs)\b"


@pytest.mark.parametrize("number, thing, text", [
    (0, "rank", "0 ranks"), (1, "rank", "1 rank"), (2, "rank", "2 ranks"), (1, "micro-batch", "1 micro-batch"),
    (3, "micro-batch", "3 micro-batches"), (1, "equal micro-batch", "1 equal micro-batch")])
def test_counted(number, thing, text):
    assert counted(number, thing) == text


@pytest.mark.parametrize("path", [path for folder in ("schedule", "pipeline", "commands") for path in
                                  sorted((PACKAGE / folder).glob("*.py"))] + [PACKAGE / "schedule_table.py"],
                         ids=lambda path: path.name)
def test_no_message_writes_several_behind_any_number(path):
    assert not re.findall(ALWAYS_SEVERAL, path.read_text(encoding="utf-8"))


def test_schedules_print_and_are_read_in_both_ways():
    one = generate("1f1b", stages=1, microbatches=1)
    assert str(one).splitlines()[0] == "1f1b: 1 rank, 1 micro-batch, 1 chunk"
    assert parse_schedule(str(one)) == one
    assert parse_schedule(str(one).replace("1 rank, 1 micro-batch, 1 chunk", "1 ranks, 1 micro-batches, 1 chunks")) == one


@pytest.mark.parametrize("work, message", [
    (lambda: Costs(f=[1]).stage_costs(2), "f has 1 number for 2 ranks"),
    (lambda: Costs(f=[1, 2]).stage_costs(1), "f has 2 numbers for 1 rank:"),
    (lambda: Costs(comm=[1]).stage_costs(1), "comm has 1 number, but 1 rank has 0 pairs of neighbours"),
    (lambda: Costs(f=[[1, 2]]).stage_costs(1, 3), "f of rank 0 has 2 numbers for 3 chunks"),
    (lambda: parse_schedule("x: 1 rank, 1 micro-batch, 1 chunk"), "the first line says 1 rank, but 0 follow"),
    (lambda: parse_schedule("x: 2 ranks, 1 micro-batch, 1 chunk\nrank 0:"), "says 2 ranks, but 1 follows"),
    (lambda: Schedule("x", 1, ((),)).stages_of(1), "rank 1 is not there: there is 1 rank, counted from 0")])
def test_messages(work, message):
    with pytest.raises(ZeroBubbleError, match=message):
        work()
