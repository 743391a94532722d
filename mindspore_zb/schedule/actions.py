"""One step of one rank: a computation, a send or a receive."""

import re
from dataclasses import dataclass

from mindspore_zb.checks import MOST, check_count, check_text, in_short
from mindspore_zb.errors import ScheduleError

COMPUTATIONS = ("F", "B", "W")
SENDS = ("SEND_F", "SEND_B")
RECEIVES = ("RECV_F", "RECV_B")
KINDS = COMPUTATIONS + SENDS + RECEIVES

_TEXT = re.compile(r"(\d{1,10})(F|B|W|SEND_F|SEND_B|RECV_F|RECV_B)(\d{1,10})(?:\.(\d{1,10})/(\d{1,10}))?", re.ASCII)
_NEXT_STAGE = ("SEND_F", "RECV_B")


@dataclass(frozen=True)
class Action:
    """One step of the rank that holds ``stage``. Prints as text such as ``2F0``: stage 2, forward, micro-batch 0.

    =========  ======================================================================================
    kind       what the rank does
    =========  ======================================================================================
    F          forward of the micro-batch
    B          dx: the gradient of the stage's input
    W          dw: the gradients of the stage's weights; ``2W0.1/3`` is the second of three parts of it
    SEND_F     sends the output of F to the next stage
    RECV_F     receives the input of F from the stage before
    SEND_B     sends dx to the stage before
    RECV_B     receives the gradient of its output from the next stage
    =========  ======================================================================================

    Attributes:
        stage: the stage that acts, from 0.
        kind: one of the above.
        microbatch: from 0.
        part, parts: this is part ``part``, from 0, of ``parts`` of a W. A stage with G weight groups computes the
            groups ``part * G // parts`` up to, not including, ``(part + 1) * G // parts``.

    Raises:
        ArgumentTypeError: something else than integers and a kind.
        ScheduleError: no such action.

    >>> str(Action(2, "F", 0)), Action.parse("2W0.1/3")
    ('2F0', Action(stage=2, kind='W', microbatch=0, part=1, parts=3))
    """

    stage: int
    kind: str
    microbatch: int
    part: int = 0
    parts: int = 1

    def __post_init__(self):
        if check_text("kind", self.kind) not in KINDS:
            raise ScheduleError(f"{self.kind!r} is no kind of action; the kinds are {', '.join(KINDS)}")
        for name in ("stage", "microbatch", "part", "parts"):
            if type(getattr(self, name)) is not int:  # so it is nearly always
                object.__setattr__(self, name, check_count(name, getattr(self, name), least=0))
        if not (0 <= self.stage <= MOST and 0 <= self.microbatch <= MOST):
            raise ScheduleError("stage and micro-batch count from 0 to a billion, but here are "
                                f"{in_short(self.stage)} and {in_short(self.microbatch)}")
        if not 0 <= self.part < self.parts or (self.parts > 1 and self.kind != "W"):
            raise ScheduleError(f"{self} cannot be: only a W has parts, numbered from 0")

    def __str__(self) -> str:
        part = f".{self.part}/{self.parts}" if self.parts != 1 else ""
        return f"{self.stage}{self.kind}{self.microbatch}{part}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """The action that prints as ``text``.

        Raises:
            ArgumentTypeError: no text.
            ScheduleError: the text is no action.

        >>> Action.parse("3RECV_F12")
        Action(stage=3, kind='RECV_F', microbatch=12, part=0, parts=1)
        """
        found = _TEXT.fullmatch(check_text("text", text))
        if found is None:
            raise ScheduleError(f"{text[:40]!r} is no action; actions look like 2F0, 2B0, 2W0, 2W0.1/3 or 2SEND_F0")
        stage, kind, microbatch, part, parts = found.groups()
        if parts is None:
            return cls(int(stage), kind, int(microbatch))
        return cls(int(stage), kind, int(microbatch), int(part), int(parts))

    @property
    def computes(self) -> bool:
        """Whether this is F, B or W."""
        return self.kind in COMPUTATIONS

    @property
    def sends(self) -> bool:
        """Whether this is a send."""
        return self.kind in SENDS

    @property
    def receives(self) -> bool:
        """Whether this is a receive."""
        return self.kind in RECEIVES

    @property
    def other_stage(self) -> int:
        """The stage at the other end of a communication.

        Raises:
            ScheduleError: a computation has none.
        """
        if self.computes:
            raise ScheduleError(f"{self} is no communication, so there is nothing at its other end")
        return self.stage + 1 if self.kind in _NEXT_STAGE else self.stage - 1

    @property
    def counterpart(self) -> "Action":
        """The send that feeds this receive, or the receive that takes this send.

        Raises:
            ScheduleError: a computation has none, and neither has what stage 0 would send back or receive.

        >>> str(Action.parse("2SEND_F0").counterpart)
        '3RECV_F0'
        """
        other = self.other_stage
        verb, what = self.kind.split("_")
        return Action(other, f"{'RECV' if verb == 'SEND' else 'SEND'}_{what}", self.microbatch)
