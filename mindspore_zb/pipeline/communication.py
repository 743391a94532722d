"""Messages between the processes of a pipeline: the one place that uses MindSpore's distributed functions.

The point-to-point operators of ``mindspore.ops.communication`` are used below their Python functions, which ask for
groups that not every backend has. Messages of a pair of ranks keep their order; shapes and dtypes are not sent along,
so they are agreed before (:mod:`mindspore_zb.pipeline.handshake`). Empty tensors are not sent, as not every backend
can do that.
"""

import atexit
import os
import sys
from typing import Any, Optional

import mindspore as ms
import numpy as np

from mindspore_zb.checks import check_number
from mindspore_zb.errors import StateError, UnsupportedVersionError
from mindspore_zb.memory import synchronize
from mindspore_zb.pipeline.metas import TensorMeta
from mindspore_zb.pipeline.watching import Watch
from mindspore_zb.pipeline.wording import short

_TIMEOUT_VARIABLES = ("MS_CPU_COMM_OP_TIMEOUT", "HCCL_EXEC_TIMEOUT")
_MOST_SECONDS = 2.0 ** 31 - 1
_SCHEDULER_SECONDS = 30
"""How long a rank may give no sign of life. The framework's own threads give it, however busy the program is."""
_SENDS_WAIT = ("hccl", "nccl")
"""Backends whose sends hold what is issued to the same group behind them, until they are received."""
_DEVICE_NAME = {"bool_": "uint8"}  # not every backend sends booleans


def connect(timeout: float = 1800.0) -> "ProcessEnd":
    """Join the other processes that ``msrun`` started; call it once, before any compiled function runs.

    Args:
        timeout: seconds after which a receive without a message is an error, where the environment does not say it
            already. A rank that dies or raises is noticed at once, so this need not be short.

    Returns:
        This process's end of all connections.

    Raises:
        UnsupportedVersionError: this MindSpore has not the functions that are needed.
        ArgumentTypeError, ArgumentValueError: ``timeout`` is no number of seconds above 0.
        StateError: there are no other processes to join.

    ``msrun`` runs the program in its scheduler too, which stays in here until all ranks have ended. It notices the end
    of a rank that was killed after ``MS_NODE_TIMEOUT`` seconds; where the environment does not set it, that is 30
    here and not MindSpore's 300.
    """
    timeout = check_number("timeout", timeout, positive=True, most=_MOST_SECONDS, hint=", in seconds")
    for variable in _TIMEOUT_VARIABLES:
        os.environ.setdefault(variable, str(max(1, int(timeout))))
    schedules = os.environ.get("MS_ROLE") == "MS_SCHED"
    if schedules:
        os.environ.setdefault("MS_NODE_TIMEOUT", str(_SCHEDULER_SECONDS))
    try:
        from mindspore.communication import GlobalComm, create_group, get_group_size, get_rank, init
        from mindspore.ops.function.comm_func import dist_comm_irecv_op, dist_comm_isend_op
    except ImportError as error:
        raise UnsupportedVersionError(f"MindSpore {ms.__version__} has no point-to-point communication that pipelines "
                                      f"can use: {error}") from error
    if not GlobalComm.INITED:
        try:
            init()
        except Exception as error:  # which one depends on the backend
            if schedules:
                raise StateError("this is msrun's scheduler, which ends as a rank has ended or gives no sign of life: "
                                 f"the log of that rank, worker_N.log, says why. MindSpore: {short(error)}") from None
            raise StateError("the processes could not be connected; were they started by msrun? "
                             f"{type(error).__name__}: {short(error)}") from error
    end = ProcessEnd(get_rank(), get_group_size(), GlobalComm.WORLD_COMM_GROUP, dist_comm_isend_op, dist_comm_irecv_op)
    if GlobalComm.BACKEND in _SENDS_WAIT:
        end.use_groups(create_group)
    end.watch = Watch.join(end)
    atexit.register(_leave, end.watch)
    return end


def _leave(watch: Watch) -> None:
    """The end of the program: the others wait for nothing more from here, or hear that it failed."""
    error: Optional[BaseException] = getattr(sys, "last_value", None)
    if error is None:
        watch.close()
    else:
        watch.tell_failure(f"{type(error).__name__}: {error}")


class ProcessEnd:
    """One process's end of the connections to all others.

    Attributes:
        rank: of this process.
        ranks: how many processes there are.
        watch: notices when a neighbour fails.
    """

    def __init__(self, rank: int, ranks: int, group: str, send: Any, receive: Any):
        self.rank, self.ranks = rank, ranks
        self.watch: Any = None
        self._send, self._receive = send, receive
        self._routes = {(one, other): (group, other) for one in range(ranks) for other in range(ranks)}

    def use_groups(self, create_group: Any) -> None:
        """Give each direction between neighbours a group of its own, so that a send that waits for its receiver never
        holds up what goes the other way, or to another rank."""
        for lower in range(self.ranks - 1):
            for sender, receiver in ((lower, lower + 1), (lower + 1, lower)):
                if self.rank in (sender, receiver):
                    name = f"mindspore_zb_{sender}_to_{receiver}"
                    create_group(name, [lower, lower + 1])
                    self._routes[sender, receiver] = name, receiver - lower

    def send(self, tensor: Any, peer: int) -> None:
        """Hand a tensor over; returns at once. An empty one is not sent: the receiver knows all of it."""
        if 0 in tensor.shape:
            return
        name = str(tensor.dtype).lower()
        tensor = tensor.astype(ms.uint8) if name == "bool" else tensor
        group, number = self._routes[self.rank, peer]
        self._send(tensor if tensor.is_contiguous() else tensor.contiguous(), number, group, 0)

    def receive(self, meta: TensorMeta, peer: int) -> Any:
        """A tensor from ``peer``. It may not be there yet: whatever uses it waits. An empty one is made here."""
        if 0 in meta.shape:
            return meta.new()
        sent_as = TensorMeta(meta.shape, _DEVICE_NAME.get(meta.dtype, meta.dtype))
        buffer = sent_as.new()
        group, receiver = self._routes[peer, self.rank]
        self._receive(buffer, 0, peer - self.rank + receiver, group)  # counted within the group
        return buffer if sent_as == meta else buffer.astype(meta.framework_dtype)

    def send_note(self, text: str, peer: int) -> None:
        """Hand a text over."""
        data = np.frombuffer(text.encode("utf-8"), np.uint8)
        self.send(ms.Tensor(np.array([len(data)], np.int32)), peer)
        if len(data):
            self.send(ms.Tensor(data.copy()), peer)
        synchronize()

    def receive_note(self, peer: int) -> str:
        """The next text from ``peer``; waits for it."""
        length = int(self.receive(TensorMeta((1,), "int32"), peer).asnumpy()[0])
        if length == 0:
            return ""
        return self.receive(TensorMeta((length,), "uint8"), peer).asnumpy().tobytes().decode("utf-8")

    def close(self) -> None:
        """Nothing more will be sent or received; the others may go on without this process."""
        self.watch.close()
