"""What a message is made of: shapes and dtypes, agreed before the first step, as the messages do not carry them."""

import json
from dataclasses import dataclass
from typing import Any, List, Tuple

import mindspore as ms

from mindspore_zb.checks import MOST, check_count, kind_of
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.structure import Structure, flatten
from mindspore_zb.tensors import is_differentiable_dtype, is_tensor


_DTYPE_CLASS = next(kind for kind in type(ms.float32).__mro__ if isinstance(ms.string, kind))
_DTYPES = frozenset(name for name in (
    "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bfloat16", "complex64", "complex128") if hasattr(ms, name))


@dataclass(frozen=True)
class TensorMeta:
    """Shape and dtype of a tensor.

    Attributes:
        shape: its sizes.
        dtype: the name of its dtype as MindSpore spells it in code: "float32", "int64", "bool_".

    Raises:
        ArgumentTypeError: something else than integers for the shape and a name or dtype of MindSpore.
        ArgumentValueError: MindSpore has no such dtype, or a size is negative.

    >>> print(TensorMeta((4, 16), "float32"))
    float32 (4, 16)
    """

    shape: Tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self):
        if not isinstance(self.shape, (tuple, list)):
            raise ArgumentTypeError(f"shape is the tuple of the sizes, not {kind_of(self.shape)}")
        object.__setattr__(self, "shape", tuple(check_count(f"shape[{place}]", size, -MOST)
                                                for place, size in enumerate(self.shape)))
        if not isinstance(self.dtype, (str, _DTYPE_CLASS)):
            raise ArgumentTypeError("dtype is the name of a dtype, such as 'float32', or the dtype itself, not "
                                    f"{kind_of(self.dtype)}")
        name = str(self.dtype).lower()
        object.__setattr__(self, "dtype", "bool_" if name == "bool" else name)
        if any(size < 0 for size in self.shape):
            raise ArgumentValueError(f"shape {self.shape} has a negative size")
        if self.dtype not in _DTYPES:
            raise ArgumentValueError(f"dtype {name!r} is none of MindSpore's for tensors")

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"

    @property
    def framework_dtype(self) -> Any:
        """The dtype itself."""
        return getattr(ms, self.dtype)

    @property
    def differentiable(self) -> bool:
        """Whether such tensors can have gradients."""
        return is_differentiable_dtype(self.framework_dtype)

    def new(self) -> Any:
        """Such a tensor, of zeros."""
        if not self.shape:  # no kernel of zeros makes a scalar
            return ms.ops.zeros((1,), self.framework_dtype).reshape(())
        return ms.ops.zeros(self.shape, self.framework_dtype)


@dataclass(frozen=True)
class MessageMeta:
    """The tensors of what one stage hands to the next, and how they nest.

    Attributes:
        leaves: in the order of the message.
        nesting: as JSON: a number for a leaf, a list for a tuple or list, a dict for a dict.
    """

    leaves: Tuple[TensorMeta, ...]
    nesting: str

    @classmethod
    def of(cls, value: Any, what: str) -> "MessageMeta":
        """Of tensors, or of :class:`TensorMeta` that stand for them.

        Raises:
            ArgumentTypeError: ``value`` holds something else; the message names it with ``what``.

        >>> print(MessageMeta.of((TensorMeta((2,)), {"mask": TensorMeta((3,), "int32")}), "out"))
        (float32 (2,), {'mask': int32 (3,)})
        """
        leaves, structure = flatten(value)
        for leaf, name in zip(leaves, structure.paths(what)):
            if not isinstance(leaf, TensorMeta) and not is_tensor(leaf):
                raise ArgumentTypeError(f"{name} is a {type(leaf).__name__}, but only tensors pass between stages")
        metas = [leaf if isinstance(leaf, TensorMeta) else TensorMeta(leaf.shape, str(leaf.dtype)) for leaf in leaves]
        return cls(tuple(metas), json.dumps(_nesting(structure, iter(range(len(leaves))))))

    def nested(self, leaves: Any) -> Any:
        """The message made of ``leaves``; lists come out as tuples."""
        return _filled(json.loads(self.nesting), list(leaves))

    def __str__(self) -> str:
        return _text(json.loads(self.nesting), self.leaves)

    @property
    def gradient_places(self) -> Tuple[int, ...]:
        """The places of the leaves whose gradients come back."""
        return tuple(place for place, leaf in enumerate(self.leaves) if leaf.differentiable)

    def to_json(self) -> list:
        """Plain data."""
        return [[[list(leaf.shape), leaf.dtype] for leaf in self.leaves], self.nesting]

    @classmethod
    def from_json(cls, data: list) -> "MessageMeta":
        """From what :meth:`to_json` gave."""
        return cls(tuple(TensorMeta(tuple(shape), dtype) for shape, dtype in data[0]), data[1])


def _nesting(structure: Structure, numbers: Any) -> Any:
    if structure.is_leaf:
        return next(numbers)
    children = [_nesting(child, numbers) for child in structure.children()]
    if structure.keys is None:
        return children
    for key in structure.keys:
        if not isinstance(key, str):
            raise ArgumentTypeError(f"a dict between stages has the key {key!r}, but its keys must be strings")
    return dict(zip(structure.keys, children))


def _filled(nesting: Any, leaves: List[Any]) -> Any:
    if isinstance(nesting, int):
        return leaves[nesting]
    if isinstance(nesting, dict):
        return {key: _filled(item, leaves) for key, item in nesting.items()}
    return tuple(_filled(item, leaves) for item in nesting)


def _text(nesting: Any, leaves: Tuple[TensorMeta, ...]) -> str:
    if isinstance(nesting, int):
        return str(leaves[nesting])
    if isinstance(nesting, dict):
        return "{" + ", ".join(f"{key!r}: {_text(item, leaves)}" for key, item in nesting.items()) + "}"
    return "(" + ", ".join(_text(item, leaves) for item in nesting) + ("," if len(nesting) == 1 else "") + ")"
