"""Compute what a block saved again, when the backward first asks for it.

Terms: a **call** is one run of a block; a **segment** is one call, or several that feed each other, computed again
together. In the forward a **recorder** puts a **holder** in the place of every tensor that the call's operations save
for the backward, and keeps only the call's inputs and what cannot or shall not be computed twice. The backward asks a
holder for its tensor, and a **player** runs the segment once more, which fills all its holders. A filled holder lives
as long as MindSpore keeps what the operation saved: until dw for what dw reads. So both dx and dw are served by one
run, on any MindSpore that has ``saved_tensors_hooks``.

Source of the idea: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174, section 3.
"""

import contextlib
import functools
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import mindspore as ms
from mindspore import ops

from mindspore_zb.engines.pynative.native import (eager_mode, grad_edge, leaf_alias, recording_again,
                                                  without_recording)
from mindspore_zb.engines.pynative.native_recompute import (casting_as_now, dropout_again, is_reshaped, keep_tensors,
                                                            precision_of)
from mindspore_zb.engines.pynative.observe import observe_forward, recompute_of, set_recompute
from mindspore_zb.errors import StateError, UnsupportedError
from mindspore_zb.memory.ledger import SavedTensor, SavedTensorLedger, saved_for, watching
from mindspore_zb.memory.random_operations import Tape, generator_states, generators_at, using_tape
from mindspore_zb.structure import Structure, flatten
from mindspore_zb.tensors import copied, detached, is_parameter, is_tensor


class Holder:
    """Stands for a saved tensor until the backward asks for it."""

    __slots__ = ("segment", "shape", "dtype", "saved", "__weakref__")

    def __init__(self, segment: "Segment", tensor: Any):
        self.segment = segment
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.saved: Optional[SavedTensor] = None


@dataclass(frozen=True)
class Source:
    """Where a tensor comes from when a call is repeated.

    Attributes:
        kind: ``"kept"``, ``"previous"`` (an output of the call before it in the segment) or ``"value"``.
        place: the number of the kept tensor or of the output.
        value: the value itself.
        asks_gradient: whether operations on it are recorded; else they would save other tensors.
    """

    kind: str
    place: int = 0
    value: Any = None
    asks_gradient: bool = False


@dataclass(frozen=True)
class Result:
    """What an operation or layer gave that is not run again.

    Attributes:
        structure, sources: how its result nests, and its leaves.
        keep_probability: of a dropout of which only the mask is kept; else None.
        links: holders of what the layer saved of its own inputs, the number of the input and the saved shape.
    """

    structure: Structure
    sources: Tuple[Source, ...]
    keep_probability: Optional[float] = None
    links: Tuple[Tuple["weakref.ref[Holder]", int, tuple], ...] = ()


@dataclass(frozen=True)
class Call:
    """One run of a block, and all that is needed to repeat it."""

    block: "Block"
    structure: Structure
    sources: Tuple[Source, ...]
    kept: Callable[[], Tuple[Any, ...]]
    holders: Tuple["weakref.ref[Holder]", ...]
    results: Tuple[Result, ...]
    states: Tuple[Any, ...]
    casting: Callable[[], Any]
    training: bool


@dataclass(frozen=True)
class Block:
    """A Cell that is recomputed.

    Attributes:
        cell: the Cell.
        name: for messages.
        statistics: Parameters that its normalisations change in the forward, such as moving averages.
        layers: the layers inside whose results are kept.
    """

    cell: Any
    name: str
    statistics: Tuple[Any, ...]
    layers: Tuple[Any, ...]

    def run(self, tape: "Union[Recorder, Player]", args: tuple, kwargs: dict) -> Any:
        """Run ``construct``, with the layers in the hands of ``tape``."""
        before = [recompute_of(layer) for layer in self.layers]
        for layer in self.layers:
            set_recompute(layer, functools.partial(_run_layer, tape, layer))
        try:
            return self.cell.construct(*args, **kwargs)
        finally:
            for layer, stand_in in zip(self.layers, before):
                set_recompute(layer, stand_in)


def _run_layer(tape: "Union[Recorder, Player]", layer: Any, *args: Any, **kwargs: Any) -> Any:
    return tape.layer(layer, args, kwargs)


