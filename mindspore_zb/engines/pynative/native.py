"""MindSpore's private autograd names, each behind a function of ours; everything else of this engine builds on it.

Three other modules touch such names: ``native_recompute.py`` has those that recompute needs, ``snapshot.py`` walks grad
nodes in one tight loop, and ``observe.py`` stands in for names while a forward runs.

Each name is probed at import: a MindSpore without it gives one error that says what is missing.
"""

import contextlib
import math
import threading
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import mindspore as ms
from mindspore import Tensor, ops
from mindspore._c_expression.amp import get_curr_amp_strategy

from mindspore_zb.engines.lock import SERIAL
from mindspore_zb.errors import UnsupportedVersionError

try:  # 2.10
    from mindspore.graph.api import _GradientEdge, _pynative_executor
except ImportError:
    try:  # 2.9
        from mindspore.common.api import _GradientEdge, _pynative_executor
    except ImportError as error:
        raise UnsupportedVersionError(
            f"mindspore {ms.__version__} has no gradient edges: install mindspore 2.9 or 2.10") from error

PyNativeExecutor = type(_pynative_executor)

Meta = Tuple[Tuple[int, ...], Any]
"""Shape and dtype of a tensor."""


def missing_features() -> List[str]:
    """The private features of MindSpore that this engine needs and that are not there, by name."""
    import mindspore._c_expression as native
    missing = [f"mindspore._c_expression.{name}" for name in ("run_backward", "BackwardNodePy")
               if not hasattr(native, name)]
    tensor = Tensor([1.0], ms.float32)
    missing += [f"Tensor.{name}" for name in ("_grad_node", "_output_index", "_requires_grad", "data")
                if not hasattr(tensor, name)]
    missing += [f"_pynative_executor.{name}" for name in ("grad_flag", "set_grad_flag", "enable_grad",
                                                          "set_enable_grad", "new_graph", "end_graph",
                                                          "new_empty_graph", "end_empty_graph", "call_custom_bprop",
                                                          "sync", "is_saved_tensor_hook_active",
                                                          "set_mixed_precision_type",
                                                          "disable_frontend_and_bprop_pipeline",
                                                          "enable_frontend_and_bprop_pipeline")
                if not hasattr(_pynative_executor, name)]
    if not missing:
        node = new_leaf(ms.float32)[1]
        missing += [f"grad node .{name}" for name in ("next_functions", "register_prehook", "_set_next_edge",
                                                      "_unique_id", "_sequence_nr", "name", "_input_metadata")
                    if not hasattr(node, name)]
    return missing


def run_backward(edges: Sequence[Tuple[Any, int]], grads: Sequence[Tensor], inputs: Sequence[Tensor],
                 keep_graph: bool, beside: Sequence[Any] = ()) -> Tuple[Optional[Tensor], ...]:
    """Gradients of the leaf tensors ``inputs``, starting at ``edges`` (node, slot) with ``grads``.

    An entry is None where no gradient arrived. The gradients of the leaf nodes ``beside`` are computed too, and
    dropped. Grad recording is off while it runs, and restored.
    """
    with SERIAL:
        recording = _pynative_executor.grad_flag()
        _pynative_executor.set_grad_flag(False)
        try:
            found = _run_backward(tuple(_GradientEdge(node, slot, None) for node, slot in edges), tuple(grads),
                                  keep_graph, False, (*inputs, *(_GradientEdge(node, 0, None) for node in beside)),
                                  True, accumulate_grad=False)
            return found[:len(inputs)]
        finally:
            _pynative_executor.set_grad_flag(recording)


@contextlib.contextmanager
def without_pipeline() -> Iterator[None]:
    """Let the calling thread make grad nodes, which MindSpore leaves to a thread of its own otherwise.

    That thread has to wake up first, it takes the GIL from the caller, and the next compiled graph waits for it.
    ``ms.saved_tensors_hooks`` does the same.
    """
    with SERIAL:  # there is one switch for the process
        was_off = _pynative_executor.disable_frontend_and_bprop_pipeline()
        try:
            yield
        finally:
            if not was_off:
                _pynative_executor.enable_frontend_and_bprop_pipeline()


def new_leaf(dtype: Any, shape: Tuple[int, ...] = (1,)) -> Tuple[Tensor, Any]:
    """A leaf tensor that asks for a gradient, and its node; a large one takes no more memory than a small one."""
    tensor = (_one_zero(str(dtype), dtype) if shape == (1,) else ops.broadcast_to(Tensor(0, dtype), shape)).data
    tensor._requires_grad = True
    return tensor, tensor._grad_node


