"""All ranks in one process, for tests and for looking at a pipeline without starting one.

The ranks take turns in an order that the schedule allows, always the same; nothing is gained in time.
"""

from collections import deque
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from mindspore_zb.checks import check_count, kind_of
from mindspore_zb.counted import counted
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, StateError
from mindspore_zb.pipeline.metas import TensorMeta
from mindspore_zb.pipeline.microbatches import same_batch
from mindspore_zb.pipeline.results import StepResult
from mindspore_zb.schedule.dry_run import possible_order


MOST_RANKS = 10_000
"""The most ranks of one process."""


class LocalNetwork:
    """Connections between ranks of one process.

    Args:
        ranks: how many.

    Raises:
        ArgumentTypeError, ArgumentValueError: ``ranks`` is no such number.

    Attributes:
        ends: for each rank its end, to be given to its :class:`Pipeline`.

    >>> network = LocalNetwork(2)
    >>> network.ends[0].send_note("hello", 1)
    >>> network.ends[1].receive_note(0)
    'hello'
    """

    def __init__(self, ranks: int):
        self._boxes: Dict[Tuple[int, int], Deque[Any]] = {}
        ranks = check_count("ranks", ranks, most=MOST_RANKS)
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

    def shares_network_with(self, other: Any) -> bool:
        """Whether messages of this end can reach the other one."""
        return isinstance(other, LocalEnd) and other._boxes is self._boxes

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
        ArgumentTypeError: something in ``pipelines`` is no Pipeline.
        ArgumentValueError: ranks are missing or not of one network, or a weight that is trained is on several ranks:
            each would have a part of its gradient only; or inputs, targets and extras have different batch sizes.
        PipelineError: something failed, or the ranks have different schedules; the message says where.
    """
    pipelines = _checked(pipelines)
    schedule = pipelines[0].schedule
    try:
        for pipeline in pipelines:
            pipeline.begin(inputs, targets, extras)
        _check_one_batch(pipelines)
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


def _checked(pipelines: Any) -> List[Any]:
    """The pipelines, all ranks of one network in order, without a weight in common."""
    if isinstance(pipelines, (str, dict)) or not hasattr(pipelines, "__iter__"):
        raise ArgumentTypeError(f"pipelines holds the Pipeline of each rank in order, and is not {kind_of(pipelines)}")
    pipelines = list(pipelines)
    if not pipelines:
        raise ArgumentValueError("pipelines is empty: give the Pipeline of each rank in order")
    for place, pipeline in enumerate(pipelines):
        if not all(hasattr(pipeline, name) for name in ("schedule", "handshake", "perform")):
            raise ArgumentTypeError(f"pipelines[{place}] is a Pipeline, not {kind_of(pipeline)}")
    ranks, count = [pipeline.rank for pipeline in pipelines], pipelines[0].schedule.ranks
    if ranks != list(range(count)):
        raise ArgumentValueError(f"pipelines are of ranks {ranks}, not of all {count} in order" if count > 1 else
                                 f"pipelines are of ranks {ranks}, but their schedule is of {counted(count, 'rank')}")
    for pipeline in pipelines:
        if not pipelines[0].connected_with(pipeline):
            raise ArgumentValueError(f"the pipelines of ranks 0 and {pipeline.rank} have ends of different networks: "
                                     "give them the ends of one LocalNetwork")
    _check_no_weight_is_shared(pipelines)
    return pipelines


def _check_one_batch(pipelines: Sequence[Any]) -> None:
    """Each rank has looked at what its own stages are given only."""
    batch = None
    for pipeline in pipelines:
        batch = same_batch(batch, pipeline.batch)


def _check_no_weight_is_shared(pipelines: Sequence[Any]) -> None:
    """Frozen weights have no gradient, so several ranks may have them."""
    owner: Dict[int, int] = {}
    for pipeline in pipelines:
        for weight in pipeline.weights:
            if weight.requires_grad and owner.setdefault(id(weight), pipeline.rank) != pipeline.rank:
                raise ArgumentValueError(
                    f"ranks {owner[id(weight)]} and {pipeline.rank} share the weight {weight.name!r}, so each would "
                    "have a part of its gradient only: put the stages that share it on one rank, as zb-v puts the "
                    "first and the last one, or give each rank a Parameter of its own and add up their gradients")
