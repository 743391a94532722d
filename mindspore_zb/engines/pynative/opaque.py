"""Calls whose backward reads tensors that no hook for saved tensors sees: compiled code, custom backwards, recompute.

A watcher is told before such a call and after it, and then when the backward reaches it: at a prehook on the nodes of
its results, which lives as long as the graph.
"""

import contextlib
import functools
import threading
from typing import Any, Callable, Iterator, List

import mindspore as ms

from mindspore_zb.engines.pynative.native import (grad_edge, has_saved_tensor_hooks, hooks_only_look, is_python_node,
                                                  is_recording, node_id)
from mindspore_zb.engines.pynative.observe import OPAQUE_CALLS, RECOMPUTE_HOOKS, called_by
from mindspore_zb.engines.pynative.stand_ins import Replacement, StandIns
from mindspore_zb.engines.watch import OpaqueCall, Watcher, current_watcher, watching
from mindspore_zb.errors import StateError, UnsupportedError
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import is_tensor


@contextlib.contextmanager
def watching_saved_tensors(watcher: Watcher, pack: Callable[[Any], Any],
                           unpack: Callable[[Any], Any]) -> Iterator[None]:
    """Tell ``watcher`` of this thread's forwards inside, and see all tensors they save.

    Args:
        watcher: is told of compiled and opaque calls.
        pack, unpack: as of ``mindspore.saved_tensors_hooks``; what ``unpack`` returns has the values that ``pack`` saw.

    Raises:
        StateError: hooks for saved tensors are active already: they would see nothing inside.
        UnsupportedError: raised inside where other hooks begin: what they take, ``pack`` would not see.
    """
    if has_saved_tensor_hooks() or current_watcher() is not None:
        raise StateError("hooks for saved tensors, or another tool of memory, are active already and would see nothing "
                         "inside: leave them first")
    with ms.saved_tensors_hooks(pack, unpack):
        _STAND_INS.enter()
        try:
            with watching(watcher), hooks_only_look():
                yield
        finally:
            _STAND_INS.leave()


def _wanted() -> Iterator[Replacement]:
    for owner, name, kind in OPAQUE_CALLS:
        yield owner, name, functools.partial(_watched_call, kind)
    yield ms.saved_tensors_hooks, "__enter__", _watched_enter
    yield ms.saved_tensors_hooks, "__exit__", _watched_exit


_STAND_INS = StandIns(_wanted)
_ENTERED = threading.local()


def _watched_call(kind: str, original: Any) -> Any:
    function = getattr(original, "__func__", original)

    @functools.wraps(function)
    def call(*args, **kwargs):
        watcher = current_watcher()
        found = called_by(kind, args, kwargs) if watcher is not None and is_recording() else None
        if found is None:
            return function(*args, **kwargs)
        ended = watcher.opaque(OpaqueCall(found[0], found[1], _tensors_in(found[2])))
        result = function(*args, **kwargs)
        if ended is not None:
            _check_at(result, ended)
        return result

    return classmethod(call) if isinstance(original, classmethod) else call


def _check_at(result: Any, ended: Callable[[List[Any]], Any]) -> None:
    """Have the check that ``ended`` gives made where the backward reaches the nodes of ``result``."""
    edges = [grad_edge(tensor) for tensor in _tensors_in(result)]
    nodes = {node_id(edge[0]): edge[0] for edge in edges if edge is not None}
    kept = [tensor for node in nodes.values() if is_python_node(node) for tensor in _tensors_in(list(_own(node)))]
    check = ended(kept) if nodes else None
    if check is not None:
        for node in nodes.values():
            node.register_prehook(lambda _grads: check())


def _own(node: Any) -> Iterator[Any]:
    """What a user's ``_Function`` keeps as attributes of its context; saved tensors are seen by the hooks."""
    return (value for name, value in vars(node).items() if name != "saved_tensors")


def _tensors_in(value: Any) -> List[Any]:
    return [leaf for leaf in flatten(value)[0] if is_tensor(leaf)]


def _watched_enter(original: Any) -> Any:
    def __enter__(self):
        watched = current_watcher() is not None
        if watched and not isinstance(self, RECOMPUTE_HOOKS):
            raise UnsupportedError("hooks for saved tensors inside a guard or a leak finder would hide from it what "
                                   "they take (apply_recompute and memory_timeline have some too): use one of them at "
                                   "a time")
        original(self)
        if watched:
            looking = hooks_only_look(False)
            looking.__enter__()
            _ENTERED.__dict__.setdefault("stack", []).append((self, looking))

    return __enter__


def _watched_exit(original: Any) -> Any:
    def __exit__(self, *args):
        stack = _ENTERED.__dict__.get("stack", [])
        if stack and stack[-1][0] is self:
            stack.pop()[1].__exit__(None, None, None)
        return original(self, *args)

    return __exit__
