"""One step of one rank, action by action."""

import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import mindspore as ms
import numpy as np

from mindspore_zb.accumulation import GradientAccumulator
from mindspore_zb.errors import PipelineError, StateError
from mindspore_zb.memory import SavedTensorLedger, synchronize
from mindspore_zb.pipeline.handshake import Handshake
from mindspore_zb.pipeline.metas import MessageMeta
from mindspore_zb.pipeline.results import Entry
from mindspore_zb.pipeline.second_stream import SecondStream
from mindspore_zb.pipeline.stages import Flight, Stage, zeros_like_gradients
from mindspore_zb.pipeline.wording import short
from mindspore_zb.schedule import Action, Schedule
from mindspore_zb.structure import flatten

_WALL = time.time() - time.perf_counter()


def now() -> float:
    """Seconds of a clock that never steps back, and is the same in all processes of a machine."""
    return time.perf_counter() + _WALL


class StepRun:
    """What one rank knows during one step.

    Args:
        arguments_of: for a stage and a micro-batch, the arguments besides what comes from the stage before.
        loss_gradient: the gradient of each micro-batch's loss.
        seed_of: for a stage and a micro-batch, the seed of random operations; None to leave them alone.
        measured: wait after each action until it has run, so that its times are true.
    """

    def __init__(self, schedule: Schedule, stages: Mapping[int, Stage], end: Any, handshake: Handshake,
                 buffers: GradientAccumulator, arguments_of: Callable[[int, int], tuple], *, loss_gradient: float,
                 seed_of: Optional[Callable[[int, int], int]], measured: bool, ledger: Optional[SavedTensorLedger],
                 second_stream: Optional[SecondStream]):
        self.entries: List[Entry] = []
        self.held: List[Tuple[int, int]] = []
        self.bytes_held: List[int] = []
        self.losses: Dict[int, Any] = {}
        self._schedule, self._stages, self._end, self._agreed = schedule, stages, end, handshake
        self._buffers, self._arguments_of, self._loss_gradient = buffers, arguments_of, loss_gradient
        self._seed_of, self._measured, self._ledger, self._second_stream = seed_of, measured, ledger, second_stream
        self._flights: Dict[Tuple[int, int], Flight] = {}
        self._values: Dict[Tuple[int, str, int], List[Any]] = {}  # tensors that wait for F or B, or to be sent
        self._run = {"F": self._forward, "B": self._input_grad, "W": self._weight_grad, "SEND_F": self._send_f,
                     "SEND_B": self._send_b, "RECV_F": self._receive_f, "RECV_B": self._receive_b}

    def perform(self, action: Action) -> None:
        """Run one action.

        Raises:
            PipelineError: it failed.
        """
        watch = self._end.watch
        start = now()
        try:
            if watch is not None:
                watch.doing(f"stage {action.stage}, micro-batch {action.microbatch}, action {action}")
            self._run[action.kind](action)
            if self._measured and not action.sends:
                synchronize()
        except ConnectionError as error:
            raise PipelineError(f"stopped, as {error}", self._end.rank, action) from error
        except Exception as error:
            if watch is not None and watch.failure is not None:
                raise PipelineError(f"stopped, as {watch.failure}", self._end.rank, action) from error
            raise PipelineError(f"{type(error).__name__}: {short(error)}", self._end.rank, action) from error
        self.entries.append((self._end.rank, action, start, now()))
        self._note_memory()

    def release(self) -> None:
        """Let go of all micro-batches."""
        for flight in self._flights.values():
            flight.release()
        self._flights.clear()
        self._values.clear()

    def _note_memory(self) -> None:
        states = [flight.held for flight in self._flights.values()]
        self.held.append((states.count("whole"), states.count("rest")))
        if self._ledger is not None:
            self.bytes_held.append(self._ledger.alive_bytes())

    def _forward(self, action: Action) -> None:
        stage, microbatch = action.stage, action.microbatch
        takes = self._agreed.takes[stage]
        args = self._arguments_of(stage, microbatch)
        if takes is not None:
            args = (takes.nested(self._values.pop((stage, "F", microbatch))), *args)
        flight = self._flights[stage, microbatch] = self._stages[stage].new_flight(takes)
        if self._ledger is not None:
            with self._ledger.watch():
                out = self._seeded(action, lambda: flight.forward(args))
        else:
            out = self._seeded(action, lambda: flight.forward(args))
        gives = self._agreed.gives[stage]
        if gives is None:
            self.losses[microbatch] = out
            return
        found = MessageMeta.of(out, "what the stage returns")
        if found != gives:
            raise StateError(f"the stage returned {found}, but {gives} was agreed before the first step")
        self._pass_on(action, flatten(out)[0])

    def _seeded(self, action: Action, forward: Callable[[], Any]) -> Any:
        if self._seed_of is None:
            return forward()
        state = np.random.get_state()  # set_seed seeds numpy too, which is the caller's
        try:
            ms.set_seed(self._seed_of(action.stage, action.microbatch))
            return forward()
        finally:
            np.random.set_state(state)

    def _input_grad(self, action: Action) -> None:
        stage, microbatch = action.stage, action.microbatch
        flight, takes, gives = self._flights[stage, microbatch], self._agreed.takes[stage], self._agreed.gives[stage]
        flight.check_ready("forward done")
        if gives is None:
            loss = self.losses[microbatch]
            sens = ms.ops.full(loss.shape, self._loss_gradient, dtype=loss.dtype)
        else:
            leaves: List[Any] = [None] * len(gives.leaves)
            for place, grad in zip(gives.gradient_places, self._values.pop((stage, "B", microbatch))):
                leaves[place] = grad
            sens = gives.nested(leaves)
        grads = flight.input_grad(sens)
        if takes is not None:
            self._pass_on(action, grads or zeros_like_gradients(takes))

    def _weight_grad(self, action: Action) -> None:
        flight = self._flights[action.stage, action.microbatch]
        flight.check_ready("dx done")

        def work() -> None:
            self._buffers.add(*flight.weight_grad(action.part, action.parts))

        if self._second_stream is None:
            work()
        else:
            self._second_stream.run(work)
        if flight.done:
            del self._flights[action.stage, action.microbatch]

    def _pass_on(self, action: Action, tensors: List[Any]) -> None:
        """Keep the result of F or B for the send, or for the neighbouring stage if that is of this rank too."""
        other = action.stage + (1 if action.kind == "F" else -1)
        if self._schedule.rank_of(other) == self._end.rank:
            self._values[other, action.kind, action.microbatch] = tensors
        else:
            self._values[action.stage, f"SEND_{action.kind}", action.microbatch] = tensors

    def _send_f(self, action: Action) -> None:
        self._send(action)

    def _send_b(self, action: Action) -> None:
        self._send(action)

    def _send(self, action: Action) -> None:
        for tensor in self._values.pop((action.stage, action.kind, action.microbatch)):
            self._end.send(tensor, self._schedule.peer(action))

    def _receive_f(self, action: Action) -> None:
        leaves = self._agreed.takes[action.stage].leaves
        self._values[action.stage, "F", action.microbatch] = [
            self._end.receive(leaf, self._schedule.peer(action)) for leaf in leaves]

    def _receive_b(self, action: Action) -> None:
        gives = self._agreed.gives[action.stage]
        self._values[action.stage, "B", action.microbatch] = [
            self._end.receive(gives.leaves[place], self._schedule.peer(action)) for place in gives.gradient_places]
