"""Traces in the format of the Perfetto and Chrome viewers."""

import json

import pytest

from mindspore_zb.draw.trace import trace_of, write_trace
from mindspore_zb.errors import ArgumentValueError
from mindspore_zb.schedule import Costs, generate, simulate


def run():
    return simulate(generate("zb-v", stages=2, microbatches=3), Costs(1.5, 1, 0.5, 0.25))


def test_the_file_holds_what_the_format_asks_for(tmp_path):
    path = tmp_path / "trace.json"
    write_trace(run().entries(), path, microseconds_per_unit=1000)
    trace = json.loads(path.read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["cat"], str)
        else:
            assert event["name"] in ("process_name", "process_sort_index", "thread_name") and event["args"]


def test_every_action_is_there_in_microseconds():
    entries = run().entries()
    events = [event for event in trace_of(entries, 1000)["traceEvents"] if event["ph"] == "X"]
    assert sorted((event["pid"], event["name"], event["ts"], event["dur"]) for event in events) == sorted(
        (rank, str(action), start * 1000, (end - start) * 1000) for rank, action, start, end in entries)


def test_ranks_and_threads_have_names():
    metadata = [event for event in trace_of(run().entries())["traceEvents"] if event["ph"] == "M"]
    assert [(event["pid"], event["args"]["name"]) for event in metadata if event["name"] == "process_name"] == [
        (0, "rank 0"), (1, "rank 1")]
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in metadata
               if event["name"] == "thread_name"}
    for event in trace_of(run().entries())["traceEvents"]:
        if event["ph"] == "X":
            communicates = "SEND" in event["name"] or "RECV" in event["name"]
            assert threads[event["pid"], event["tid"]] == ("communication" if communicates else "computation")


def test_measured_times_start_at_zero():
    events = trace_of([(0, "0F0", 1e9 + 1, 1e9 + 2), (1, "1F0", 1e9 + 3, 1e9 + 4)], 1e6)["traceEvents"]
    assert [(event["ts"], event["dur"]) for event in events if event["ph"] == "X"] == [(0, 1e6), (2e6, 1e6)]


def test_what_cannot_be_used(tmp_path):
    with pytest.raises(ArgumentValueError, match="cannot be written: No such file or directory"):
        write_trace(run().entries(), tmp_path / "missing" / "trace.json")
    with pytest.raises(ArgumentValueError, match="entries holds nothing to draw"):
        write_trace([], tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())
