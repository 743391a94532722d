"""One call of a compiled block inside an eager net: a node of the net's grad graph that runs the block's own dx.

The block's weights are no edges of that node. In their place it has one, the *anchor*, a leaf that stands for all of
them: so the net's split sees where the block's dw starts, and whether dx runs the block or dw does.
"""

import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mindspore as ms
from mindspore.common._grad_function import _Function

from mindspore_zb.engines.base import GroupInfo
from mindspore_zb.engines.graph.recording import GraphRecording
from mindspore_zb.engines.pynative.native import new_leaf, without_pipeline, without_recording
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.tensors import zeros

Grads = List[Tuple[int, Optional[Any]]]
"""``(position of the weight in the net's request, gradient or None)``."""


class BlockCall:
    """What one call of a block holds.

    Args:
        name: what to call the block.
        recording: its forward.
        positions: the positions of its weights in the net's request.
        metas: shape and dtype of each differentiable output.

    Attributes:
        keep: whether the next backward may come again.
        whole: whether the next backward computes the weights' gradients at once.
        crossing: bytes of values that cross from its forward to its backward, and those that would if nothing were
            computed again.
        waits: whether dx is over and left it to dw to run the block.
    """

    def __init__(self, name: str, recording: GraphRecording, positions: Tuple[int, ...],
                 metas: Sequence[Tuple[Tuple[int, ...], Any]]):
        self.name = name
        self.groups: Tuple[GroupInfo, ...] = recording.program.groups_at(positions)
        self.crossing = recording.crossing_bytes()
        self._positions = positions
        self.keep = False
        self.whole = False
        self.waits = False
        self._metas = tuple(metas)
        self._fresh: Optional[GraphRecording] = recording
        self._ran: Optional[GraphRecording] = None
        self._grads: Grads = []

    def backward(self, grads: Sequence[Optional[Any]]) -> List[Optional[Any]]:
        """Run the block's dx: the gradients of its inputs from those of its outputs."""
        if self._fresh is None:
            raise UnsupportedError(f"the backward of the compiled block {self.name} ran already, or was released")
        running = self._fresh.branch() if self.keep else self._fresh
        if not self.keep:
            self._fresh = None
        sens = [self._fitting(grad, meta) for grad, meta in zip(grads, self._metas)]
        with without_recording():
            found = running.input_grads(sens, copies=False)
            if self.whole:
                self._grads = self._run(running, range(len(self.groups)), keep_graph=False)
            else:
                self._ran = running
        return found

    def _fitting(self, grad: Optional[Any], meta: Tuple[Tuple[int, ...], Any]) -> Optional[Any]:
        """The gradient as the pieces read it: a compiled graph would read past the end of a smaller one."""
        if grad is None:
            return None
        shape, dtype = meta
        if tuple(grad.shape) != shape:
            raise UnsupportedError(f"a gradient of shape {tuple(grad.shape)} came for an output of the compiled block "
                                   f"{self.name} that has the shape {shape}")
        return grad if grad.dtype == dtype else grad.astype(dtype)

    def weight_grads(self, pieces: Sequence[int], keep_graph: bool) -> Grads:
        """Run dw of some pieces; nothing if no gradient reached the block."""
        return [] if self._ran is None else self._run(self._ran, pieces, keep_graph)

    def _run(self, running: GraphRecording, pieces: Sequence[int], keep_graph: bool) -> Grads:
        if not pieces:
            return []
        return [(self._positions[place], grad) for place, grad in running.weight_grads(pieces, keep_graph)]

    def take_grads(self) -> Grads:
        """The gradients of the weights that a whole backward computed."""
        grads, self._grads = self._grads, []
        return grads

    def held(self, pieces: Sequence[int]) -> Dict[int, int]:
        """Bytes that wait for dw of these pieces, by the address of their storage."""
        waiting = self._fresh if self.waits else self._ran
        return {} if waiting is None else waiting.held(pieces)

    def held_storages(self) -> Dict[int, int]:
        """Address and bytes of each storage that it holds, parameters left out."""
        storages: Dict[int, int] = {}
        for recording in (self._fresh, self._ran):
            if recording is not None:
                storages.update(recording.held_storages())
        return storages

    def forget_forward(self) -> None:
        """Let go of what only a backward of the block would need: none comes any more."""
        if self._fresh is not None:
            self._fresh.release()
            self._fresh = None

    def release(self) -> None:
        """Let go of everything."""
        self.forget_forward()
        if self._ran is not None:
            self._ran.release()
            self._ran = None
        self._grads = []


def join_graph(call: BlockCall, inputs: Sequence[Any], outputs: Sequence[Any]) -> Tuple[Any, Tuple[Any, ...]]:
    """Make the outputs of a block the results of one operation on its inputs.

    Args:
        call: runs the backward.
        inputs: the tensors that ask for a gradient.
        outputs: the differentiable tensors that the block computed, without history.

    Returns:
        ``(anchor, outputs)``: the leaf in the place of the block's weights, and the outputs with history.
    """
    anchor = new_leaf(_ANCHOR_DTYPE)[0]
    with without_pipeline():
        return anchor, _operation(call.name).apply(call, _Carried(outputs), anchor, *inputs)


class _Carried:
    """Takes the outputs past the operation's arguments, of which they are none."""

    def __init__(self, outputs: Sequence[Any]):
        self.outputs = tuple(outputs)

    def take(self) -> Tuple[Any, ...]:
        """The outputs, once."""
        outputs, self.outputs = self.outputs, ()
        return outputs


class _BlockOperation(_Function):
    """The operation whose node a block is."""

    is_compiled_block = True  # read by engines/pynative/node_kinds.py

    @staticmethod
    def forward(ctx, call, carried, _anchor, *_inputs):
        ctx.call = weakref.ref(call)  # the net's recording holds it; a tensor that the caller kept leads here too
        ctx.block = call.name
        ctx.set_materialize_grads(False)
        return carried.take()

    @staticmethod
    def backward(ctx, *grads):
        call = ctx.call()
        if call is None:
            raise UnsupportedError(f"the backward of the compiled block {ctx.block} was released")
        found = call.backward(grads)
        return (None, None, _anchor_grad(), *found)


def _operation(name: str) -> Any:
    """The operation under the name of a block: MindSpore names nodes after the class."""
    known = _OPERATIONS.get(name)
    if known is None:
        known = _OPERATIONS[name] = type(name, (_BlockOperation,), {"__module__": __name__})
    return known


def _anchor_grad() -> Any:
    if not _ANCHOR_GRAD:
        _ANCHOR_GRAD.append(zeros((1,), _ANCHOR_DTYPE))
    return _ANCHOR_GRAD[0]


_ANCHOR_DTYPE = ms.float32
_OPERATIONS: Dict[str, Any] = {}
_ANCHOR_GRAD: List[Any] = []
