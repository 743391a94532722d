"""How the result of ``fn`` nests, found out while it is compiled, where Python sees shapes and types but no values.

The functions here are compiled into the graph. Nested results are taken apart there, and a description of how they
nested is left in :data:`_FOUND`; the graph itself has a flat tuple of tensors.
"""

import ast
import itertools
from typing import Any, Dict, List, Sequence, Tuple

from mindspore import Tensor, ops

from mindspore_zb.errors import UnsupportedError
from mindspore_zb.structure import flatten

TENSOR = "tensor"
"""What stands for a tensor in a description."""

_FOUND: Dict[int, str] = {}
_CONSTANTS: List[Any] = []
_TOKENS = itertools.count()


class NestedResult:
    """The nesting of a result: tensors come as they are given, everything else is the constant it was when compiled.

    Args:
        description: nested tuples, lists and dicts as source text, with :data:`TENSOR` for a tensor and the place of a
            constant for a constant.
        constants: the constants.

    Attributes:
        count: how many tensors it has.
    """

    def __init__(self, description: str, constants: Sequence[Any]):
        try:
            nested = ast.literal_eval(description)
        except (ValueError, SyntaxError) as error:
            raise UnsupportedError("fn returns a dict whose keys are no strings or numbers") from error
        leaves, self._structure = flatten(nested)
        self._leaves = [leaf if leaf == TENSOR else (constants[leaf],) for leaf in leaves]
        self.count = sum(leaf == TENSOR for leaf in leaves)

    def arguments(self) -> Tuple[str, List[Any]]:
        """Arguments that make another like this one."""
        constants = [leaf[0] for leaf in self._leaves if leaf != TENSOR]
        places = iter(range(len(constants)))
        leaves = [leaf if leaf == TENSOR else next(places) for leaf in self._leaves]
        return repr(self._structure.unflatten(leaves)), constants

    def nested(self, tensors: List[Any]) -> Any:
        """The result with these :attr:`count` tensors."""
        waiting = iter(tensors)
        return self._structure.unflatten([next(waiting) if leaf == TENSOR else leaf[0] for leaf in self._leaves])


def new_token() -> int:
    """A number under which one compilation reports its result; see :func:`take_result`."""
    return next(_TOKENS)


def take_result(token: int) -> NestedResult:
    """What was reported under ``token`` since the compilation began.

    Raises:
        UnsupportedError: nothing was, so the compiled code was not the one that was meant.
    """
    description = _FOUND.pop(token, None)
    if description is None:
        raise UnsupportedError("MindSpore compiled fn without telling how its result nests")
    return NestedResult(description, _CONSTANTS)


def forget_result(token: int) -> None:
    """Drop what was reported under ``token``."""
    _FOUND.pop(token, None)


# --- compiled: what follows runs inside of a graph --------------------------------------------------------------------

@ops.constexpr(check=False)
def _report(token: int, description: str) -> int:
    _FOUND[token] = description
    return 0


@ops.constexpr(check=False)
def _constant(value: Any) -> str:
    _CONSTANTS.append(value)
    return str(len(_CONSTANTS) - 1)


@ops.constexpr(check=False)
def _key(key: Any) -> str:
    return repr(key)


def taken_apart(value):
    """``(description, tensors)`` of a nested value."""
    if isinstance(value, dict):
        description, tensors = "{", ()
        for key, item in value.items():
            one, some = taken_apart(item)
            description, tensors = description + _key(key) + ":" + one + ",", tensors + some
        return description + "}", tensors
    if isinstance(value, tuple):
        description, tensors = "(", ()
        for item in value:
            one, some = taken_apart(item)
            description, tensors = description + one + ",", tensors + some
        return description + ")", tensors
    if isinstance(value, list):
        description, tensors = "[", ()
        for item in value:
            one, some = taken_apart(item)
            description, tensors = description + one + ",", tensors + some
        return description + "]", tensors
    if isinstance(value, Tensor):
        return "'tensor'", (value,)
    return _constant(value), ()


def flat_result(value, token):
    """All tensors of a result, which is reported under ``token``."""
    description, tensors = taken_apart(value)
    _report(token, description)
    return tensors


def flat_constant_result(value, token):
    """The same, and no gradient passes through the tensors."""
    constant = ()
    for item in flat_result(value, token):
        constant = constant + (ops.stop_gradient(item),)
    return constant
