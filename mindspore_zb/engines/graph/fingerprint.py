"""What tells a compiled call from all others in any process: the name under which its pieces are kept on disk.

It is the description of :mod:`likeness` with the *contents* of functions and classes in place of their identities, and
with all else that compiling depends on: the call, the versions, the settings of MindSpore. What has no contents that
could be told in another process has no fingerprint.
"""

import functools
import hashlib
import inspect
import os
import platform
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Hashable, Iterable, Optional, Sequence, Tuple

import mindspore as ms
import numpy as np

from mindspore_zb._version import __version__
from mindspore_zb.engines.graph.joint import Call, is_argument
from mindspore_zb.engines.graph.likeness import Describer
from mindspore_zb.engines.graph.partition import CutSettings
from mindspore_zb.engines.graph.reached import Reached, is_foreign
from mindspore_zb.structure import Structure

CONTEXT = ("device_target", "mode", "jit_level", "jit_config", "deterministic", "jit_syntax_level", "max_call_depth",
           "runtime_num_threads", "precompile_only", "grad_for_scalar", "enable_graph_kernel", "graph_kernel_flags")
"""Settings of MindSpore that compiling depends on, as far as a version has them."""

ENVIRONMENT = ("MS_DEV_", "MS_ENABLE_", "MS_DISABLE_", "MS_JIT", "MS_COMPILER", "MS_INTERNAL", "GRAPH_OP_RUN")
"""What the names of variables begin with that change how MindSpore compiles."""


def fingerprint(call: Call, found: Reached, places: Sequence[int], settings: CutSettings) -> Optional[str]:
    """A name for the compiled call, in hexadecimal digits.

    Args:
        call: the call.
        found: what its ``fn`` reaches.
        places: for each of the call's weights its place among all Parameters that ``fn`` may read.
        settings: how it is cut.

    Returns:
        None if the call holds something whose contents cannot be told (an object of a foreign class, a tensor of more
        than a megabyte, a function without source), or if MindSpore itself distributes what it compiles.
    """
    describer = _Contents(found)
    if ms.get_auto_parallel_context("parallel_mode") != "stand_alone":
        return None
    try:
        description = (_process(), describer.describe(call.fn), _call(call, describer), tuple(places),
                       settings.pieces, settings.recompute)
    except TypeError:
        return None
    return hashlib.sha256(repr(description).encode()).hexdigest()


class _Contents(Describer):
    """Describes functions, classes and modules by what is in them."""

    def same(self, value: Any) -> Hashable:
        if isinstance(value, type):
            return "class", value.__module__, value.__qualname__, tuple(map(_full_name, value.__mro__))
        if isinstance(value, CodeType):
            return _code(value)
        if isinstance(value, ModuleType):
            return "module", value.__name__
        if isinstance(value, (FunctionType, BuiltinFunctionType, np.ufunc)):
            name = _full_name(value)
            return name if is_foreign(getattr(value, "__module__", None)) else (name, _contents_of(value))
        if hasattr(type(value), "__members__") and is_foreign(type(value).__module__):  # an enum of MindSpore
            return _full_name(type(value)), str(value)
        raise TypeError(f"the contents of a {type(value).__name__} are not known")

    def many(self, items: Iterable[Any]) -> Hashable:
        return tuple(sorted(map(repr, items)))


def _full_name(value: Any) -> Tuple[str, str, str]:
    return type(value).__name__, str(getattr(value, "__module__", "")), getattr(value, "__qualname__", value.__name__)


def _contents_of(function: Any) -> Hashable:
    """The code of a function, and its source, which is what MindSpore reads."""
    if not isinstance(function, FunctionType):
        raise TypeError(f"{function.__name__} has no Python code")
    try:
        source = inspect.getsource(function)
    except OSError as error:
        raise TypeError(f"{function.__name__} has no source") from error
    return source, _code(function.__code__)


def _code(code: CodeType) -> Hashable:
    constants = tuple(_code(constant) if isinstance(constant, CodeType) else
                      ("set", *sorted(map(repr, constant))) if isinstance(constant, frozenset) else
                      (type(constant).__name__, repr(constant)) for constant in code.co_consts)
    return (code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags,
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)


def _call(call: Call, describer: Describer) -> Hashable:
    leaves = tuple(("argument", tuple(leaf.shape), str(leaf.dtype)) if is_argument(leaf) else describer.value(leaf)
                   for leaf in call.leaves)
    return (_nesting(call.structure), leaves, call.asked, len(call.weights), call.has_aux, call.is_part)


def _nesting(structure: Structure) -> Hashable:
    if structure.is_leaf:
        return ()
    return (_full_name(structure.container), repr(structure.keys), tuple(map(_nesting, structure.children())))


def _process() -> Hashable:
    """What is the same for all calls of a process, as things are now."""
    context = []
    for name in CONTEXT:
        try:
            context.append((name, repr(ms.get_context(name))))
        except (ValueError, KeyError, AttributeError, RuntimeError):  # this version has no such setting
            context.append((name, "absent"))
    variables = sorted(item for item in os.environ.items() if item[0].startswith(ENVIRONMENT))
    return _versions(), tuple(context), tuple(variables)


@functools.lru_cache(maxsize=None)
def _versions() -> Tuple[str, ...]:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return __version__, digest.hexdigest(), ms.__version__, np.__version__, platform.python_version(), \
        platform.machine()
