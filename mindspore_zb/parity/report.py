"""What a comparison found, as plain data: it keeps no tensor and no graph alive, and needs no MindSpore."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Tuple

WITHIN, ROUNDING, BEYOND, RANDOM, FAILED = "within", "rounding", "beyond", "random", "failed"
"""The verdicts; see :class:`Difference` and :class:`EngineRun`."""


@dataclass(frozen=True)
class Difference:
    """How far one tensor is from that of the unsplit run.

    Attributes:
        kind: ``"out"`` (the outputs, and what comes beside them), ``"dx"``, ``"dw"``, or ``"state"`` (a parameter that
            the forward itself writes, such as a moving mean, after all micro-batches).
        name: which one: ``out[1]``, ``dx['x']``, or the name of the parameter.
        relative: the largest difference over the largest magnitude in the unsplit run's tensor, the worst of all
            micro-batches. Infinite where that is zero or not finite and this is not, or the shapes differ.
        allowed: the largest that counts as equal.
        verdict: ``"within"``; ``"rounding"``: beyond what is allowed, but the unsplit run itself changes as much if
            its inputs and weights change by a twentieth of that; ``"beyond"``.
        note: what is wrong, where a number does not say it.
    """

    kind: str
    name: str
    relative: float
    allowed: float
    verdict: str
    note: str = ""


@dataclass(frozen=True)
class EngineRun:
    """One way to compute the gradients.

    Attributes:
        way: ``"unsplit"``, ``"split pynative"`` or ``"split graph"``.
        engine: what ran: ``"mindspore"``, ``"pynative"`` or ``"graph"``.
        verdict: ``"within"``; ``"beyond"``: some difference is; ``"random"``: it drew other random numbers, so nothing
            can be compared; ``"failed"``: it raised, though the unsplit run did not.
        differences: of each output, dx, dw and written parameter; none for the unsplit run itself.
        fallback_reason: why the graph engine did not run, though it was asked to.
        error: what it raised, in one line.
        first_seconds: the first call of forward, dx and dw: with compiling.
        seconds: the median of the calls after it; None if there were none.
    """

    way: str
    engine: str
    verdict: str
    differences: Tuple[Difference, ...] = ()
    fallback_reason: Optional[str] = None
    error: Optional[str] = None
    first_seconds: float = 0.0
    seconds: Optional[float] = None

    def worst(self) -> Optional[Difference]:
        """The difference that is largest by what it is allowed to be; None if there is none."""
        return max(self.differences, key=_times_allowed, default=None)


@dataclass(frozen=True)
class ParityReport:
    """All ways, the unsplit one first.

    Attributes:
        runs: the ways.
        random: whether two unsplit runs from the same state differ.
        notes: what else a reader must know, a sentence each.

    Example:
        >>> within = EngineRun("split pynative", "pynative", "within", (Difference("dx", "dx", 0.0, 1e-5, "within"),))
        >>> beyond = EngineRun("split graph", "graph", "beyond", (Difference("dx", "dx", 0.5, 1e-5, "beyond"),))
        >>> ParityReport((within,)).exit_code, ParityReport((within, beyond)).exit_code
        (0, 1)
    """

    runs: Tuple[EngineRun, ...]
    random: bool = False
    notes: Tuple[str, ...] = ()

    def run(self, way: str) -> EngineRun:
        """The run of a way.

        Raises:
            KeyError: no such way.
        """
        for run in self.runs:
            if run.way == way:
                return run
        raise KeyError(way)

    @property
    def passed(self) -> bool:
        """Whether everything was compared and nothing is beyond its tolerance."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0: all within tolerance; 1: something beyond it, or an engine failed; 2: something cannot be compared."""
        verdicts = {run.verdict for run in self.runs}
        if verdicts & {BEYOND, FAILED}:
            return 1
        return 2 if RANDOM in verdicts else 0

    def to_dict(self) -> Dict[str, Any]:
        """The same as dicts and lists, for JSON. An infinite difference is None there."""
        found = asdict(self)
        for run in found["runs"]:
            for difference in run["differences"]:
                if not math.isfinite(difference["relative"]):
                    difference["relative"] = None
        return {"passed": self.passed, **found}

    def table(self) -> Tuple[Tuple[str, ...], List[Tuple[str, ...]]]:
        """Header and rows: each tensor with its difference in each way that was compared."""
        compared = [run for run in self.runs if run.differences]
        cells: Dict[Tuple[str, str], Dict[str, Difference]] = {}
        for run in compared:
            for difference in run.differences:
                cells.setdefault((difference.kind, difference.name), {})[run.way] = difference
        rows = []
        for (kind, name), by_way in cells.items():
            allowed = max(difference.allowed for difference in by_way.values())
            rows.append((name if kind in ("out", "dx") else f"{kind} {name}",
                         *(_cell(by_way.get(run.way)) for run in compared), f"{allowed:.0e}"))
        return ("relative difference", *(run.way for run in compared), "allowed"), rows


def _times_allowed(difference: Difference) -> float:
    if difference.relative == 0.0:
        return 0.0
    return difference.relative / difference.allowed if difference.allowed else math.inf


def _cell(difference: Optional[Difference]) -> str:
    if difference is None:
        return "-"
    mark = {WITHIN: "", ROUNDING: " (rounding)", BEYOND: " BEYOND"}[difference.verdict]
    return (difference.note or f"{difference.relative:.1e}") + mark
