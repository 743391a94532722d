"""A run of a pipeline as a trace file for the viewers of Perfetto and Chrome.

Source: "Trace Event Format", the JSON object format with complete events ("X") and metadata events ("M").
"""

import json
import os
from typing import Any, Dict, Iterable, List, Tuple

from mindspore_zb.draw.spans import Span, read_spans
from mindspore_zb.errors import ArgumentValueError

COMPUTATION, COMMUNICATION = 0, 1
THREADS = ((COMPUTATION, "computation"), (COMMUNICATION, "communication"))


def write_trace(entries: Iterable[Tuple[int, Any, float, float]], path: Any, *,
                microseconds_per_unit: float = 1e6) -> None:
    """Write a simulated or measured run as a trace, to be opened at ui.perfetto.dev or chrome://tracing.

    Args:
        entries: ``(rank, action, start, end)``; the action itself or its text, such as ``2F0``.
        path: where to, by custom a name that ends in .json.
        microseconds_per_unit: of the times; 1e6 for seconds, 1e3 for milliseconds.

    Raises:
        ArgumentValueError: the entries cannot be used, or the file cannot be written.
    """
    text = json.dumps(trace_of(entries, microseconds_per_unit), indent=None, separators=(",", ":"))
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ArgumentValueError(f"path {os.fspath(path)!r} cannot be written: {error.strerror or error}") from error


def trace_of(entries: Iterable[Tuple[int, Any, float, float]], microseconds_per_unit: float = 1e6) -> Dict[str, Any]:
    """The trace as data: a process for each rank, with a thread of computation and one of communication.

    >>> trace_of([(0, "0F3", 0.5, 0.75)])["traceEvents"][-1]["dur"]
    250000.0
    """
    spans = read_spans(entries)
    events: List[Dict[str, Any]] = []
    for rank in sorted({span.rank for span in spans}):
        events.append(_metadata("process_name", rank, COMPUTATION, {"name": f"rank {rank}"}))
        events.append(_metadata("process_sort_index", rank, COMPUTATION, {"sort_index": rank}))
        events += [_metadata("thread_name", rank, thread, {"name": name}) for thread, name in THREADS]
    events += [_complete(span, microseconds_per_unit) for span in spans]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _metadata(name: str, rank: int, thread: int, args: Dict[str, Any]) -> Dict[str, Any]:
    return {"name": name, "ph": "M", "pid": rank, "tid": thread, "args": args}


def _complete(span: Span, scale: float) -> Dict[str, Any]:
    thread = COMPUTATION if span.kind in ("F", "B", "W") else COMMUNICATION
    return {"name": span.label, "cat": span.kind, "ph": "X", "ts": span.start * scale,
            "dur": (span.end - span.start) * scale, "pid": span.rank, "tid": thread,
            "args": {"stage": span.stage, "microbatch": span.microbatch}}
