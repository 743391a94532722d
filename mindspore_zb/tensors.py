"""The little that the engine-free part needs to know of tensors."""

from typing import Any, Dict

import mindspore as ms
from mindspore import Parameter, Tensor, ops

_DIFFERENTIABLE = frozenset(str(getattr(ms, name)) for name in (
    "float16", "float32", "float64", "bfloat16", "complex64", "complex128") if hasattr(ms, name))


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a dense tensor."""
    return isinstance(value, Tensor)


def is_parameter(value: Any) -> bool:
    """Whether ``value`` is a Parameter."""
    return isinstance(value, Parameter)


def is_differentiable(value: Any) -> bool:
    """Whether ``value`` is a tensor of a floating or complex dtype."""
    return isinstance(value, Tensor) and is_differentiable_dtype(value.dtype)


def is_differentiable_dtype(dtype: Any) -> bool:
    """Whether tensors of this dtype can have a gradient."""
    return str(dtype) in _DIFFERENTIABLE


def ones(shape: tuple, dtype: Any) -> Any:
    """Ones of this shape and dtype."""
    return ops.ones(shape, dtype)


def zeros(shape: tuple, dtype: Any) -> Any:
    """Zeros of this shape and dtype."""
    return ops.zeros(shape, dtype)


def detached(tensor: Any) -> Any:
    """The same storage without history and without asking for a gradient."""
    return tensor.data


def copied(tensor: Any) -> Any:
    """The same values in a storage of its own, without history.

    Not by ``Tensor.copy``: that divides by one and casts there and back.
    """
    return ops.cat((tensor.data,)) if tensor.ndim else tensor.data.copy()


def add_in_place(total: Any, part: Any) -> None:
    """Add ``part`` to ``total``, which keeps its storage.

    Not always by ``assign_add``: where a device has no kernel for a dtype, MindSpore raises, or leaves ``total`` as it
    was and says nothing (float16).
    """
    name = str(total.dtype)
    if name not in _ADDS:
        _ADDS[name] = _assign_add_works(total.dtype)
    if _ADDS[name]:
        ops.assign_add(total, part)
    else:
        total.copy_(total + part)


_ADDS: Dict[str, bool] = {}
"""For each dtype met whether ``assign_add`` adds."""


def _assign_add_works(dtype: Any) -> bool:
    try:
        total = ones((1,), dtype)
        ops.assign_add(total, ones((1,), dtype))
        return bool(total.astype(ms.float32).asnumpy()[0] == 2)
    except (RuntimeError, TypeError, ValueError):
        return False
