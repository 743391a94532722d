"""Random schedules against a simulation that only lets a clock tick, and damaged texts that are read or refused."""

import csv
import io
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import assume, given, strategies as st

from mindspore_zb.errors import ScheduleError
from mindspore_zb.schedule import Action, Costs, Schedule, load_csv, parse_schedule, save_csv, simulate, validate
from mindspore_zb.schedule.communication import with_communication

from .oracle import place
from .strategies import examples, schedules


@st.composite
def any_order(draw):
    """Any order that can be run, not of the catalogue: always something whose needs are done is run next."""
    ranks, chunks, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    parts = draw(st.integers(1, 2))
    stages = ranks * chunks
    programs = [[] for _ in range(ranks)]
    done, todo = set(), []
    for stage in range(stages):
        for microbatch in range(microbatches):
            todo += [Action(stage, "F", microbatch), Action(stage, "B", microbatch)]
            todo += [Action(stage, "W", microbatch, part, parts) for part in range(parts)]

    def ready(action):
        stage, microbatch = action.stage, action.microbatch
        needs = {"F": {("F", stage - 1)}, "B": {("F", stage), ("B", stage + 1)}, "W": {("B", stage)}}[action.kind]
        return all((kind, number, microbatch) in done for kind, number in needs if 0 <= number < stages)

    while todo:
        action = draw(st.sampled_from([action for action in todo if ready(action)]))
        todo.remove(action)
        done.add((action.kind, action.stage, action.microbatch))
        programs[place(action.stage, ranks)].append(action)
    return with_communication("any", microbatches, programs, chunks)


@st.composite
def shaken(draw):
    """Such an order in which neighbouring actions change places, wherever it can still be run."""
    schedule = draw(any_order())
    for _ in range(draw(st.integers(0, 12))):
        rank = draw(st.integers(0, schedule.ranks - 1))
        actions = list(schedule.actions[rank])
        spot = draw(st.integers(0, len(actions) - 1))
        actions[spot - 1], actions[spot] = actions[spot], actions[spot - 1]
        other = replace(schedule, actions=tuple(tuple(actions) if number == rank else program
                                                for number, program in enumerate(schedule.actions)))
        try:
            validate(other)
        except ScheduleError:
            continue
        schedule = other
    return schedule


class Clock:
    """Ranks that look at every tick whether they can go on. Knows what sends and receives mean, and nothing else."""

    def __init__(self, schedule, times, hop):
        self.schedule, self.times, self.hop = schedule, times, hop
        self.waiting = [deque(program) for program in schedule.actions]
        self.busy_until = [0] * schedule.ranks
        self.spans = [[None, 0] for _ in range(schedule.ranks)]
        self.mail = []  # (arrives at, from, to, action)
        self.starts = {}

    def run(self, ticks):
        for now in range(ticks):
            moved = True
            while moved:  # what takes no time happens within the tick
                moved = any([self.step(rank, now) for rank in range(self.schedule.ranks)])
            if not any(self.waiting):
                return [end - (start or 0) for start, end in self.spans]
        raise AssertionError("the clock ran out")

    def step(self, rank, now):
        if not self.waiting[rank] or self.busy_until[rank] > now:
            return False
        action = self.waiting[rank][0]
        what = action.kind.split("_")[-1]
        if action.kind.startswith("SEND"):
            to = place(action.stage + (1 if what == "F" else -1), self.schedule.ranks)
            self.mail.append((now + self.hop, rank, to, (what, action.stage, action.microbatch)))
        elif action.kind.startswith("RECV"):
            sender = action.stage - (1 if what == "F" else -1)
            letter = next((item for item in self.mail if item[1:3] == (place(sender, self.schedule.ranks), rank)), None)
            if letter is None or letter[0] > now:
                return False
            assert letter[3] == (what, sender, action.microbatch)
            self.mail.remove(letter)
        else:
            length = self.times[action.kind] // action.parts
            self.busy_until[rank] = now + length
            self.starts[action] = now
            span = self.spans[rank]
            span[0] = now if span[0] is None else span[0]
            span[1] = now + length
        self.waiting[rank].popleft()
        return True


