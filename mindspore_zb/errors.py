"""Errors of this package: all derive from :class:`ZeroBubbleError` and from the built-in a user would expect."""

from typing import Any


class ZeroBubbleError(Exception):
    """Base of every error this package raises on purpose."""


class ArgumentValueError(ZeroBubbleError, ValueError):
    """An argument has a value that cannot be used; the message names the argument."""


class ArgumentTypeError(ZeroBubbleError, TypeError):
    """An argument has a type that cannot be used; the message names the argument."""


class MalformedGraphError(ZeroBubbleError, ValueError):
    """A serialised graph that the loader or the compiler might misread or die of; the message names the place."""


class StateError(ZeroBubbleError, RuntimeError):
    """A call came in the wrong order, or after the graph was released."""


class ChangedTensorError(ZeroBubbleError, RuntimeError):
    """A tensor that the backward reads was changed after the forward; the message names the tensor and who saved it."""


class UnsupportedError(ZeroBubbleError, RuntimeError):
    """Something that this package, or this version of it, cannot do rightly and therefore refuses."""


class UnsupportedVersionError(ZeroBubbleError, ImportError):
    """The installed MindSpore lacks something the package needs; the message says what."""


class ScheduleError(ZeroBubbleError, ValueError):
    """A pipeline schedule that cannot be run, or cannot be made; the message names the rank and the action."""


class PipelineError(ZeroBubbleError, RuntimeError):
    """A rank of a pipeline failed; the message names the rank, the stage, the micro-batch and the action.

    Attributes:
        rank: the rank that raises.
        action: its action, such as ``1B3``; None before the first step.
        reason: what went wrong.
    """

    def __init__(self, reason: str, rank: int = 0, action: Any = None):
        self.rank, self.action, self.reason = rank, action, reason
        place = f"rank {rank}"
        if action is not None:
            place += f", stage {action.stage}, micro-batch {action.microbatch}, action {action}"
        super().__init__(f"{place}: {reason}")

    def __reduce__(self) -> Any:
        return type(self), (self.reason, self.rank, self.action)  # copied and pickled without saying the place twice