_ZEROS: Dict[str, Tensor] = {}


def _one_zero(name: str, dtype: Any) -> Tensor:
    """A tensor that all small leaves share: nobody reads what is in it, and to make one costs more than to alias it."""
    if name not in _ZEROS:
        _ZEROS[name] = Tensor([0], dtype)
    return _ZEROS[name]


def leaf_alias(tensor: Tensor) -> Tensor:
    """The same storage as a fresh leaf that asks for a gradient."""
    alias = tensor.data
    alias._requires_grad = True
    return alias


def grad_edge(tensor: Tensor) -> Optional[Tuple[Any, int]]:
    """``(node, slot)`` where this tensor's gradient goes; None for a tensor without history."""
    node = tensor._grad_node
    return None if node is None else (node, tensor._output_index)


def leaf_id(tensor: Tensor) -> Optional[int]:
    """The identity of a leaf tensor's node; None if it asks for no gradient."""
    node = tensor._grad_node
    return None if node is None else node._unique_id()


def node_id(node: Any) -> int:
    """The identity of a node: an address, so it holds only as long as the node does."""
    return node._unique_id()


def node_number(node: Any) -> int:
    """The sequence number of a node: later ones are larger; see :func:`sequence_number`."""
    return node._sequence_nr()


def is_python_node(node: Any) -> bool:
    """Whether the node runs a user's ``_Function``: such a node is the user's own object."""
    return is_python_node_type(type(node))


def is_python_node_type(kind: type) -> bool:
    """The same of the type of a node."""
    return kind is not type(_RECORDING_LEAF[1])


def redirect_edge(node: Any, index: int, target: Optional[Any], slot: int = 0) -> None:
    """Make an edge lead to a slot of the node ``target``, or nowhere."""
    node._set_next_edge(index, None if target is None else (target, slot))


def output_meta(node: Any, slot: int) -> Optional[Meta]:
    """Shape and dtype of one output of the operation behind ``node``; None where MindSpore does not tell."""
    metas = getattr(node, "_input_metadata", ())
    return (tuple(metas[slot].shape), metas[slot].dtype) if slot < len(metas) else None


def meta_bytes(meta: Optional[Meta]) -> int:
    """The bytes of a tensor of this shape and dtype; 0 for None."""
    if meta is None:
        return 0
    shape, dtype = meta
    bits = "".join(filter(str.isdigit, str(dtype)))  # "Float32", "BFloat16", "Bool"
    return math.prod(shape) * int(bits or 8) // 8


def storage_of(tensor: Tensor) -> Tuple[int, int]:
    """Address and bytes of the whole storage behind a tensor, which may be a view of a part of it."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def made_by(tensor: Tensor) -> str:
    """The operation whose result a tensor is, or the name of a leaf; "" without history."""
    node = tensor._grad_node
    return "" if node is None else node.name()


def sync() -> None:
    """Wait until everything issued so far has run."""
    _pynative_executor.sync()


class Moment:
    """A moment between operations that are recorded: later nodes have larger sequence numbers.

    It is a node of its own, of an operation that computes nothing. To ask for the node waits for MindSpore's queue,
    which may have to wake up first: ask for the number when something has waited for the queue anyway.
    """

    def __init__(self) -> None:
        self._tensor = _RECORDING_LEAF[0].view(1)

    @property
    def number(self) -> int:
        """The sequence number that all nodes recorded later exceed."""
        return node_number(self._tensor._grad_node)


@contextlib.contextmanager
def grad_recording() -> Iterator[Moment]:
    """Record operations, also under ``no_grad``; yields the moment before all of them."""
    with recording_again():
        yield Moment()


@contextlib.contextmanager
def recording_again() -> Iterator[None]:
    """Record operations, also under ``no_grad`` and while a backward waits for what they save."""
    with SERIAL:
        flag, enabled = _pynative_executor.grad_flag(), _pynative_executor.enable_grad()
        try:
            _pynative_executor.set_enable_grad(True)
            _pynative_executor.set_grad_flag(True)
            _pynative_executor.new_empty_graph()
            try:
                yield
            except BaseException:
                with contextlib.suppress(RuntimeError):  # MindSpore has closed all graphs where a compilation failed
                    _pynative_executor.end_empty_graph()
                raise
            _pynative_executor.end_empty_graph()
        finally:
            _pynative_executor.set_grad_flag(flag)
            _pynative_executor.set_enable_grad(enabled)


def sequence_number() -> int:
    """The sequence number that all nodes recorded from now on exceed."""
    with grad_recording() as since:
        return since.number


def is_recording() -> bool:
    """Whether operations get a history here and now."""
    return bool(_pynative_executor.grad_flag() and _pynative_executor.enable_grad())


def has_saved_tensor_hooks() -> bool:
    """Whether hooks for saved tensors are active here and now."""
    return bool(_pynative_executor.is_saved_tensor_hook_active())


def is_recording_plainly() -> bool:
    """Whether operations get a history here and now, and save their tensors as they are: under hooks for saved tensors
    they may be recomputed, and must then save the same ones again. Hooks that are known to only look do not count."""
    return is_recording() and (not has_saved_tensor_hooks() or getattr(_ONLY_LOOKING, "holds", False))


@contextlib.contextmanager
def hooks_only_look(look: bool = True) -> Iterator[None]:
    """Say that the innermost hooks for saved tensors of this thread save each tensor as it is, or that not."""
    outer = getattr(_ONLY_LOOKING, "holds", False)
    _ONLY_LOOKING.holds = look
    try:
        yield
    finally:
        _ONLY_LOOKING.holds = outer


_ONLY_LOOKING = threading.local()


def stored_grad(tensor: Tensor) -> Optional[Tensor]:
    """The gradient that is kept with a tensor, as MindSpore's own ``backward`` does; None if there is none."""
    return tensor._grad