@examples(120)
@given(schedule=shaken(), f=st.integers(0, 3), b=st.integers(0, 3), w=st.integers(0, 2), hop=st.integers(0, 2))
def test_times_are_those_of_a_ticking_clock(schedule, f, b, w, hop):
    validate(schedule)
    times = {"F": f, "B": b, "W": 2 * w}  # halves of a W take whole ticks
    chunks = schedule.chunks
    clock = Clock(schedule, times, hop)
    spans = clock.run(2 + sum(times.values()) * schedule.stages * schedule.microbatches
                      + 4 * hop * schedule.stages * schedule.microbatches)
    run = simulate(schedule, Costs(f=f * chunks, b=b * chunks, w=2 * w * chunks, comm=hop))
    assert list(run.spans) == spans and run.makespan == max(spans)
    begin = min(clock.starts.values())
    assert {timed.action: timed.start - begin for timeline in run.timeline for timed in timeline
            if timed.action.computes} == {action: start - begin for action, start in clock.starts.items()}


def damage(data, text, alphabet="0123456789FBWSENDRCV_./:, \n\t\"\0é\u2028x"):
    """The text with some places changed, repeated or missing."""
    for _ in range(data.draw(st.integers(1, 6))):
        spot = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 8))
        kind = data.draw(st.sampled_from(["cut", "insert", "repeat", "swap", "end"]))
        if kind == "cut":
            text = text[:spot] + text[spot + length:]
        elif kind == "insert":
            text = text[:spot] + data.draw(st.text(alphabet, max_size=8)) + text[spot:]
        elif kind == "repeat":
            text = text[:spot] + text[spot:spot + length] * 3 + text[spot + length:]
        elif kind == "swap":
            text = text[:spot] + text[spot + length:spot + 2 * length] + text[spot:spot + length] + text[spot + 2 * length:]
        else:
            text = text[:spot]
    return text


def use(schedule):
    """Whatever was read can be looked at: it is refused in one line, or it runs."""
    for work in (validate, lambda one: simulate(one, Costs())):
        try:
            work(schedule)
        except ScheduleError as error:
            assert "\n" not in str(error).replace(schedule.name, "")


@examples(300)
@given(schedule=schedules(ranks=3, microbatches=3), data=st.data())
def test_a_damaged_text_is_read_as_what_it_says_or_refused(schedule, data):
    text = damage(data, str(schedule))
    try:
        found = parse_schedule(text)
    except ScheduleError as error:
        assert len(str(error)) < 400
        return
    assert parse_schedule(str(found)) == found
    use(found)


@examples(300)
@given(schedule=schedules(ranks=3, microbatches=3), data=st.data())
def test_a_damaged_file_is_read_as_what_it_says_or_refused(tmp_path_factory, schedule, data):
    path = tmp_path_factory.mktemp("fuzz") / "schedule.csv"
    save_csv(schedule, path)
    path.write_text(damage(data, path.read_text(encoding="utf-8")), encoding="utf-8")
    if data.draw(st.booleans()):
        content = bytearray(path.read_bytes())
        assume(content)
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
    try:
        found = load_csv(path)
    except ScheduleError as error:
        assert len(str(error)) < 600
        return
    save_csv(found, path)
    assert load_csv(path) == found
    use(found)


def test_a_file_with_the_mark_of_a_spreadsheet_is_read(tmp_path):
    path = tmp_path / "schedule.csv"
    schedule = Schedule("mine", 1, (tuple(map(Action.parse, ("0F0", "0B0", "0W0"))),))
    save_csv(schedule, path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_csv(path) == schedule


def test_a_line_of_very_many_empty_cells_is_read_at_once(tmp_path):
    path = tmp_path / "schedule.csv"
    text = io.StringIO()
    csv.writer(text).writerows([["name", "mine", "microbatches", 1, "chunks", 1], ["rank", 0, "0F0", "0B0", "0W0"]])
    path.write_text(text.getvalue().replace("0W0", "0W0" + "," * 1_000_000))
    assert len(load_csv(path).actions[0]) == 3


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "schedule.csv"
    path.write_text("mine")
    with pytest.raises(ScheduleError, match="cannot be written: 'utf-8' codec can't encode"):
        save_csv(Schedule("\ud800", 1, ((),)), path)
    assert path.read_text() == "mine"
