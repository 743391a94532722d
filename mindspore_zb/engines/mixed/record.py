"""Record an eager net, and split the compiled blocks in it by pieces of their own."""

from typing import Any, Callable, List, Optional, Sequence

from mindspore_zb.engines.base import Recording
from mindspore_zb.engines.graph.joint import weights_key
from mindspore_zb.engines.graph.partition import CutSettings
from mindspore_zb.engines.graph.record import Recorded, record_part
from mindspore_zb.engines.mixed.block import BlockCall, join_graph
from mindspore_zb.engines.mixed.recording import MixedRecording
from mindspore_zb.engines.pynative.native import grad_edge, is_recording_plainly, under_amp, without_recording
from mindspore_zb.engines.pynative.observe import unobserved
from mindspore_zb.engines.pynative.recording import record
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import detached, is_differentiable, is_tensor


def record_mixed(fn: Callable[..., Any], args: tuple, kwargs: dict, inputs: Sequence[Any], weights: Sequence[Any],
                 differentiable: Callable[[Any], Sequence[Any]], free_early: bool, settings: CutSettings,
                 tell: Callable[[Any, str], None]) -> Recording:
    """The same as :func:`mindspore_zb.engines.pynative.recording.record`, and compiled blocks are split inside.

    Args:
        settings: how the blocks are cut.
        tell: is told ``(block, reason)`` of a block that cannot be compiled and stays one node.
    """
    blocks = _Blocks(fn, weights, settings, tell)
    net = record(fn, args, kwargs, inputs, weights, differentiable, free_early, blocks.run, blocks.anchors)
    return MixedRecording(net, blocks.calls, len(weights)) if blocks.calls else net


class _Blocks:
    """Runs the compiled blocks of one forward.

    Args:
        fn: the net; it is no block of itself.
        weights: the weights of the request.
        settings: how the blocks are cut.
        tell: see :func:`record_mixed`.

    Attributes:
        calls: the calls so far.
        anchors: the leaf that stands for each call's weights.
    """

    def __init__(self, fn: Callable[..., Any], weights: Sequence[Any], settings: CutSettings,
                 tell: Callable[[Any, str], None]):
        self._net = getattr(fn, "__wrapped__", fn)
        self._places = [place for place, weight in enumerate(weights) if weight.requires_grad]
        self._live = tuple(weights[place] for place in self._places)
        self._key = weights_key(self._live)
        self._settings = settings
        self._tell = tell
        self.calls: List[BlockCall] = []
        self.anchors: List[Any] = []

    def run(self, block: Any, args: tuple, kwargs: dict, proceed: Callable[[], Any]) -> Any:
        """Call a block by its own pieces, or as it was meant if that is not possible."""
        if _is_same(block, self._net) or under_amp() or not is_recording_plainly():
            return proceed()
        leaves, structure = flatten((args, kwargs))
        own = [detached(leaf) if is_tensor(leaf) else leaf for leaf in leaves]  # each its own, if one comes twice
        asked = [place for place, leaf in enumerate(leaves)
                 if is_differentiable(leaf) and grad_edge(leaf) is not None]
        own_args, own_kwargs = structure.unflatten(own)
        with unobserved(), without_recording():
            recorded = record_part(block, own_args, own_kwargs, [own[place] for place in asked], self._live,
                                   self._key, self._settings)
        if isinstance(recorded, str):
            self._tell(block, recorded)
            return proceed()
        return self._join(block, recorded, [leaves[place] for place in asked])

    def _join(self, block: Any, recorded: Recorded, inputs: List[Any]) -> Any:
        """The result of a block, with its call as the history of what can have one."""
        leaves, structure = flatten(recorded.result)
        leaves = [detached(leaf) if is_tensor(leaf) else leaf for leaf in leaves]
        places = [place for place, leaf in enumerate(leaves) if is_differentiable(leaf)]
        recording = recorded.recording
        if places and (inputs or recording.program.layout.groups):
            outputs = [leaves[place] for place in places]
            call = BlockCall(_name_of(block), recording, tuple([self._places[place] for place in recorded.weights]),
                             [(tuple(out.shape), out.dtype) for out in outputs])
            anchor, outputs = join_graph(call, inputs, outputs)
            for place, output in zip(places, outputs):
                leaves[place] = output
            self.calls.append(call)
            self.anchors.append(anchor)
        return structure.unflatten(leaves)


def _is_same(block: Any, net: Any) -> bool:
    """Whether a block is the net itself, or the method of it that was asked for."""
    if block is net:
        return True
    owner: Optional[Any] = getattr(net, "__self__", None)
    return owner is not None and (block is owner or getattr(block, "__self__", None) is owner)


def _name_of(block: Any) -> str:
    return getattr(block, "__name__", None) or type(block).__name__
