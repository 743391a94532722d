"""All ranks in one process, for tests and for looking at a pipeline without starting one.

The ranks take turns in an order that the schedule allows, always the same; nothing is gained in time.
"""

from collections import deque
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from mindspore_zb.errors import ArgumentValueError, StateError
from mindspore_zb.pipeline.metas import TensorMeta
from mindspore_zb.pipeline.results import StepResult
from mindspore_zb.schedule.dry_run import possible_order


class LocalNetwork:
    """Connections between ranks of one process.

    Args:
        ranks: how many.

    Attributes:
        ends: for each rank its end, to be given to its :class:`Pipeline`.

    >>> network = LocalNetwork(2)
    >>> network.ends[0].send_note("hello", 1)
    >>> network.ends[1].receive_note(0)
    'hello'
    """

    def __init__(self, ranks: int):
        self._boxes: Dict[Tuple[int, int], Deque[Any]] = {}
        self.ends = tuple(LocalEnd(rank, ranks, self._boxes) for rank in range(ranks))


class LocalEnd:
    """One rank's end: the same functions as that of a process."""

    def __init__(self, rank: int, ranks: int, boxes: Dict[Tuple[int, int], Deque[Any]]):
        self.rank, self.ranks = rank, ranks
        self.watch = None
        self._boxes = boxes

    def send(self, tensor: Any, peer: int) -> None:
        """Hand a tensor over."""
        self._boxes.setdefault((self.rank, peer), deque()).append(tensor)

    def receive(self, meta: TensorMeta, peer: int) -> Any:
        """The next tensor from ``peer``.

        Raises:
            StateError: there is none, or one of another shape or dtype.
        """
        box = self._boxes.get((peer, self.rank))
        if not box:
            raise StateError(f"rank {self.rank} would wait for rank {peer} for ever")
        found = box.popleft()
        if TensorMeta(found.shape, str(found.dtype)) != meta:
            raise StateError(f"rank {peer} sent {TensorMeta(found.shape, str(found.dtype))} instead of {meta}")
        return found

    def send_note(self, text: str, peer: int) -> None:
        """Hand a text over."""
        self._boxes.setdefault((self.rank, peer), deque()).append(text)

    def receive_note(self, peer: int) -> str:
        """The next text from ``peer``."""
        box = self._boxes.get((peer, self.rank))
        if not box:
            raise StateError(f"rank {self.rank} would wait for rank {peer} for ever")
        return box.popleft()

    def close(self) -> None:
        """Nothing to do."""


def step_together(pipelines: Sequence[Any], inputs: tuple = (), targets: tuple = (),
                  extras: Optional[Mapping[int, tuple]] = None) -> List[StepResult]:
    """One step of all ranks of this process; the arguments are those of :meth:`Pipeline.step`.

    Args:
        pipelines: the :class:`Pipeline` of each rank, in order, of one schedule and one :class:`LocalNetwork`.

    Returns:
        The result of each rank.

    Raises:
        ArgumentValueError: ranks are missing, or have different schedules.
        PipelineError: something failed; the message says where.
    """
    schedule = pipelines[0].schedule
    if [pipeline.rank for pipeline in pipelines] != list(range(schedule.ranks)):
        raise ArgumentValueError(f"pipelines are of ranks {[pipeline.rank for pipeline in pipelines]}, not of all "
                                 f"{schedule.ranks} in order")
    try:
        for pipeline in pipelines:
            pipeline.begin(inputs, targets, extras)
        if any(not pipeline.agreed for pipeline in pipelines):
            for stage in range(schedule.stages):
                pipelines[schedule.rank_of(stage)].handshake.offer(stage)
            for stage in reversed(range(schedule.stages)):
                pipelines[schedule.rank_of(stage)].handshake.confirm(stage)
            for pipeline in pipelines:
                pipeline.conclude_handshake()
        for rank, action in possible_order(schedule):
            pipelines[rank].perform(action)
        return [pipeline.end() for pipeline in pipelines]
    except BaseException:
        for pipeline in pipelines:
            pipeline.abandon()
        raise
