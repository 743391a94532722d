"""Notice tensors that are changed between the forward and their use in the backward.

MindSpore's operations save tensors for the backward, and what changes one in place makes gradients silently wrong; its
counter of versions is moved by ``copy_`` only. Here each saved tensor's contents are taken when it is saved, and
compared when the backward reads it.
"""

import contextlib
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from mindspore import nn

from mindspore_zb.engines.pynative.native import grad_edge, sync
from mindspore_zb.engines.pynative.opaque import watching_saved_tensors
from mindspore_zb.engines.watch import Check, OpaqueCall, Watcher
from mindspore_zb.errors import ArgumentTypeError, ChangedTensorError
from mindspore_zb.memory.contents import Contents, Memory
from mindspore_zb.memory.origin import Origin, here
from mindspore_zb.memory.reading import compiled_origin, parameters_of
from mindspore_zb.tensors import is_parameter


@contextlib.contextmanager
def guard(exact: bool = True) -> Iterator["Guard"]:
    """Make it an error that a tensor which the backward reads was changed after the forward had saved it.

    Covers the forwards of this thread inside the block, by :func:`~mindspore_zb.forward_and_gradfn` (both engines), by
    ``mindspore.value_and_grad`` or by hand, and their backwards wherever they run, also after the block. What counts is
    the contents: writing the same values again is no change. A tensor counts as read when MindSpore fetches it, even if
    the gradients that are asked for do not depend on it.

    Watching turns MindSpore's asynchronous issue of operations off and copies what is saved; see
    ``scripts/bench_guard.py``. It is a tool to find a fault with, not one to train under.

    Args:
        exact: compare with copies, which take as many bytes as what is saved. With False by CRC-32 checksums: slower
            for large tensors, but without the memory.

    Raises:
        ChangedTensorError: in the backward, before wrong gradients come of it: names the tensor, and the Cell and the
            operation that saved it. The :class:`~mindspore_zb.GradFunction` is released by it if it came in dx.
        StateError: other hooks for saved tensors, or another guard, are active.
        UnsupportedError: such hooks begin inside.
        ArgumentTypeError: ``exact`` is neither True nor False.

    Example:
        >>> from mindspore import nn, ops
        >>> from mindspore_zb import forward_and_gradfn
        >>> from mindspore_zb.memory import guard
        >>> net, x = nn.Dense(4, 3), ops.ones((2, 4))
        >>> with guard():
        ...     out, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        >>> x[0] = 5.0
        >>> grad_fn()
        Traceback (most recent call last):
        ...
        mindspore_zb.errors.ChangedTensorError: a tensor of shape (2, 4) and dtype Float32, saved for the backward of
        Dense, MatMul at ..., was changed before it was read: 4 of 8 values differ, the first at [0, 0]: 1.0 then, 5.0
        now
    """
    if not isinstance(exact, bool):
        raise ArgumentTypeError(f"exact must be True or False, not {exact!r}")
    watch = Guard(exact)
    with watching_saved_tensors(_Watcher(watch), watch._pack, _unpack):
        try:
            yield watch
        finally:
            watch._let_go()


