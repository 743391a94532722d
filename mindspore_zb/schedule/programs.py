"""A schedule as data: what each rank does, in order."""

from dataclasses import dataclass
from typing import Any, Tuple

from mindspore_zb.checks import MOST, check_count, check_kind, check_text, kind_of
from mindspore_zb.counted import counted
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, ScheduleError
from mindspore_zb.schedule.actions import Action
from mindspore_zb.schedule.placement import rank_of_stage, stages_of_rank


MOST_CHUNKS = 1000
"""The most stages of a rank."""


@dataclass(frozen=True)
class Schedule:
    """What each rank of a pipeline does, in order, for one step.

    A rank runs its actions one after another. A send hands its message over and goes on; a receive waits for its
    message. Messages from one rank to another arrive in the order in which they were sent, whatever they hold, and the
    receives are in that order.

    Attributes:
        name: of the kind of schedule, "zb-h1" for instance: one line, without blanks at its ends.
        microbatches: m, how many micro-batches make the step.
        actions: for each rank its actions in order.
        chunks: v, how many stages each rank holds; see :meth:`stages_of`.

    Raises:
        ArgumentTypeError: something else than actions and integers.
        ScheduleError: no ranks, micro-batches or chunks, or more chunks than :data:`MOST_CHUNKS`, or a name that could
            not be read back from the text. Whether the actions can be run is for
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
        _check_name(self.name)
        object.__setattr__(self, "actions", _frozen_actions(self.actions))
        for name, most in (("microbatches", MOST), ("chunks", MOST_CHUNKS)):
            number = check_count(name, getattr(self, name), least=-MOST, most=MOST)
            object.__setattr__(self, name, number)
            if number > most:
                raise ScheduleError(f"a schedule of {number} {name} cannot be: there are at most {most}")
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
        """The rank that holds a stage.

        Raises:
            ArgumentTypeError, ArgumentValueError: there is no such stage.
        """
        return rank_of_stage(self._checked("stage", stage, self.stages), self.ranks)

    def stages_of(self, rank: int) -> Tuple[int, ...]:
        """The stages that a rank holds, in the order of the forward.

        Raises:
            ArgumentTypeError, ArgumentValueError: there is no such rank.

        >>> Schedule("none", 1, ((), (), ()), chunks=2).stages_of(2)
        (2, 3)
        """
        return stages_of_rank(self._checked("rank", rank, self.ranks), self.ranks, self.chunks)

    def peer(self, action: Action) -> int:
        """The rank at the other end of a send or a receive.

        Raises:
            ArgumentTypeError, ArgumentValueError: no action, or one for which there is no such stage.
            ScheduleError: the action computes.
        """
        return self.rank_of(check_kind("action", action, Action, "an Action").other_stage)

    def computations(self, rank: int) -> Tuple[Action, ...]:
        """The F, B and W of a rank, in order.

        Raises:
            ArgumentTypeError, ArgumentValueError: there is no such rank.
        """
        actions = self.actions[self._checked("rank", rank, self.ranks)]
        return tuple(action for action in actions if action.computes)

    @staticmethod
    def _checked(what: str, number: int, count: int) -> int:
        if type(number) is int and 0 <= number < count:  # so it is nearly always
            return number
        if not 0 <= check_count(what, number, least=-MOST) < count:
            raise ArgumentValueError(f"{what} {number} is not there: there {'is' if count == 1 else 'are'} "
                                     f"{counted(count, what)}, counted from 0")
        return int(number)

    def __str__(self) -> str:
        sizes = counted(self.ranks, "rank"), counted(self.microbatches, "micro-batch"), counted(self.chunks, "chunk")
        lines = [f"{self.name}: {', '.join(sizes)}"]
        lines += [" ".join([f"rank {rank}:", *map(str, actions)]) for rank, actions in enumerate(self.actions)]
        return "\n".join(lines)


def _check_name(name: Any) -> None:
    """The name begins the text of a schedule, of which the first line is read without blanks around it."""
    if check_text("name", name) != name.strip() or len(name.splitlines()) > 1:
        raise ScheduleError(f"name is one line without blanks at its ends, not {name[:80]!r}")


def _frozen_actions(actions: Any) -> Tuple[Tuple[Action, ...], ...]:
    """For each rank the tuple of its actions."""
    if isinstance(actions, (str, dict)) or not hasattr(actions, "__iter__"):
        raise ArgumentTypeError(f"actions holds the actions of each rank in order, and is not {kind_of(actions)}")
    frozen = []
    for rank, program in enumerate(actions):
        if isinstance(program, (str, dict)) or not hasattr(program, "__iter__"):
            raise ArgumentTypeError(f"actions[{rank}] holds the actions of rank {rank} in order, and is not "
                                    f"{kind_of(program)}")
        frozen.append(tuple(program))
        for place, action in enumerate(frozen[-1]):
            if not isinstance(action, Action):
                raise ArgumentTypeError(f"actions[{rank}][{place}] is an Action, not {kind_of(action)}")
    return tuple(frozen)
