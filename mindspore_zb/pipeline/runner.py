"""A rank of a pipeline: its stages, its gradients, its optimizer, and its steps."""

import contextlib
import hashlib
import json
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from mindspore_zb.accumulation import GradientAccumulator
from mindspore_zb.checks import a_kind_of, check_count, check_flag, check_kind, check_number, kind_of
from mindspore_zb.counted import counted
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, PipelineError, StateError
from mindspore_zb.memory import SavedTensorLedger
from mindspore_zb.pipeline.gradients import check_weights_known
from mindspore_zb.pipeline.handshake import Handshake
from mindspore_zb.pipeline.in_one_process import LocalEnd, LocalNetwork
from mindspore_zb.pipeline.microbatches import Batch, cut_batch, same_batch
from mindspore_zb.pipeline.results import Entry, StepResult, check_entries
from mindspore_zb.pipeline.second_stream import SecondStream
from mindspore_zb.pipeline.stages import Stage
from mindspore_zb.pipeline.step_run import StepRun
from mindspore_zb.schedule import Action, Schedule, validate


MOST_SEED = 2 ** 32 - 1
"""The largest seed that MindSpore takes."""


class Pipeline:
    """What one rank does, step by step, by a schedule.

    Args:
        schedule: the same on all ranks.
        stages: for each stage of this rank (``schedule.stages_of(rank)``) the :class:`Stage`; if it has one stage,
            that stage itself will do.
        end: this rank's connections: what :func:`connect` gave, or an end of a :class:`LocalNetwork`; not needed for a
            schedule of one rank.
        optimizer: called at the end of each step, when every dw of this rank is done, with the gradients of its
            ``parameters``. All of these must be weights of this rank.
        float32_gradients: sum gradients in float32 where weights have fewer bits.
        loss_scale: the gradients are those of the mean loss over the micro-batches times this, a number above 0 that
            the dtype of the loss can hold.
        seed: makes random operations that follow ``mindspore.set_seed``, such as ``ops.dropout``, depend on this, the
            step, the stage and the micro-batch only, not on the schedule. (``nn.Dropout`` goes its own way: each has a
            sequence of masks that begins when it is made.) From 0 to 2 ** 32 - 1, as MindSpore's own.
        batch_axis: the axis of inputs, targets and extras along which the batch is cut.
        measured: wait for each action to have run, so that the times of the entries are true.
        measure_memory: count bytes of saved activations (PyNative only; makes forwards slower).
        dw_stream: run dw on a second stream of the device, beside the communication. Times of the entries are then
            those of issuing.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument cannot be used.
        ScheduleError: the schedule cannot be run.
        UnsupportedError: ``dw_stream`` on a device that has no streams.

    A weight that several stages of one rank share has one gradient, the sum. One that stages of different ranks share
    cannot be seen: each rank has a Parameter of its own, and a part of the gradient, and it is for the program to add
    them up between :meth:`gradients` and an optimizer of its own.

    Source: the runtime of Qi et al., arXiv 2401.10241, section 4, without its rollback.

    >>> from mindspore import Tensor, nn, ops
    >>> from mindspore_zb.schedule import generate
    >>> net = nn.Dense(3, 1)
    >>> pipeline = Pipeline(generate("1f1b", stages=1, microbatches=2),
    ...                     Stage(lambda x: ops.mean(net(x)), weights=net.trainable_params()))
    >>> result = pipeline.step(inputs=(ops.ones((4, 3)),))
    >>> len(result.losses), pipeline.gradients()[0].shape
    (2, (1, 3))
    """

    def __init__(self, schedule: Schedule, stages: Union[Stage, Mapping[int, Stage]], end: Any = None, *,
                 optimizer: Any = None, float32_gradients: bool = False, loss_scale: float = 1.0,
                 seed: Optional[int] = None, batch_axis: int = 0, measured: bool = True,
                 measure_memory: bool = False, dw_stream: bool = False):
        validate(schedule)
        self._end = LocalNetwork(1).ends[0] if end is None else _checked_end(end)
        if self._end.ranks != schedule.ranks:
            raise ArgumentValueError(f"the schedule is for {counted(schedule.ranks, 'rank')}, but there "
                                     f"{'is' if self._end.ranks == 1 else 'are'} {self._end.ranks}")
        for name, value in (("float32_gradients", float32_gradients), ("measured", measured),
                            ("measure_memory", measure_memory), ("dw_stream", dw_stream)):
            check_flag(name, value)
        if seed is not None:
            seed = check_count("seed", seed, least=0, most=MOST_SEED)
        batch_axis = check_count("batch_axis", batch_axis, least=0)
        loss_scale = check_number("loss_scale", loss_scale, positive=True)
        self.schedule = schedule
        self._stages = _check_stages(schedule, stages, self._end.rank)
        self._buffers = GradientAccumulator([weight for stage in self._stages.values() for weight in stage.weights],
                                            float32_gradients)
        if optimizer is not None:
            check_weights_known(_parameters_of(optimizer), self._buffers.weights)
        self._optimizer = optimizer
        self._loss_gradient = loss_scale / schedule.microbatches
        self._seed, self._batch_axis, self._steps = seed, batch_axis, 0
        self._second_stream = SecondStream() if dw_stream else None
        self._measured = measured and not dw_stream
        self._ledger = SavedTensorLedger(ignore=self._buffers.weights) if measure_memory else None
        self.handshake = Handshake(schedule, self._stages, self._end, lambda stage: self._arguments_of(stage, 0),
                                   lambda: self.batch, self._loss_gradient)
        self.batch: Optional[Batch] = None
        self._arguments: Dict[int, List[tuple]] = {}
        self._run: Optional[StepRun] = None
        self._agreed = self._broken = False

    @property
    def rank(self) -> int:
        """Of this process, or of this part of it."""
        return self._end.rank

    def connected_with(self, other: "Pipeline") -> bool:
        """Whether both have ends of one :class:`LocalNetwork`."""
        return self is other or (isinstance(self._end, LocalEnd) and self._end.shares_network_with(other._end))

    @property
    def agreed(self) -> bool:
        """Whether the ranks know what passes between them: since the first step."""
        return self._agreed

    @property
    def weights(self) -> Tuple[Any, ...]:
        """The weights of this rank's stages; one that several of them share stands here once."""
        return self._buffers.weights

    def gradients(self) -> Tuple[Any, ...]:
        """The gradients of :attr:`weights` that the last step summed up; the next step overwrites them."""
        return self._buffers.gradients()

    def step(self, inputs: tuple = (), targets: tuple = (), extras: Optional[Mapping[int, tuple]] = None) -> StepResult:
        """Run the schedule once, and the optimizer. All ranks call it together.

        Args:
            inputs: the arguments of the first stage, for the whole batch, nested at will; read only by the rank that
                has the first stage.
            targets: arguments of the last stage behind its first one; read only by the rank that has it.
            extras: for other stages, arguments behind their first one.

        Returns:
            The loss, where it is known, and what was measured.

        Raises:
            ArgumentTypeError, ArgumentValueError: the batch cannot be cut, or its size differs between the arguments or
                from that of the first step. (As of every exception, the other ranks are told.)
            PipelineError: this rank or another one failed; the message says where. The pipeline is of no use then.
        """
        with self._telling_others():
            self.begin(inputs, targets, extras)
            if self._agreed:
                self._check_batch_is_the_agreed_one()
            else:
                self._announce("before the first step")
                self.handshake.run()
        if not self._agreed:
            self.conclude_handshake()
        with self._telling_others():
            for action in self.schedule.actions[self.rank]:
                self.perform(action)
            return self.end()

    @contextlib.contextmanager
    def _telling_others(self) -> Iterator[None]:
        """If the block raises, the other ranks, which may be waiting for this one, hear of it."""
        try:
            yield
        except BaseException as error:
            self.abandon()
            if self._end.watch is not None and self._end.watch.failure is None:
                reason = error.reason if isinstance(error, PipelineError) else str(error) or type(error).__name__
                self._end.watch.tell_failure(reason)
            raise

    def begin(self, inputs: tuple = (), targets: tuple = (), extras: Optional[Mapping[int, tuple]] = None) -> None:
        """The first part of :meth:`step`: cut the batch. For whoever runs the actions one by one."""
        if self._broken:
            raise StateError("a step of this pipeline failed: make a new one")
        last = self.schedule.stages - 1
        given = [(stage, f"extras[{stage}]", value) for stage, value in _checked_extras(extras, last).items()]
        for stage, name, value in ((0, "inputs", inputs), (last, "targets", targets)):
            if not isinstance(value, tuple):
                raise ArgumentTypeError(f"{name} must be the tuple of the arguments, not {a_kind_of(value)}")
            given.append((stage, name, value))
        self._cut([(stage, name, value) for stage, name, value in given if stage in self._stages])
        self._buffers.clear()
        self._run = StepRun(
            self.schedule, self._stages, self._end, self.handshake, self._buffers, self._arguments_of,
            loss_gradient=self._loss_gradient, seed_of=None if self._seed is None else self._seed_of,
            measured=self._measured, ledger=self._ledger, second_stream=self._second_stream)

    def _cut(self, given: Sequence[Tuple[int, str, tuple]]) -> None:
        """Cut all that the stages of this rank are given: for each of them what it is called, and the value."""
        count = self.schedule.microbatches
        self.batch = None
        self._arguments = {stage: [()] * count for stage in self._stages}
        for stage, name, value in given:
            pieces, found = cut_batch(value, count, self._batch_axis, name)
            self.batch = same_batch(self.batch, found)
            self._arguments[stage] = [before + tuple(piece) for before, piece in zip(self._arguments[stage], pieces)]

    def _check_batch_is_the_agreed_one(self) -> None:
        """The other ranks cannot be asked at each step, but messages of the agreed shapes go with one size only."""
        agreed = self.handshake.batch
        if self.schedule.stages > 1 and None not in (agreed, self.batch) and agreed.rows != self.batch.rows:
            raise ArgumentValueError(f"{self.batch.path} has a batch of {self.batch.rows}, but it was {agreed.rows} in "
                                     "the first step, where the ranks agreed on shapes: make a new pipeline for "
                                     "another size")

    def conclude_handshake(self) -> None:
        """After the handshake: raise PipelineError if anything is wrong on any rank. All ranks know it then."""
        try:
            self.handshake.conclude()
        except PipelineError:
            self.abandon()
            raise
        self._agreed = True

    def perform(self, action: Action) -> None:
        """Run one action of the step; they must come in the order of the schedule.

        Raises:
            ArgumentTypeError: no action.
            StateError: no step has begun, or another action is the next one.
            PipelineError: it failed.
        """
        wanted = self._next_action()
        if check_kind("action", action, Action, "an Action") != wanted:
            raise StateError(f"the next action of rank {self.rank} is {wanted or 'none: call end()'}, not {action}")
        self._run.perform(action)

    def _next_action(self) -> Optional[Action]:
        if self._run is None:
            raise StateError("no step has begun: call begin(inputs, targets) first")
        actions = self.schedule.actions[self.rank]
        return actions[len(self._run.entries)] if len(self._run.entries) < len(actions) else None

    def end(self) -> StepResult:
        """The last part of :meth:`step`: the optimizer, and the result.

        Raises:
            StateError: actions are missing; the message names the next one.
        """
        if self._next_action() is not None:
            raise StateError(f"the step is not done: the next action of rank {self.rank} is {self._next_action()}")
        run = self._run
        if self._second_stream is not None:
            self._second_stream.join()
        if self._optimizer is not None:
            self._optimizer(self._buffers.gradients_of(self._optimizer.parameters))
        losses = tuple(run.losses[number] for number in sorted(run.losses))
        mean = sum(losses[1:], losses[0]) / len(losses) if losses else None
        self._steps += 1
        self._run, self._arguments = None, {}
        self._announce("")
        return StepResult(self.rank, mean, losses, tuple(run.entries), tuple(run.held), tuple(run.bytes_held))

    def abandon(self) -> None:
        """Let go of a step that failed."""
        self._broken = True
        if self._run is not None:
            self._run.release()
        self._run, self._arguments = None, {}

    def collect(self, entries: Sequence[Entry]) -> List[Entry]:
        """The entries of all ranks on rank 0, for one picture; elsewhere the rank's own. All ranks call it together.

        Raises:
            ArgumentTypeError, ArgumentValueError: the entries are none.
        """
        entries = check_entries(entries)
        self._announce("collecting entries")
        if self.rank:
            rows = [[rank, str(action), start, end] for rank, action, start, end in entries]
            self._end.send_note(json.dumps(rows), 0)
            self._announce("")
            return entries
        for peer in range(1, self.schedule.ranks):
            entries += [(rank, Action.parse(text), start, end)
                        for rank, text, start, end in json.loads(self._end.receive_note(peer))]
        self._announce("")
        return entries

    def _announce(self, what: str) -> None:
        """Tell the neighbours what this rank does outside of actions, and hear whether they failed."""
        if self._end.watch is not None:
            try:
                self._end.watch.doing(what)
            except ConnectionError as error:
                raise PipelineError(f"stopped, as {error}", self.rank) from error

    def _arguments_of(self, stage: int, microbatch: int) -> tuple:
        return self._arguments[stage][microbatch]

    def _seed_of(self, stage: int, microbatch: int) -> int:
        text = f"{self._seed} {self._steps} {stage} {microbatch}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") % (2 ** 31 - 1) + 1


