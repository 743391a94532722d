"""Count the bytes of the tensors that the forward saved for the backward and that are still alive.

MindSpore reports no memory on CPU, and its pool never shrinks; the saved tensors themselves tell what is held.
"""

import contextlib
import weakref
from contextvars import ContextVar
from typing import Any, Iterable, Iterator, List, Sequence, Tuple

import mindspore as ms

from mindspore_zb.engines.pynative.native import sync


class SavedTensorLedger:
    """Watches forwards through ``mindspore.saved_tensors_hooks``.

    Watching turns MindSpore's asynchronous issue of operations off: measure bytes with it, not time.

    Args:
        ignore: tensors whose storage does not count, such as the weights: they live anyway.

    Example:
        >>> import mindspore as ms
        >>> from mindspore import nn, ops
        >>> from mindspore_zb import forward_and_gradfn
        >>> from mindspore_zb.memory import SavedTensorLedger
        >>> net, x = nn.Dense(4, 3), ops.ones((2, 4))
        >>> ledger = SavedTensorLedger(ignore=net.trainable_params())
        >>> with ledger.watch():
        ...     out, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        >>> ledger.alive_bytes()  # x, 2 * 4 numbers of 4 bytes
        32
        >>> _ = grad_fn()
        >>> ledger.alive_bytes()
        0
    """

    def __init__(self, ignore: Iterable[Any] = ()):
        self._boxes: List["weakref.ref[SavedTensor]"] = []
        self._ignored = frozenset(tensor.data_ptr() for tensor in ignore)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Count what forwards inside the block save."""
        token = _WATCHING.set((self,))  # MindSpore calls the innermost hooks only
        try:
            with ms.saved_tensors_hooks(self._pack, _unpack):
                yield
        finally:
            _WATCHING.reset(token)

    def alive_bytes(self) -> int:
        """Bytes of the saved tensors that are alive, each storage once."""
        return sum(self.alive().values())

    def alive(self) -> "dict[int, int]":
        """Address and bytes of each storage that is alive. Waits for what was issued: frees lag an operation behind."""
        sync()
        boxes = [box for box in (reference() for reference in self._boxes) if box is not None]
        self._boxes = [weakref.ref(box) for box in boxes]
        storages: "dict[int, int]" = {}
        for box in boxes:
            if box.address not in self._ignored:
                storages[box.address] = max(box.nbytes, storages.get(box.address, 0))
        return storages

    def _pack(self, tensor: Any) -> "SavedTensor":
        return saved_for(tensor, (self,))


def watching() -> "Tuple[SavedTensorLedger, ...]":
    """The ledger that watches here and now, if any."""
    return _WATCHING.get()


def saved_for(tensor: Any, ledgers: Sequence[SavedTensorLedger]) -> "SavedTensor":
    """A box with this tensor, which each of the ledgers counts as long as the box lives."""
    box = SavedTensor(tensor)
    for ledger in ledgers:
        ledger._boxes.append(weakref.ref(box))
    return box


_WATCHING: "ContextVar[Tuple[SavedTensorLedger, ...]]" = ContextVar("mindspore_zb_ledgers", default=())


class SavedTensor:
    """Stands in MindSpore's graph for a saved tensor; lives exactly as long as it is saved."""

    __slots__ = ("tensor", "__weakref__")

    def __init__(self, tensor: Any):
        self.tensor = tensor.data  # not the tensor itself, whose history would lead back here

    @property
    def address(self) -> int:
        """Of its storage. MindSpore waits for its threads to tell it, so nobody asks but a ledger."""
        return self.tensor.data_ptr()

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.tensor.nbytes


def _unpack(box: SavedTensor) -> Any:
    return box.tensor
