"""A schedule as data: what each rank does, in order."""

from dataclasses import dataclass
from typing import Tuple

from mindspore_zb.errors import ScheduleError
from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.placement import rank_of_stage, stages_of_rank


@dataclass(frozen=True)
class Schedule:
    """What each rank of a pipeline does, in order, for one step.

    A rank runs its actions one after another. A send hands its message over and goes on; a receive waits for its
    message. Messages from one rank to another arrive in the order in which they were sent, whatever they hold, and the
    receives are in that order.

    Attributes:
        name: of the kind of schedule, "zb-h1" for instance.
        microbatches: m, how many micro-batches make the step.
        actions: for each rank its actions in order.
        chunks: v, how many stages each rank holds; see :meth:`stages_of`.

    Raises:
        ScheduleError: no ranks, no micro-batches or no chunks. Whether the actions can be run is for
            :func:`~mindspore_zb.schedule.validation.validate` to say.

    >>> from mindspore_zb.schedule import generate
    >>> print(generate("zb-h1", stages=2, microbatches=2))
    zb-h1: 2 ranks, 2 micro-batches, 1 chunk
    rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0W0 0RECV_B1 0B1 0W1
    rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1W0 1W1
    """

    name: str
    microbatches: int
    actions: Tuple[Tuple[Action, ...], ...]
    chunks: int = 1

    def __post_init__(self):
        object.__setattr__(self, "actions", tuple(tuple(actions) for actions in self.actions))
        for what, number in (("ranks", len(self.actions)), ("micro-batches", self.microbatches),
                             ("chunks", self.chunks)):
            if number < 1:
                raise ScheduleError(f"a schedule of {number} {what} cannot be: it needs at least one")

    @property
    def ranks(self) -> int:
        """p, the number of ranks."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """The number of stages of the whole pipeline: ``ranks * chunks``."""
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        return rank_of_stage(stage, self.ranks)

    def stages_of(self, rank: int) -> Tuple[int, ...]:
        """The stages that a rank holds, in the order of the forward.

        >>> Schedule("none", 1, ((), (), ()), chunks=2).stages_of(2)
        (2, 3)
        """
        return stages_of_rank(rank, self.ranks, self.chunks)

    def peer(self, action: Action) -> int:
        """The rank at the other end of a send or a receive."""
        return self.rank_of(action.other_stage)

    def computations(self, rank: int) -> Tuple[Action, ...]:
        """The F, B and W of a rank, in order."""
        return tuple(action for action in self.actions[rank] if action.computes)

    def __str__(self) -> str:
        chunks = f"{self.chunks} chunk" + ("s" if self.chunks > 1 else "")
        lines = [f"{self.name}: {self.ranks} ranks, {self.microbatches} micro-batches, {chunks}"]
        lines += [" ".join([f"rank {rank}:", *map(str, actions)]) for rank, actions in enumerate(self.actions)]
        return "\n".join(lines)
