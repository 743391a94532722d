"""ZB-V: two chunks per rank in V shape; no bubble if F, B and W take equal times, with the memory of 1F1B."""

from typing import List

from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.communication import with_communication
from mindspore_zb.schedule.placement import stages_of_rank
from mindspore_zb.schedule.programs import Schedule
from mindspore_zb.schedule.weight_parts import weight_actions


def zb_v(ranks: int, microbatches: int, weight_parts: int = 1) -> Schedule:
    """The first rank has the first and the last stage, so that a backward starts where the forward ends.

    No bubble if F, B and W take equal times and there are at least 2p - 1 micro-batches; each rank holds p M_B.
    Source: arXiv 2401.10241, section 6.
    """
    return with_communication("zb-v", microbatches, [
        _RankOfV(rank, ranks, microbatches, weight_parts).computations() for rank in range(ranks)], chunks=2)


class _RankOfV:
    """The computations of one rank; each kind takes the micro-batches in order, and stops when there are no more."""

    def __init__(self, rank: int, ranks: int, microbatches: int, weight_parts: int):
        self._rank, self._ranks, self._microbatches, self._parts = rank, ranks, microbatches, weight_parts
        self._down, self._up = stages_of_rank(rank, ranks, 2)
        self._next = {(kind, stage): 0 for kind in "FBW" for stage in (self._down, self._up)}
        self._actions: List[Action] = []

    def computations(self) -> List[Action]:
        """Fill the memory with F, keep it full while there are F left, and let W fill the gaps of the last B."""
        down, up = self._down, self._up
        self._run(2 * (self._ranks - self._rank) - 1, ("F", down))
        self._run(self._rank, ("F", up), ("F", down))
        self._run(self._ranks - self._rank, ("F", up), ("B", up), ("W", up))
        while self._next["F", up] < self._microbatches:
            self._run(1, ("F", down), ("B", down), ("W", down), ("F", up), ("B", up), ("W", up))
        self._run(self._rank, ("B", down), ("B", up))
        while self._next["B", down] < self._microbatches:
            self._run(1, ("B", down), self._late_weights())
        while self._next["B", up] < self._microbatches:
            self._run(1, ("B", up))
        self._run(2 * self._microbatches, ("W", up), ("W", down))
        return self._actions

    def _late_weights(self):
        up = self._up
        return ("W", up) if self._next["W", up] < self._next["B", up] else ("W", self._down)

    def _run(self, times: int, *steps) -> None:
        for _ in range(times):
            done = len(self._actions)
            for kind, stage in steps:
                self._step(kind, stage)
            if len(self._actions) == done:  # nor would the same steps do anything again
                return

    def _step(self, kind: str, stage: int) -> None:
        microbatch = self._next[kind, stage]
        before = {"B": "F", "W": "B"}.get(kind)
        if microbatch == self._microbatches or (before and self._next[before, stage] <= microbatch):
            return
        self._next[kind, stage] += 1
        self._actions += weight_actions(stage, microbatch, self._parts) if kind == "W" else [
            Action(stage, kind, microbatch)]
