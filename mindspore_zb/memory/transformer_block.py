"""A transformer block whose saved tensors can be told by a formula, and the measurement of both."""

from dataclasses import dataclass
from typing import Any, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.memory.formulas import BlockItem, block_bytes, block_items, korthikanti_bytes
from mindspore_zb.memory.timeline import memory_timeline

ITEMSIZE = {"float32": 4, "float16": 2}


class _Scores(nn.Cell):
    """Scaled products of queries and keys."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def construct(self, query, key):
        return ops.matmul(query, key.swapaxes(-1, -2)) * self.scale


class _Softmax(nn.Cell):
    """Softmax over the last axis."""

    def construct(self, scores):
        return ops.softmax(scores, axis=-1)


class _Context(nn.Cell):
    """Values, weighted."""

    def construct(self, weights, value):
        return ops.matmul(weights, value)


class _Gelu(nn.Cell):
    """GELU by its tanh approximation."""

    def construct(self, x):
        return ops.gelu(x, approximate="tanh")


class _Attention(nn.Cell):
    """Self-attention without a mask, on rows ``(batch * length, width)``."""

    def __init__(self, shape: Tuple[int, int, int, int], dtype: Any):
        super().__init__()
        batch, length, heads, width = shape
        self.by_heads, self.rows = (batch, length, heads, width // heads), (batch * length, width)
        self.query, self.key, self.value = (nn.Dense(width, width, dtype=dtype) for _ in range(3))
        self.scores, self.softmax, self.context = _Scores((width // heads) ** -0.5), _Softmax(), _Context()
        self.projection = nn.Dense(width, width, dtype=dtype)

    def construct(self, x):
        query = self.query(x).reshape(self.by_heads).transpose(0, 2, 1, 3)
        key = self.key(x).reshape(self.by_heads).transpose(0, 2, 1, 3)
        value = self.value(x).reshape(self.by_heads).transpose(0, 2, 1, 3)
        context = self.context(self.softmax(self.scores(query, key)), value)
        return self.projection(context.transpose(0, 2, 1, 3).reshape(self.rows))


class TransformerBlock(nn.Cell):
    """A pre-norm transformer block on rows ``(batch * length, width)``.

    Rows, because MindSpore's ``Dense`` flattens an input of three dimensions and then saves a copy of its own, so that
    query, key and value would not share one input.

    Args:
        batch, length, heads, width: as in :func:`~mindspore_zb.memory.formulas.block_items`.
        dtype: of weights and activations.
    """

    def __init__(self, batch: int, length: int, heads: int, width: int, dtype: Any = ms.float32):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((width,), dtype=dtype), nn.LayerNorm((width,), dtype=dtype)
        self.attention = _Attention((batch, length, heads, width), dtype)
        self.up, self.gelu = nn.Dense(width, 4 * width, dtype=dtype), _Gelu()
        self.down = nn.Dense(4 * width, width, dtype=dtype)

    def construct(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


@dataclass(frozen=True)
class MeasuredItem:
    """One part of the block: the formula, and the bytes that its layer saved."""

    item: BlockItem
    measured: int


@dataclass(frozen=True)
class MeasuredBlock:
    """The block measured beside the formulas.

    Attributes:
        batch, length, heads, width, dtype: of the block.
        items: its parts.
        formula_bytes, measured_bytes: of the whole block.
        korthikanti_bytes: the paper's block of this size, with dropouts and in 16 bits.
    """

    batch: int
    length: int
    heads: int
    width: int
    dtype: str
    items: Tuple[MeasuredItem, ...]
    formula_bytes: int
    measured_bytes: int
    korthikanti_bytes: int

    @property
    def agrees(self) -> bool:
        """Whether every part saved what its formula says, to the byte, and nothing else was saved."""
        return self.formula_bytes == self.measured_bytes and all(
            one.item.nbytes == one.measured for one in self.items)


def measure_block(batch: int, length: int, heads: int, width: int, dtype: str = "float32") -> MeasuredBlock:
    """Run forward and backward of the block, by the PyNative engine, and compare what it saves with the formulas.

    Args:
        batch, length, heads, width: the size; ``heads`` divides ``width``.
        dtype: ``"float32"`` or ``"float16"``.

    Raises:
        ArgumentTypeError, ArgumentValueError: one of them cannot be used.

    Example:
        >>> block = measure_block(2, 8, 2, 16)
        >>> block.agrees, block.measured_bytes
        (True, 17664)
    """
    for name, number in (("batch", batch), ("length", length), ("heads", heads), ("width", width)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise ArgumentTypeError(f"{name} must be an int, not {number!r}")
        if number < 1:
            raise ArgumentValueError(f"{name} must be at least 1, not {number}")
    if width % heads:
        raise ArgumentValueError(f"heads must divide width, but {heads} does not divide {width}")
    if dtype not in ITEMSIZE:
        raise ArgumentValueError(f"dtype must be one of {', '.join(ITEMSIZE)}, not {dtype!r}")
    kind = getattr(ms, dtype)
    block = TransformerBlock(batch, length, heads, width, kind)
    x = Tensor(np.random.default_rng(0).standard_normal((batch * length, width)).astype(np.float32)).astype(kind)
    timeline = memory_timeline(block, (x,), block.trainable_params(), mode="pynative")
    saved = {layer.layer: layer.saved_bytes for layer in timeline.by_layer()}
    items = block_items(batch, length, heads, width, ITEMSIZE[dtype])
    return MeasuredBlock(batch, length, heads, width, dtype,
                         tuple(MeasuredItem(item, saved.get(item.layer, 0)) for item in items),
                         block_bytes(batch, length, heads, width, ITEMSIZE[dtype]), sum(saved.values()),
                         korthikanti_bytes(batch, length, heads, width))
