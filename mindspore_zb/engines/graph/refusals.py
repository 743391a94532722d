"""What a compiled graph would silently get wrong, found before it is compiled.

Each rule stands for something that was compiled and compared with PyNative. What the compiler refuses by itself with an
error (``nonlocal``, ``try``, numpy of a traced tensor in most forms) needs no rule; a few such have one all the same,
because the reason given here names the place. What compiles rightly is not refused: numpy of constants, ``nn.Dropout``,
``ops.rand`` and its like (a new draw at each run, the same in forward and backward), ``print``, ``ops.assign`` to a
Parameter, lists and dicts made inside the function.
"""

from functools import partial
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple
from weakref import WeakKeyDictionary

from mindspore import Tensor, nn

from mindspore_zb.engines.graph.frozen_values import SIMPLE
from mindspore_zb.engines.graph.python_effects import effects_of
from mindspore_zb.engines.graph.reached import Reached, construct_of, is_foreign, reach, user_classes

HOOKS = {"_lazy_forward_pre_hook": "forward pre-hook", "_lazy_forward_hook": "forward hook",
         "_lazy_backward_pre_hook": "backward pre-hook", "_lazy_backward_hook": "backward hook",
         "_saved_tensors_pack_hook": "saved-tensors hook"}
"""Where a Cell keeps its hooks: None, or a dict that may be empty, or a function."""

GENERATORS = ("numpy.random", "random", "mindspore.common.generator")
"""Modules whose objects are generators of random numbers."""


def why_not_compiled(fn: Callable[..., Any], given: Sequence[Any] = (),
                     found: Optional[Reached] = None) -> Optional[str]:
    """Why ``fn`` must run in PyNative; None if nothing speaks against compiling it.

    Args:
        fn: a Cell, function, bound method, ``functools.partial`` or callable object, by ``@jit`` or not.
        given: what it is called with.
        found: what it reaches, if that is known.

    Refused are, wherever ``fn`` reaches them:

    * hooks on Cells and Parameters, ``register_hook`` and ``HookBackward``: a compiled graph leaves them out, or
      compiles them and drops what they do in Python;
    * writes to attributes, globals, outer variables, and changes of lists, dicts and tensors that live outside the
      function: done once or twice while compiling, or not at all;
    * ``random``, ``numpy.random``, ``secrets``, ``uuid``, ``time``, the clock of ``datetime``, generators as
      attributes: one value for ever;
    * MindSpore's generators, ``manual_seed``, and the functions that draw from them (``mint.rand``, ``mint`` dropout):
      their state does not advance as in PyNative;
    * a local that changes after an inner function was made of it: a compiled graph sees the old value;
    * decorated functions, of which MindSpore compiles what the decorator was given, a Cell's own ``__call__``, which it
      passes by, and default arguments that have changed, of which it keeps the first;
    * arguments that neither are plain values nor can be watched, such as arrays and sets;
    * values of traced tensors in Python: ``asnumpy``, ``item``, ``tolist``.

    Limits: judged by source text, not by running. Code without source, computed names, effects through a local alias
    that is sometimes something else, and effects inside third-party compiled code are not seen. Whatever occurs in
    reached code counts, also in a branch that is not taken.

    Example:
        >>> from mindspore import nn
        >>> net = nn.SequentialCell(nn.Dense(2, 2), nn.ReLU())
        >>> why_not_compiled(net)
        >>> handle = net[0].register_forward_hook(lambda cell, inputs, output: None)
        >>> why_not_compiled(net)
        'forward hook on SequentialCell.0'
    """
    for leaf in given:
        if _is_unwatched(leaf):
            return f"it is given a {type(leaf).__name__}, which may change unnoticed"
    found = reach(fn, given) if found is None else found
    for rule in (_cell_hooks, _parameter_hooks, _objects, _cells_that_draw, _own_calls, _decorated, _new_defaults,
                 _functions):
        for reason in rule(found):
            return reason
    return None


def _cell_hooks(found: Reached) -> Iterator[str]:
    for place, cell in found.cells.values():
        for attribute, kind in HOOKS.items():
            if vars(cell).get(attribute):
                yield f"{kind} on {place}"


def _parameter_hooks(found: Reached) -> Iterator[str]:
    for name, parameter in found.parameters.values():
        if parameter.hooks():
            yield f"hook on Parameter {name!r}"


def _objects(found: Reached) -> Iterator[str]:
    """Generators and hooks kept as attributes, globals or arguments, where code mentions their name."""
    for place, value in found.foreign.values():
        kind = type(value)
        last = place.rpartition(".")[2].partition("[")[0]
        if last not in found.names and "." in place:
            continue
        if kind.__name__ == "HookBackward":
            yield f"HookBackward at {place}"
        elif kind.__module__.startswith(GENERATORS) and not isinstance(value, type) and not callable(value):
            yield f"{kind.__module__}.{kind.__name__} at {place}: its state would not advance"


def _cells_that_draw(found: Reached) -> Iterator[str]:
    """MindSpore's own Cells that use its generators; the user's are judged by their source."""
    for place, cell in found.cells.values():
        if is_foreign(type(cell).__module__) and draws_from_generator(construct_of(cell)):
            yield f"{type(cell).__name__} at {place} draws from MindSpore's generator"


_WATCHED = (*SIMPLE, Tensor, nn.Cell, FunctionType, BuiltinFunctionType, MethodType, partial, type, ModuleType)


def _is_unwatched(leaf: Any) -> bool:
    """Whether an argument is of a foreign kind whose contents may change: a compiled graph has them as they were."""
    if isinstance(leaf, _WATCHED):
        return False
    kind = type(leaf)
    return is_foreign(kind.__module__) and not kind.__module__.startswith("mindspore")


def _own_calls(found: Reached) -> Iterator[str]:
    for place, cell in found.cells.values():
        for base in user_classes(type(cell)):
            if "__call__" in vars(base):
                yield f"{place} has a __call__ of its own, which MindSpore passes by"


def _decorated(found: Reached) -> Iterator[str]:
    for place, function in found.functions.values():
        if "__wrapped__" in vars(function):
            yield f"{place} is decorated, and MindSpore compiles what is inside the decorator"


def _new_defaults(found: Reached) -> Iterator[str]:
    for place, function in found.functions.values():
        now = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        first = _DEFAULTS.setdefault(function, now)
        if len(first) != len(now) or not all(map(is_, first, now)):
            yield f"the default arguments of {place} changed, and MindSpore keeps the first ones"


_DEFAULTS: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()
"""Of each function that was judged the default arguments at that time: MindSpore reads a function once."""


def _functions(found: Reached) -> Iterator[str]:
    parameters = frozenset(name for _, cell in found.cells.values() for name in cell._params)
    for place, function in found.functions.values():
        for line, effect in effects_of(function, parameters, draws_from_generator):
            yield f"{effect} in {place}, line {line}"


def draws_from_generator(value: Any) -> bool:
    """Whether a function of MindSpore draws from, or sets, its generators: it names them, or calls one that does."""
    pending: List[Tuple[Any, int]] = [(value, 0)]
    seen = {id(value)}
    for function, depth in pending:  # grows while it is read
        code = getattr(function, "__code__", None)
        if code is None or not (function.__module__ or "").startswith("mindspore."):
            continue
        if "default_generator" in code.co_names or function.__module__ == "mindspore.common.generator":
            return True
        for name in code.co_names if depth < 4 else ():
            called = function.__globals__.get(name)
            if hasattr(called, "__code__") and id(called) not in seen:
                seen.add(id(called))
                pending.append((called, depth + 1))
    return False
