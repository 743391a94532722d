"""What a step of a pipeline gives."""

from dataclasses import dataclass
from typing import Any, Iterable, Optional, Tuple

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
        B to W: comparable to the ``peak_memory`` of a simulation with these costs for each stage."""
        return max((whole * m_b + rest * m_w for whole, rest in self.held), default=0.0)


def makespan(entries: Iterable[Tuple[int, Any, float, float]]) -> float:
    """The longest time from the start of a rank's first computation to the end of its last one.

    >>> makespan([(0, Action(0, "F", 0), 2.0, 3.0), (0, Action(0, "W", 0), 5.0, 6.5), (1, Action(1, "F", 0), 4.0, 5.0)])
    4.5
    """
    spans = {}
    for rank, action, start, end in entries:
        if action.computes:
            first, last = spans.get(rank, (start, end))
            spans[rank] = min(first, start), max(last, end)
    return max((last - first for first, last in spans.values()), default=0.0)
