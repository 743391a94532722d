"""The tables that the first example ends with."""

import statistics
from typing import Dict, List, Optional, Tuple

from terminal import show_table


def show_losses(split: List[float], unsplit: List[float], tolerance: float) -> bool:
    """Print the losses of both trainings at some steps; whether they are equal at all steps."""
    differences = [abs(one - other) / abs(other) for one, other in zip(split, unsplit)]
    last, every = len(split) - 1, max(len(split) // 8, 1)
    shown = sorted({0, last, *range(every - 1, last, every)})
    equal = all(difference <= tolerance for difference in differences)
    show_table("Loss of the same training, split and unsplit", ("step", "split", "unsplit", "relative difference"),
               [(place + 1, f"{split[place]:.6f}", f"{unsplit[place]:.6f}", f"{differences[place]:.1e}")
                for place in shown],
               f"largest relative difference of all {len(split)} steps: {max(differences):.1e}, "
               f"{'equal' if equal else 'NOT EQUAL'} within {tolerance:g}")
    return equal


def show_times(split: Dict[str, List[float]], unsplit: Dict[str, List[float]], micro_batches: int) -> None:
    """Print the medians of the parts of a step, and the median over the steps of the ratio of the two backwards.

    Args:
        split: seconds of each step for ``"stage 1 forward"``, ``dx`` and ``dw``, and the same of stage 2.
        unsplit: seconds of each step for ``"forward"`` and ``"backward"``.
        micro_batches: how many a step has.
    """
    stages = {part: (split[f"stage 1 {part}"], split[f"stage 2 {part}"]) for part in ("forward", "dx", "dw")}
    both = {part: _sums(*columns) for part, columns in stages.items()}
    backward = _sums(both["dx"], both["dw"])
    rows = [(part, *map(_median, (*stages[part], both[part], unsplit.get(part)))) for part in stages]
    ratios = [one / other for one, other in zip(backward, unsplit["backward"])]
    show_table(f"Time of one step of {micro_batches} micro-batches, in milliseconds",
               ("", "stage 1", "stage 2", "both, split", "unsplit"),
               [*rows, (), ("backward", "", "", _median(backward), _median(unsplit["backward"]))],
               f"(dx + dw) / unsplit backward = {statistics.median(ratios):.3f}\n"
               f"medians of {len(ratios)} steps, in which the two trainings took turns")


def _sums(one: List[float], other: List[float]) -> List[float]:
    return [sum(pair) for pair in zip(one, other)]


def _median(seconds: Optional[List[float]]) -> str:
    return f"{statistics.median(seconds) * 1e3:.1f}" if seconds else ""


def show_memory(stage: str, rows: List[Tuple[str, int, int]], note: str, most: int = 20) -> None:
    """Print what one micro-batch of a stage holds; of many groups only the first and the last ones.

    Args:
        stage: its name.
        rows: ``(what has run, bytes of saved activations, bytes of gradients that wait)``: forward, dx, each group.
        note: stands below.
        most: rows at most.
    """
    groups, before = len(rows) - 2, rows[0][1]
    lines = [(name, f"{saved / 1e6:.2f}", f"{waiting / 1e6:.2f}", f"{(saved + waiting) / 1e6:.2f}",
              f"{(saved + waiting) / before:.0%}") for name, saved, waiting in rows]
    if len(lines) > most:
        left_out = slice(most // 2, 1 - most // 2)
        lines[left_out] = [(f"... {len(lines[left_out])} more groups", "", "", "", "")]
    show_table(f"Memory of one micro-batch of {stage} with {groups} weight group{'s' if groups > 1 else ''}, in MB",
               ("after", "activations", "gradients", "sum", "of forward"), [*lines[:2], (), *lines[2:]], note)