def store_grad(tensor: Tensor, grad: Optional[Tensor]) -> None:
    """Keep a gradient with a tensor; it must have the tensor's shape and dtype."""
    tensor._grad = grad


def under_amp() -> bool:
    """Whether automatic mixed precision casts what operations get here and now."""
    return get_curr_amp_strategy() is not None


@contextlib.contextmanager
def without_recording() -> Iterator[None]:
    """Operations inside get no history."""
    flag = _pynative_executor.grad_flag()
    _pynative_executor.set_grad_flag(False)
    try:
        yield
    finally:
        _pynative_executor.set_grad_flag(flag)


@contextlib.contextmanager
def top_cell() -> Iterator[None]:
    """What custom ``bprop`` cells and reentrant recompute need while they are recorded.

    It is opened and closed with a leaf of ours as its only argument and output, so it keeps nothing of the caller's
    alive. Not around a whole forward: MindSpore keeps some kilobytes of each top cell for good.
    """
    leaf = _RECORDING_LEAF[0]
    _pynative_executor.new_graph(_top, leaf)
    try:
        yield
    finally:
        _pynative_executor.end_graph(_top, leaf, leaf)


@contextlib.contextmanager
def eager_mode() -> Iterator[None]:
    """Run Cells operation by operation, also where the context says that each is to be compiled whole."""
    mode = ms.get_context("mode")
    if mode == ms.PYNATIVE_MODE:
        yield
        return
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        yield
    finally:
        ms.set_context(mode=mode)


@contextlib.contextmanager
def allowing_grad_inside(nodes: Sequence[Any]) -> Iterator[None]:
    """From these nodes on, a backward run lets what it calls record gradients: recompute and custom ``bprop`` do."""
    handles = [node.register_prehook(_enable_grad) for node in nodes]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _enable_grad(_grads: Any) -> None:
    _pynative_executor.set_enable_grad(True)


def _top(*_args: Any) -> None:
    """The stand-in whose call MindSpore believes to record."""


def _run_backward(*args: Any, **kwargs: Any) -> Any:
    """Bound at import by :func:`_bind`."""
    raise UnsupportedVersionError("the PyNative engine is not bound")


_RECORDING_LEAF: Any = None
"""A leaf tensor and its node, the argument of every top cell. Bound at import."""


def _bind() -> None:
    global _run_backward, _RECORDING_LEAF
    missing = missing_features()
    if missing:
        raise UnsupportedVersionError(
            f"mindspore {ms.__version__} lacks {', '.join(missing)}: install mindspore 2.9 or 2.10")
    from mindspore._c_expression import run_backward as native_run_backward
    _run_backward = native_run_backward
    _RECORDING_LEAF = new_leaf(ms.float32)


_bind()
