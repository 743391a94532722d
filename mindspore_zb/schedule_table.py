"""All schedules for given numbers of ranks and micro-batches and given costs, compared."""

from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence, Tuple

from mindspore_zb.errors import ArgumentValueError, ScheduleError
from mindspore_zb.schedule import NAMES, Costs, Schedule, Simulation, generate, search, simulate
from mindspore_zb.schedule.hand_made import GENERATORS
from mindspore_zb.schedule.sizes import check_size
from mindspore_zb.schedule.validation import fits

HEADER = ("schedule", "stages per rank", "bubble rate", "makespan", "peak memory", "fits")


@dataclass(frozen=True)
class Comparison:
    """Simulated schedules by label, and the memory limit they are compared under, if any."""

    runs: Tuple[Tuple[str, Simulation], ...]
    memory_limit: Optional[float]

    def rows(self) -> List[Tuple[str, ...]]:
        """A row of text for each schedule, under :data:`HEADER`; without a limit everything fits."""
        return [(label, str(run.schedule.chunks), f"{run.bubble_rate:.4f}", f"{run.makespan:.6g}",
                 f"{max(run.peak_memory):.6g}", "yes" if fits(max(run.peak_memory), self.memory_limit) else "no")
                for label, run in self.runs]

    def labels(self) -> List[str]:
        """The labels, in order."""
        return [label for label, _ in self.runs]

    def run(self, label: str) -> Simulation:
        """The run of a label.

        Raises:
            ScheduleError: no such label.
        """
        for other, run in self.runs:
            if other == label:
                return run
        raise ScheduleError(f"there is no schedule {label!r} here; there are {', '.join(self.labels())}")

    def best(self) -> str:
        """The label of the lowest bubble rate that fits, the first of equals."""
        fitting = [(run.bubble_rate, place) for place, (_, run) in enumerate(self.runs)
                   if fits(max(run.peak_memory), self.memory_limit)]
        if not fitting:
            raise ScheduleError(f"no schedule fits a memory limit of {self.memory_limit:g}")
        return self.runs[min(fitting)[1]][0]


def compare(costs: Costs, stages: int, microbatches: int, *, memory_limit: Optional[float] = None, chunks: int = 2,
            weight_parts: int = 1, names: Sequence[str] = NAMES, others: Sequence[Tuple[str, Schedule]] = (),
            progress: Optional[Callable[[int, int, float], None]] = None) -> Comparison:
    """Simulate schedules of the catalogue, what the search finds, and others.

    Args:
        costs, stages, microbatches, memory_limit, chunks, weight_parts, progress: as for
            :func:`~mindspore_zb.schedule.searching.search`. Without ``memory_limit`` two searches are made, with the
            memory that 1F1B takes and with twice that.
        names: which of :data:`~mindspore_zb.schedule.NAMES`; "auto" stands for the search.
        others: more schedules, with labels.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument cannot be used.
        ScheduleError: nothing fits the memory limit.

    >>> compare(Costs(f=1, b=1, w=1), stages=4, microbatches=8, memory_limit=8).rows()[1]
    ('zb-h1', '1', '0.1111', '27', '4', 'yes')
    """
    _check_names(names, chunks)
    if "auto" in names:  # before anything that takes long
        check_size(stages, microbatches, min(chunks, 2), weight_parts, searched=True,
                   advice="leave out the search (--names 1f1b,zb-h1,zb-h2,zb-v), or take fewer of one of them")
    runs = []
    for name in [name for name in GENERATORS if name in names]:
        schedule = generate(name, stages=stages, microbatches=microbatches, weight_parts=weight_parts)
        if schedule.chunks <= chunks:
            runs.append((name, simulate(schedule, costs)))
    for label, limit in _limits(costs, stages, microbatches, memory_limit) if "auto" in names else ():
        schedule = search(costs, stages, microbatches, limit, chunks=chunks, weight_parts=weight_parts,
                          progress=progress)
        runs.append((label, simulate(schedule, costs)))
    runs += [(label, simulate(schedule, costs)) for label, schedule in others]
    return Comparison(tuple(runs), memory_limit)


def _check_names(names: Sequence[str], chunks: int) -> None:
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise ArgumentValueError(f"names is made of {', '.join(NAMES)}, and {unknown[0]!r} is none of them" if unknown
                                 else f"names is empty: give some of {', '.join(NAMES)}")
    if chunks == 1 and set(names) == {"zb-v"}:
        raise ArgumentValueError("zb-v has two chunks on each rank: give chunks of 2, or other names")


def _limits(costs: Costs, stages: int, microbatches: int,
            memory_limit: Optional[float]) -> List[Tuple[str, Optional[float]]]:
    """The label and the memory limit of each search."""
    if memory_limit is not None:
        return [("auto", memory_limit)]
    memory = max(simulate(generate("1f1b", stages=stages, microbatches=microbatches), costs).peak_memory)
    return [("auto-1x", memory or None), ("auto-2x", 2 * memory or None)]
