"""What timelines are drawn from: plain data, simulated or measured."""

import re
from dataclasses import dataclass
from typing import Any, Iterable, List, Tuple

from mindspore_zb.errors import ArgumentValueError

_LABEL = re.compile(r"(\d+)(F|B|W|SEND_F|SEND_B|RECV_F|RECV_B)(\d+)(?:\.(\d+)/\d+)?", re.ASCII)


@dataclass(frozen=True)
class Span:
    """Something that a rank did from ``start`` to ``end``; ``label`` is as actions of schedules print: ``2F0``."""

    rank: int
    label: str
    stage: int
    kind: str
    microbatch: int
    start: float
    end: float


def read_spans(entries: Iterable[Tuple[int, Any, float, float]]) -> List[Span]:
    """Entries ``(rank, action or its text, start, end)`` as spans in the order of their start, the first at 0.

    Raises:
        ArgumentValueError: no entries, an entry that ends before it starts, or a label that is no action.

    >>> read_spans([(0, "0F1", 7.0, 9.0)])
    [Span(rank=0, label='0F1', stage=0, kind='F', microbatch=1, start=0.0, end=2.0)]
    """
    entries = [(rank, str(action), float(start), float(end)) for rank, action, start, end in entries]
    if not entries:
        raise ArgumentValueError("entries holds nothing to draw")
    first = min(start for _, _, start, _ in entries)
    spans = []
    for rank, label, start, end in entries:
        found = _LABEL.fullmatch(label)
        if found is None:
            raise ArgumentValueError(f"entries holds {label!r}, which is no action such as 2F0, 2W0.1/3 or 2SEND_F0")
        if not start <= end:
            raise ArgumentValueError(f"{label} on rank {rank} ends at {end:g}, before it starts at {start:g}")
        stage, kind, microbatch, _ = found.groups()
        spans.append(Span(rank, label, int(stage), kind, int(microbatch), start - first, end - first))
    return sorted(spans, key=lambda span: span.start)
