"""Write down every save and every free of a tensor that waits for the backward, with the Cell and the operation."""

import contextlib
import os
import sys
import threading
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import mindspore as ms

from mindspore_zb.engines.pynative.native import made_by, storage_of, sync
from mindspore_zb.engines.pynative.observe import watching_cells
from mindspore_zb.memory.layers import Layers
from mindspore_zb.memory.storages import SavedStorage

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MINDSPORES = os.path.dirname(os.path.abspath(ms.__file__)) + os.sep


class SavedTensorLog:
    """Watches forwards and backwards through ``mindspore.saved_tensors_hooks``.

    Only this thread is watched. Watching changes no value and nothing of the Cells, and leaves no trace. It turns
    MindSpore's asynchronous issue of operations off, and compiled blocks inside of an eager net are not taken apart.

    Args:
        layers: the names of the Cells of what is run.
        ignore: tensors whose storage does not count; all Parameters of ``layers`` are left out anyway.
        names: tensors and what to call them.
    """

    def __init__(self, layers: Layers, ignore: Iterable[Any] = (), names: Iterable[Tuple[str, Any]] = ()):
        self._layers = layers
        self._ignored = frozenset(storage_of(tensor)[0] for tensor in (*ignore, *layers.parameters))
        self._names = {storage_of(tensor)[0]: name for name, tensor in names}
        self._entries: List[_Entry] = []
        self._alive: Dict[int, _Entry] = {}
        self._boxes: Dict[int, Any] = {}
        self._events = 0
        self._cells: List[Any] = []
        self._running = ""
        self._thread = threading.get_ident()  # in MindSpore 2.9 the hooks see all threads
        self.step = ""

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Write down what happens inside the block."""
        with watching_cells() as self._cells, ms.saved_tensors_hooks(self._pack, self._unpack):
            yield

    def tell_operation(self, name: str) -> None:
        """The backward of this operation runs next; see ``GradFunction.watch_nodes``."""
        self._running = name

    def alive(self) -> Dict[int, int]:
        """Address and bytes of each storage that is alive. Waits for what was issued: frees lag an operation behind."""
        sync()
        return {address: entry.nbytes for address, entry in self._alive.items()}

    def events(self) -> int:
        """How many saves and frees there were."""
        return self._events

    def storages(self) -> Tuple[SavedStorage, ...]:
        """Everything that was saved, in order."""
        return tuple(entry.frozen() for entry in self._entries)

    def _pack(self, tensor: Any) -> Any:
        address, nbytes = storage_of(tensor)
        if not nbytes or address in self._ignored or threading.get_ident() != self._thread:
            return _Box(tensor, None)
        entry = self._alive.get(address)
        if entry is None:
            entry = self._alive[address] = _Entry(
                address, nbytes, tuple(tensor.shape), str(tensor.dtype), self._layer(),
                self._names.get(address) or made_by(tensor), _callers_line(), self._events, self.step)
            self._entries.append(entry)
            self._events += 1
        entry.boxes += 1
        box = _Box(tensor, entry)
        self._boxes[id(box)] = weakref.ref(box, _Farewell(self, id(box), entry))
        return box

    def _unpack(self, box: Any) -> Any:
        if box.entry is not None and self._running:
            box.entry.operations.setdefault(self._running)
        return box.tensor

    def _layer(self) -> str:
        return self._layers.of_cell(self._cells[-1]) if self._cells else ""

    def _gone(self, identity: int, entry: "_Entry") -> None:
        self._boxes.pop(identity, None)
        entry.boxes -= 1
        if not entry.boxes:
            entry.freed, entry.freed_in = self._events, self.step
            self._events += 1
            if self._alive.get(entry.address) is entry:
                del self._alive[entry.address]


class _Entry:
    """A :class:`SavedStorage` that is still being written."""

    def __init__(self, address: int, nbytes: int, shape: Tuple[int, ...], dtype: str, layer: str, made: str, where: str,
                 saved: int, saved_in: str):
        self.address, self.nbytes, self.shape, self.dtype = address, nbytes, shape, dtype
        self.layer, self.made_by, self.where = layer, made, where
        self.saved, self.saved_in = saved, saved_in
        self.boxes = 0
        self.operations: Dict[str, None] = {}
        self.freed: Optional[int] = None
        self.freed_in: Optional[str] = None

    def frozen(self) -> SavedStorage:
        return SavedStorage(self.nbytes, self.shape, self.dtype, self.layer, self.made_by, tuple(self.operations),
                            self.where, self.saved, self.freed, self.saved_in, self.freed_in)


class _Box:
    """Stands in MindSpore's graph for a saved tensor; lives exactly as long as it is saved."""

    __slots__ = ("tensor", "entry", "__weakref__")

    def __init__(self, tensor: Any, entry: Optional[_Entry]):
        self.tensor = tensor.data  # not the tensor itself, whose history would lead back here
        self.entry = entry


class _Farewell:
    """Called when a box is gone."""

    __slots__ = ("_log", "_identity", "_entry")

    def __init__(self, log: SavedTensorLog, identity: int, entry: _Entry):
        self._log, self._identity, self._entry = weakref.ref(log), identity, entry

    def __call__(self, _reference: Any) -> None:
        log = self._log()
        if log is not None:
            log._gone(self._identity, self._entry)


def _callers_line() -> str:
    """File and line of the innermost frame that is neither MindSpore's nor this package's."""
    frame = sys._getframe(2)  # its code and line only: asking for its locals would keep them alive
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_MINDSPORES, _OURS)):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