class Segment:
    """Calls that are computed again together, in their order."""

    def __init__(self) -> None:
        self.calls: List[Call] = []
        self.ledgers: Tuple[SavedTensorLedger, ...] = watching()
        self.filled = False

    def fill(self) -> None:
        """Run the calls again and fill their holders. What they kept is let go of."""
        with eager_mode(), observe_forward(), recording_again():  # what a forward outside observes is not this
            if self.filled:
                return
            outputs: Sequence[Any] = ()
            for call in self.calls:
                outputs = _repeat(call, outputs, self.ledgers)
            self.filled = True
            self.calls = []


def unpack(holder: Any) -> Any:
    """What MindSpore calls to get a saved tensor."""
    if isinstance(holder, SavedTensor):
        return holder.tensor
    if holder.saved is None:
        holder.segment.fill()
    if holder.saved is None:
        raise StateError("a block was computed again while it was being computed again")
    return holder.saved.tensor


class Recorder(Tape):
    """Watches the first run of a call.

    Args:
        segment: the segment that the call will belong to.
    """

    def __init__(self, segment: Segment):
        self._segment = segment
        self._outer: Optional[Tape] = None
        self._holders: List["weakref.ref[Holder]"] = []
        self._results: List[Result] = []
        self._kept: List[Any] = []
        self._places: Dict[int, int] = {}

    def run(self, block: Block, args: tuple, kwargs: dict, linked: Dict[int, int]) -> Any:
        """The block's result; the call is then the last one of the segment.

        Args:
            block: the block.
            args, kwargs: its arguments.
            linked: numbers of outputs of the call before it, by the identity of the tensor.
        """
        leaves, structure = flatten((args, kwargs))
        sources = tuple(self._source(leaf, linked) for leaf in leaves)
        states, casting, training = generator_states(), casting_as_now(), block.cell.training
        try:
            with using_tape(self) as self._outer, ms.saved_tensors_hooks(self._hold, unpack):
                result = block.run(self, args, kwargs)
            kept = keep_tensors(self._kept)  # now that the hooks are those outside of the block again
            self._segment.calls.append(Call(block, structure, sources, kept, tuple(self._holders),
                                            tuple(self._results), states, casting, training))
        finally:  # MindSpore keeps the hooks, and so this, alive; what was kept has a history
            self._outer, self._holders, self._results, self._kept = None, [], [], []
        return result

    def random(self, operation: Any, run: Callable[[], Any], args: tuple) -> Any:
        with ms.saved_tensors_hooks(self._keep_saved, unpack):
            result = run() if self._outer is None else self._outer.random(operation, run, args)
        if _is_plain_dropout(operation, args, result):
            sources = (Source("value", asks_gradient=grad_edge(result[0]) is not None), self._source(result[1], {}))
            self._results.append(Result(flatten(result)[1], sources, operation.keep_prob))
        else:
            self._remember(result)
        return result

    def layer(self, cell: Any, args: tuple, kwargs: dict) -> Any:
        """Run a layer whose result is kept. Of its inputs it keeps nothing: they are computed again."""
        inputs = _tensors((args, kwargs))
        links: List[Tuple["weakref.ref[Holder]", int, tuple]] = []

        def hold_inputs(tensor: Any) -> Any:
            for place, given in enumerate(inputs):
                if is_reshaped(tensor, given):
                    holder = Holder(self._segment, tensor)
                    links.append((weakref.ref(holder), place, tensor.shape))
                    return holder
            return self._keep_saved(tensor)

        try:
            with using_tape(None), ms.saved_tensors_hooks(hold_inputs, unpack):
                result = cell.construct(*args, **kwargs)
        finally:
            inputs.clear()  # see run()
        self._remember(result, tuple(links))
        return result

    def _hold(self, tensor: Any) -> Holder:
        holder = Holder(self._segment, tensor)
        self._holders.append(weakref.ref(holder))
        return holder

    def _keep_saved(self, tensor: Any) -> SavedTensor:
        return saved_for(tensor, self._segment.ledgers)

    def _remember(self, result: Any, links: Tuple[Any, ...] = ()) -> None:
        leaves, structure = flatten(result)
        self._results.append(Result(structure, tuple(self._source(leaf, {}) for leaf in leaves), links=links))

    def _source(self, leaf: Any, linked: Dict[int, int]) -> Source:
        if not is_tensor(leaf) or is_parameter(leaf):
            return Source("value", value=leaf)
        if id(leaf) in linked:
            return Source("previous", linked[id(leaf)], asks_gradient=grad_edge(leaf) is not None)
        if id(leaf) not in self._places:
            self._places[id(leaf)] = len(self._kept)
            self._kept.append(leaf)  # held until the call is recorded, so its identity stands
        return Source("kept", self._places[id(leaf)], asks_gradient=grad_edge(leaf) is not None)


