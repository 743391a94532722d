"""Schedules as text and as CSV: what is written is read back, and what cannot be read is told."""

import pytest
from hypothesis import given, strategies as st

from mindspore_zb.errors import ScheduleError
from mindspore_zb.schedule import Schedule, generate, load_csv, parse_schedule, save_csv

from .strategies import examples, schedules

NAMES = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12).map(
    lambda name: " ".join(name.replace("\0", "").splitlines()).strip())
"""One line without blanks at its ends."""


@examples(100)
@given(schedules(), NAMES)
def test_text_round_trip(schedule, name):
    schedule = Schedule(name, schedule.microbatches, schedule.actions, schedule.chunks)
    assert parse_schedule(str(schedule)) == schedule


@examples(60)
@given(schedule=schedules(), name=NAMES)
def test_csv_round_trip(tmp_path_factory, schedule, name):
    schedule = Schedule(name, schedule.microbatches, schedule.actions, schedule.chunks)
    path = tmp_path_factory.mktemp("csv") / "schedule.csv"
    save_csv(schedule, path)
    assert load_csv(path) == schedule


@pytest.mark.parametrize("name", [" a", "a ", "\ta", "a\n", "a\nb", "a\r\nb", "a\u2028b", "a\x85b", "a\x0cb", " "])
def test_names_that_could_not_be_read_back_are_refused(name):
    with pytest.raises(ScheduleError, match="^name is one line without blanks at its ends, not "):
        Schedule(name, 1, ((),))


@pytest.mark.parametrize("name", ["", "a b", "a\tb", "a: 1 rank, 1 micro-batch, 1 chunk", "\u00e9"])
def test_names_that_are_read_back(name):
    schedule = generate("1f1b", stages=2, microbatches=2)
    schedule = Schedule(name, 2, schedule.actions)
    assert parse_schedule(str(schedule)) == schedule


def test_a_csv_that_a_spreadsheet_padded(tmp_path):
    path = tmp_path / "schedule.csv"
    schedule = generate("zb-h1", stages=2, microbatches=2)
    save_csv(schedule, path)
    path.write_text(path.read_text().replace("\n", ",,\n").replace(",0F1", ", 0F1"))
    assert load_csv(path) == schedule


@pytest.mark.parametrize("text, message", [
    ("", "starts with a line such as"),
    ("zb-h1", "starts with a line such as 'zb-h1: 2 ranks, 4 micro-batches, 1 chunk', not with 'zb-h1'"),
    ("x: 1 ranks, 1 micro-batches, 1 chunk\nrank 1: 0F0", "a line that starts with 'rank 0:' is expected"),
    ("x: 2 ranks, 1 micro-batches, 1 chunk\nrank 0: 0F0", "the first line says 2 ranks, but 1 follow"),
    ("x: 1 ranks, 1 micro-batches, 1 chunk\nrank 0: 0F0 0X0", "rank 0: '0X0' is no action"),
    ("x: 1 ranks, 0 micro-batches, 1 chunk\nrank 0: 0F0", "a schedule of 0 micro-batches cannot be"),
])
def test_text_that_cannot_be_read(text, message):
    with pytest.raises(ScheduleError, match=message):
        parse_schedule(text)


@pytest.mark.parametrize("text, message", [
    ("", "is no schedule"), ("a,b\n", "is no schedule"), ("name,x,microbatches,y,chunks,1\n", "is no schedule"),
    ("name,x,microbatches,1,chunks\n", "is no schedule"),
    ("name,x,microbatches,1,chunks,1\nrank,1,0F0\n", "a line of rank 0 is expected"),
    ("name,x,microbatches,1,chunks,1\nrank,0,0F0,0Q0\n", "rank 0: '0Q0' is no action"),
])
def test_csv_that_cannot_be_read(tmp_path, text, message):
    (tmp_path / "schedule.csv").write_text(text)
    with pytest.raises(ScheduleError, match=message):
        load_csv(tmp_path / "schedule.csv")


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ScheduleError, match="cannot be read: No such file or directory"):
        load_csv(tmp_path / "none.csv")
    with pytest.raises(ScheduleError, match="cannot be written: No such file or directory"):
        save_csv(generate("1f1b", stages=1, microbatches=1), tmp_path / "none" / "schedule.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScheduleError, match="cannot be read"):
        load_csv(tmp_path / "binary.csv")