def _check_stages(schedule: Schedule, stages: Union[Stage, Mapping[int, Stage]], rank: int) -> Dict[int, Stage]:
    wanted = schedule.stages_of(rank)
    if isinstance(stages, Stage) and len(wanted) == 1:
        stages = {wanted[0]: stages}
    named = f"stage{'s' if len(wanted) > 1 else ''} {' and '.join(map(str, wanted))}"
    if not isinstance(stages, Mapping):
        raise ArgumentTypeError(f"stages must be a dict of the {named} of rank {rank}, not {a_kind_of(stages)}")
    if set(stages) != set(wanted):
        raise ArgumentValueError(f"rank {rank} has the {named} in this schedule, but stages holds "
                                 f"{', '.join(map(str, stages)) or 'none'}")
    for number, stage in stages.items():
        if not isinstance(stage, Stage):
            raise ArgumentTypeError(f"stages[{number}] must be a Stage, not {a_kind_of(stage)}")
    return dict(sorted(stages.items()))


def _checked_end(end: Any) -> Any:
    names = ("rank", "ranks", "watch", "send", "receive", "send_note", "receive_note")
    if isinstance(end, type) or not all(hasattr(end, name) for name in names):
        raise ArgumentTypeError("end is what connect() gave, or one of the ends of a LocalNetwork, not "
                                f"{kind_of(end)}")
    return end


def _parameters_of(optimizer: Any) -> Tuple[Any, ...]:
    parameters = getattr(optimizer, "parameters", None)
    if not callable(optimizer) or not hasattr(parameters, "__iter__"):
        raise ArgumentTypeError("optimizer is an optimizer of MindSpore, with its parameters, or None, not "
                                f"{kind_of(optimizer)}")
    return tuple(parameters)


def _checked_extras(extras: Any, last: int) -> Dict[int, tuple]:
    if extras is None:
        return {}
    if not isinstance(extras, Mapping):
        raise ArgumentTypeError(f"extras is a dict of tuples of arguments, by stage, not {kind_of(extras)}")
    for stage, value in extras.items():
        if check_count("a stage in extras", stage, least=0) > last:
            raise ArgumentValueError(f"extras has arguments for stage {stage}, but the last stage is {last}")
        if not isinstance(value, tuple):
            raise ArgumentTypeError(f"extras[{stage}] must be the tuple of the arguments, not {a_kind_of(value)}")
    return dict(extras)
