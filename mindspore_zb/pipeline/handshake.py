"""Before the first step: what passes between the stages is agreed, as messages carry neither shape nor dtype.

An offer goes down the stages: each learns what it takes, finds out what it gives, and offers that to the next. Then a
confirmation, or what is wrong, comes back up; so no rank begins the first step unless all of them can.
"""

import hashlib
import json
from typing import Any, Callable, Dict, Mapping, Optional

import mindspore as ms
import numpy as np

from mindspore_zb.counted import counted
from mindspore_zb.errors import ArgumentValueError, PipelineError, ZeroBubbleError
from mindspore_zb.pipeline.metas import MessageMeta, TensorMeta
from mindspore_zb.pipeline.microbatches import Batch, same_batch
from mindspore_zb.pipeline.stages import Stage, trial_output
from mindspore_zb.pipeline.wording import short
from mindspore_zb.schedule import Schedule


class Handshake:
    """The part of one rank.

    Attributes:
        takes, gives: for each stage of the rank what it takes from the stage before and gives to the next one; None
            where there is none.
        batch: the size of the batch, as far as this rank and those before know it.
        problem: what is wrong, on whatever rank; None if nothing is.
    """

    def __init__(self, schedule: Schedule, stages: Mapping[int, Stage], end: Any,
                 arguments_of: Callable[[int], tuple], own_batch: Callable[[], Optional[Batch]],
                 loss_gradient: float = 1.0):
        self.takes: Dict[int, Optional[MessageMeta]] = {}
        self.gives: Dict[int, Optional[MessageMeta]] = {}
        self.batch: Optional[Batch] = None
        self.problem: Optional[str] = None
        self._schedule, self._stages, self._end = schedule, stages, end
        self._arguments_of, self._own_batch, self._loss_gradient = arguments_of, own_batch, loss_gradient
        self._digest = hashlib.sha256(str(schedule).encode()).hexdigest()
        self._notes: Dict[int, str] = {}

    def run(self) -> None:
        """All of it, where each rank has a process of its own."""
        for stage in sorted(self._stages):
            self.offer(stage)
        for stage in sorted(self._stages, reverse=True):
            self.confirm(stage)

    def conclude(self) -> None:
        """Raise PipelineError if any rank found something wrong."""
        if self.problem is not None:
            raise PipelineError(self.problem, self._end.rank)

    def offer(self, stage: int) -> None:
        """The way down: take the offer of the stage before, and make one to the next."""
        note = json.loads(self._receive(stage, stage - 1)) if stage else {"schedule": self._digest, "offer": None}
        if "problem" not in note:
            try:
                answer = self._answer(stage, note)
                note = {"schedule": self._digest, "offer": answer, "batch": self.batch}
            except ZeroBubbleError as error:
                note = {"problem": f"before the first step, stage {stage} on rank {self._end.rank}: {error}"}
        if stage + 1 < self._schedule.stages:
            self._send(stage, stage + 1, json.dumps(note))
        else:
            self.problem = note.get("problem")

    def confirm(self, stage: int) -> None:
        """The way up: pass on what the last stage knows."""
        if stage + 1 < self._schedule.stages:
            self.problem = json.loads(self._receive(stage, stage + 1))
        if stage:
            self._send(stage, stage - 1, json.dumps(self.problem))

    def _answer(self, stage: int, note: Dict[str, Any]) -> Any:
        if note["schedule"] != self._digest:
            raise ArgumentValueError(f"the rank of stage {stage - 1} has another schedule than {self._schedule.name} "
                                     f"with {counted(self._schedule.microbatches, 'micro-batch')}")
        known = Batch(*note["batch"]) if note.get("batch") else None
        self.batch = same_batch(known, self._own_batch())
        takes = MessageMeta.from_json(note["offer"]) if stage else None
        declared = self._stages[stage]
        if takes is not None and declared.takes is not None:
            wanted = MessageMeta.of(declared.takes, "takes")
            if wanted != takes:
                raise ArgumentValueError(f"it takes {wanted}, but stage {stage - 1} on rank "
                                         f"{self._schedule.rank_of(stage - 1)} gives {takes}")
        self.takes[stage] = takes
        gives = self._gives(stage, takes)
        last = stage + 1 == self._schedule.stages
        if last and (len(gives.leaves) != 1 or not gives.leaves[0].differentiable
                     or gives.leaves[0].shape not in ((), (1,))):
            raise ArgumentValueError(f"the last stage must return its loss as one number, but it returns {gives}")
        if last:
            _check_loss_gradient(self._loss_gradient, gives.leaves[0])
        self.gives[stage] = None if last else gives
        return None if last else gives.to_json()

    def _gives(self, stage: int, takes: Optional[MessageMeta]) -> MessageMeta:
        declared = self._stages[stage]
        if declared.gives is not None:
            return MessageMeta.of(declared.gives, "gives")
        arguments = self._arguments_of(stage)
        if takes is not None:
            arguments = (takes.nested([leaf.new() for leaf in takes.leaves]), *arguments)
        try:
            out = trial_output(declared, arguments)
        except Exception as error:  # whatever the stage raises is told to all ranks
            given = f"{takes} from stage {stage - 1} on rank {self._schedule.rank_of(stage - 1)}" if takes \
                else "the inputs"
            raise ArgumentValueError(f"its forward on {given} failed: {type(error).__name__}: "
                                     f"{short(error)}") from error
        return MessageMeta.of(out, "what it returns")

    def _send(self, stage: int, other: int, text: str) -> None:
        peer = self._schedule.rank_of(other)
        if peer == self._end.rank:
            self._notes[other] = text
        else:
            self._end.send_note(text, peer)

    def _receive(self, stage: int, other: int) -> str:
        peer = self._schedule.rank_of(other)
        return self._notes.pop(stage) if peer == self._end.rank else self._end.receive_note(peer)


def _check_loss_gradient(gradient: float, loss: TensorMeta) -> None:
    """All gradients begin with this number, in the dtype of the loss: as zero or inf it would spoil them in silence."""
    held = ms.Tensor(np.array([gradient])).astype(loss.framework_dtype).astype(ms.float64).asnumpy()[0]
    if not 0 < abs(held) < np.inf:
        raise ArgumentValueError(f"loss_scale / m is {gradient:g}, the gradient of each micro-batch's loss, and that "
                                 f"is {held:g} as {loss.dtype}, the dtype of the loss: choose a loss_scale nearer to 1")