class Player(Tape):
    """Repeats a call: same numbers, same order of saved tensors.

    Args:
        call: the call.
        outputs: what the call before it in the segment gave.
        ledgers: what counts the tensors that come to life.
    """

    def __init__(self, call: Call, outputs: Sequence[Any], ledgers: Sequence[SavedTensorLedger]):
        self._call, self._ledgers = call, ledgers
        self._from = {"kept": call.kept(), "previous": outputs}
        self._found: Dict[Tuple[str, int], Any] = {}
        self._saved = 0
        self._used = 0

    def run(self) -> List[Any]:
        """The leaves of the block's result."""
        call = self._call
        args, kwargs = call.structure.unflatten([self._tensor(source) for source in call.sources])
        with using_tape(self), ms.saved_tensors_hooks(self._fill, unpack):
            result = call.block.run(self, args, kwargs)
        if (self._saved, self._used) != (len(call.holders), len(call.results)):
            raise self._differs()
        return flatten(result)[0]

    def random(self, operation: Any, run: Callable[[], Any], args: tuple) -> Any:
        result = self._next_result()
        leaves = [self._tensor(source) for source in result.sources]
        if result.keep_probability is not None:
            output = dropout_again(detached(args[0]), detached(leaves[1]), result.keep_probability)
            leaves[0] = leaf_alias(output) if result.sources[0].asks_gradient else output
        return result.structure.unflatten(leaves)

    def layer(self, _cell: Any, args: tuple, kwargs: dict) -> Any:
        """The result that the layer gave the first time."""
        result, inputs = self._next_result(), _tensors((args, kwargs))
        for reference, place, shape in result.links:
            holder = reference()
            if holder is not None:
                holder.saved = saved_for(detached(inputs[place]).reshape(shape), self._ledgers)
        return result.structure.unflatten([self._tensor(source) for source in result.sources])

    def _fill(self, tensor: Any) -> SavedTensor:
        if self._saved == len(self._call.holders):
            raise self._differs()
        holder = self._call.holders[self._saved]()
        self._saved += 1
        if holder is None:
            return SavedTensor(tensor)
        if (holder.shape, holder.dtype) != (tensor.shape, tensor.dtype):
            raise self._differs()
        holder.saved = saved_for(tensor, self._ledgers)
        return holder.saved

    def _next_result(self) -> Result:
        if self._used == len(self._call.results):
            raise self._differs()
        self._used += 1
        return self._call.results[self._used - 1]

    def _tensor(self, source: Source) -> Any:
        if source.kind == "value":
            return source.value
        key = source.kind, source.place
        if key not in self._found:
            tensor = self._from[source.kind][source.place]
            self._found[key] = leaf_alias(tensor) if source.asks_gradient else detached(tensor)
        return self._found[key]

    def _differs(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self._call.block.name} did other operations when it was computed again than in its forward: what it "
            "does must depend on its inputs and weights only, or it must not be recomputed")


def _repeat(call: Call, outputs: Sequence[Any], ledgers: Sequence[SavedTensorLedger]) -> List[Any]:
    if call.block.cell.training != call.training:
        raise StateError(f"{call.block.name} was switched between training and inference after its forward, which is "
                         "to be computed again: switch it after the backward")
    with generators_at(call.states), call.casting(), precision_of(call.block.cell), \
            _put_back_afterwards(call.block.statistics):
        return Player(call, outputs, ledgers).run()


@contextlib.contextmanager
def _put_back_afterwards(parameters: Sequence[Any]) -> Iterator[None]:
    with without_recording():
        values = [copied(parameter) for parameter in parameters]
    try:
        yield
    finally:
        with without_recording():
            for parameter, value in zip(parameters, values):
                ops.assign(parameter, value)


def _is_plain_dropout(operation: Any, args: tuple, result: Any) -> bool:
    """Whether the output of a dropout follows from its input and its mask, which are of one shape."""
    return type(operation).__name__ == "Dropout" and len(args) == 1 and is_tensor(args[0]) \
        and result[1].shape == args[0].shape and result[1].dtype == args[0].dtype


def _tensors(value: Any) -> List[Any]:
    return [leaf for leaf in flatten(value)[0] if is_tensor(leaf) and not is_parameter(leaf)]
