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
    return isinstance(value, Tensor) and str(value.dtype) in _DIFFERENTIABLE


def ones(shape: tuple, dtype: Any) -> Any:
    """Ones of this shape and dtype."""
    return ops.ones(shape, dtype)


def zeros(shape: tuple, dtype: Any) -> Any:
    """Zeros of this shape and dtype."""
    return ops.zeros(shape, dtype)
