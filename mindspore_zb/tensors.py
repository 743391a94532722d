"""The little that the engine-free part needs to know of tensors."""

from typing import Any

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