class Guard:
    """What a :func:`guard` has seen.

    Attributes:
        saved: how many tensors were saved, those of compiled code and custom backwards included.
        checked: how often one was compared.
    """

    def __init__(self, exact: bool) -> None:
        self.saved = 0
        self.checked = 0
        self._memory = Memory(exact)
        self._watching: List["weakref.ref[_Watched]"] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the copies that are alive; 0 with checksums. Waits for what was issued: frees lag behind."""
        sync()
        return self._memory.nbytes

    def _pack(self, tensor: Any) -> "_Box":
        origin, statistics = here()
        return _Box(tensor, None if tensor.data_ptr() in statistics else self._watched(tensor, origin))

    def _watched(self, tensor: Any, origin: Any, name: Optional[str] = None) -> "_Watched":
        self.saved += 1
        watched = _Watched(self, tensor, origin, name)
        if watched.source is not None:
            self._watching.append(weakref.ref(watched))
        return watched

    def _let_go(self) -> None:
        """Hold no source that the forward gave a history in the meantime: the history may lead back to who holds it."""
        for watched in filter(None, (reference() for reference in self._watching)):
            if _has_history(watched.source):
                watched.source = None
        self._watching = []


class _Watched:
    """One tensor and what it contained.

    Attributes:
        source: the tensor itself if it has no history, else None. Only with it the exchange of its data is seen
            (``set_data``, ``assign_value``): the alias that is saved keeps the old data.
    """

    __slots__ = ("source", "_guard", "_contents", "_origin", "_name", "_dtype", "__weakref__")

    def __init__(self, guard_: Guard, tensor: Any, origin: Any, name: Optional[str]):
        self.source = None if _has_history(tensor) else tensor
        self._guard = guard_
        self._contents: Contents = guard_._memory.take(tensor)
        self._origin = origin
        self._name = name or getattr(getattr(tensor, "param_info", None), "name", None)
        self._dtype = tensor.dtype

    def check(self, tensor: Any) -> None:
        """Raise unless the source, or else ``tensor``, contains what it did."""
        self._guard.checked += 1
        found = self._contents.difference(tensor if self.source is None else self.source)
        if found is not None:
            what = f"the weight {self._name}" if self._name else \
                f"a tensor of shape {self._contents.shape} and dtype {self._dtype}"
            raise ChangedTensorError(f"{what}, saved for the backward of {self._origin}, was changed before it was "
                                     f"read: {found}")


class _Box:
    """Stands in MindSpore's graph for a saved tensor."""

    __slots__ = ("tensor", "watched", "__weakref__")

    def __init__(self, tensor: Any, watched: Optional[_Watched]):
        self.tensor = tensor.data  # not the tensor itself, whose history would lead back here
        self.watched = watched


def _unpack(box: _Box) -> Any:
    if box.watched is not None:
        box.watched.check(box.tensor)
    return box.tensor


def _has_history(tensor: Any) -> bool:
    """Whether an operation gave it: a leaf has a node, but the node leads nowhere."""
    edge = grad_edge(tensor)
    return edge is not None and bool(edge[0].next_functions)


class _Watcher(Watcher):
    """What compiled, custom and recomputed code reads in its backward."""

    def __init__(self, watch: Guard):
        self._guard = watch

    def compiled(self, recording: Any) -> Any:
        program, watch = recording.program, self._guard
        watched: Dict[str, _Watched] = {}
        for piece in (program.dx, *program.dw):
            for value in piece.reads:
                tensor = recording.values.get(value)
                if tensor is not None and value not in watched:
                    name = tensor.name if is_parameter(tensor) else None
                    watched[value] = watch._watched(tensor, compiled_origin(piece.readers.get(value, "")), name)

        def check(piece: Any, values: Dict[str, Any]) -> None:
            for value in piece.reads:
                if value in watched:
                    watched[value].check(values[value])

        return check

    def opaque(self, call: OpaqueCall) -> Any:
        watch, origin = self._guard, _origin_of(call)
        parameters = parameters_of(call.owner)
        before = [(parameter, watch._memory.take(parameter)) for parameter in parameters if not parameter.requires_grad]

        def ended(kept: Sequence[Any]) -> Check:
            own = {id(parameter) for parameter, contents in before if contents.difference(parameter) is not None}
            entries: List[Tuple[Any, _Watched]] = [
                (tensor.data, watch._watched(tensor, origin)) for tensor in (*parameters, *call.tensors, *kept)
                if id(tensor) not in own]  # what it changes itself are statistics, that it keeps up to date

            def check() -> None:
                for alias, watched in entries:
                    watched.check(alias)

            return check

        return ended


def _origin_of(call: OpaqueCall) -> Origin:
    """The place of the call; the Cell that is called counts as the innermost one."""
    owner = getattr(call.owner, "__self__", call.owner)
    if isinstance(owner, nn.Cell):
        return here(owner, call.kind)[0]
    return here(None, f"{call.kind} {getattr(owner, '__qualname__', type(owner).__name__)}")[0]
