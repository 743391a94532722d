"""What a step of a pipeline gives."""

from dataclasses import dataclass
from typing import Any, Iterable, List, Optional, Tuple

from mindspore_zb.checks import check_count, check_number, kind_of
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.schedule import Action

Entry = Tuple[int, Action, float, float]


@dataclass(frozen=True)
class StepResult:
    """One step of one rank.

    Attributes:
        rank: whose.
        loss: the mean of :attr:`losses`, a tensor; None on ranks without the last stage.
        losses: of the micro-batches, in order; empty on ranks without the last stage.
        entries: ``(rank, action, start, end)`` of every action in order, in seconds of the machine's clock, for
            pictures and traces. A send ends when it was handed over.
        held: for each action the pair (micro-batches of the rank's stages whose activations are all held, those of
            which only what dw needs is held), during the action.
        bytes_held: for each action the bytes of saved activations during it, if asked for; else empty.
    """

    rank: int
    loss: Optional[Any]
    losses: Tuple[Any, ...]
    entries: Tuple[Entry, ...]
    held: Tuple[Tuple[int, int], ...]
    bytes_held: Tuple[int, ...] = ()

    def peak_memory(self, m_b: float = 1.0, m_w: float = 0.5) -> float:
        """The most that the rank held at once, if a stage holds ``m_b`` for a micro-batch from F to B and ``m_w`` from
        B to W: comparable to the ``peak_memory`` of a simulation with these costs for each stage.

        Raises:
            ArgumentTypeError, ArgumentValueError: something else than finite numbers from 0.
        """
        m_b, m_w = check_number("m_b", m_b), check_number("m_w", m_w)
        return max((whole * m_b + rest * m_w for whole, rest in self.held), default=0.0)


def check_entries(entries: Iterable[Entry]) -> List[Entry]:
    """Raise unless these are ``(rank, action, start, end)``.

    >>> check_entries([(0, "0F0", 0.0, 1.0)])
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.ArgumentTypeError: entries[0][1] is an Action, not str
    """
    if isinstance(entries, (str, dict)) or not hasattr(entries, "__iter__"):
        raise ArgumentTypeError(f"entries is made of (rank, action, start, end), and is not {kind_of(entries)}")
    entries = list(entries)
    for place, entry in enumerate(entries):
        if not isinstance(entry, (tuple, list)) or len(entry) != 4:
            raise ArgumentTypeError(f"entries[{place}] is a tuple (rank, action, start, end), not {kind_of(entry)}"
                                    + (f" of {len(entry)}" if isinstance(entry, (tuple, list)) else ""))
        check_count(f"entries[{place}][0]", entry[0], least=0)
        if not isinstance(entry[1], Action):
            raise ArgumentTypeError(f"entries[{place}][1] is an Action, not {kind_of(entry[1])}")
        start, end = (check_number(f"entries[{place}][{number}]", entry[number]) for number in (2, 3))
        if start > end:
            raise ArgumentValueError(f"entries[{place}] ends at {end:g}, before it starts at {start:g}")
    return entries


def makespan(entries: Iterable[Entry]) -> float:
    """The longest time from the start of a rank's first computation to the end of its last one.

    Raises:
        ArgumentTypeError, ArgumentValueError: the entries are none.

    >>> makespan([(0, Action(0, "F", 0), 2.0, 3.0), (0, Action(0, "W", 0), 5.0, 6.5), (1, Action(1, "F", 0), 4.0, 5.0)])
    4.5
    """
    spans = {}
    for rank, action, start, end in check_entries(entries):
        if action.computes:
            first, last = spans.get(rank, (start, end))
            spans[rank] = min(first, start), max(last, end)
    return max((last - first for first, last in spans.values()), default=0.0)
