"""The bytes that a transformer block saves for its backward, operation by operation, as formulas.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198,
section 4. Their letters are s (length), b (batch), h (width) and a (heads); their block has dropouts and 16-bit
activations, and the statistics of the norms are neglected. The items here are those of
:class:`~mindspore_zb.memory.transformer_block.TransformerBlock`: no dropout, any dtype, and the statistics counted.
"""

from dataclasses import dataclass
from typing import Tuple

STATISTIC_BYTES = 4
"""A mean or a reciprocal deviation of a norm is a float32, whatever the dtype of the activations."""


@dataclass(frozen=True)
class BlockItem:
    """What one part of the block saves.

    Attributes:
        layer: the Cell in the block.
        what: the tensors.
        formula: in B (batch), L (length), W (width), H (heads) and e (bytes of a number).
        nbytes: its value.
    """

    layer: str
    what: str
    formula: str
    nbytes: int


def activation_bytes(batch: int, length: int, width: int, itemsize: int, count: int = 1) -> int:
    """Bytes of ``count`` activations of the block's width: ``count B L W e``.

    >>> activation_bytes(2, 128, 256, 4)
    262144
    """
    return count * batch * length * width * itemsize


def attention_map_bytes(batch: int, heads: int, length: int, itemsize: int) -> int:
    """Bytes of one number for each head and pair of places, such as the result of the softmax: ``B H L L e``.

    >>> attention_map_bytes(2, 4, 128, 4)
    524288
    """
    return batch * heads * length * length * itemsize


def norm_statistics_bytes(batch: int, length: int) -> int:
    """Bytes of the mean and the reciprocal deviation of every row that a LayerNorm saves: ``2 B L 4``.

    >>> norm_statistics_bytes(2, 128)
    2048
    """
    return 2 * batch * length * STATISTIC_BYTES


def block_items(batch: int, length: int, heads: int, width: int, itemsize: int = 4) -> Tuple[BlockItem, ...]:
    """What every part of the block saves, each storage with the part that saves it first.

    >>> for item in block_items(1, 2, 2, 4)[:2]:
    ...     print(item.layer, item.formula, item.nbytes)
    norm1 BLWe + 8BL 48
    attention.query BLWe 32
    """
    one = activation_bytes(batch, length, width, itemsize)
    statistics = norm_statistics_bytes(batch, length)
    return (
        BlockItem("norm1", "input, mean and deviation", "BLWe + 8BL", one + statistics),
        BlockItem("attention.query", "input, which key and value share", "BLWe", one),
        BlockItem("attention.key", "shared with query", "0", 0),
        BlockItem("attention.value", "shared with query", "0", 0),
        BlockItem("attention.scores", "query and key by heads", "2BLWe", 2 * one),
        BlockItem("attention.softmax", "result", "BHLLe", attention_map_bytes(batch, heads, length, itemsize)),
        BlockItem("attention.context", "value by heads", "BLWe", one),
        BlockItem("attention.projection", "input", "BLWe", one),
        BlockItem("norm2", "input, mean and deviation", "BLWe + 8BL", one + statistics),
        BlockItem("up", "input", "BLWe", one),
        BlockItem("gelu", "input and result, 4W wide", "8BLWe", 8 * one),
        BlockItem("down", "input is the result of gelu", "0", 0))


def block_bytes(batch: int, length: int, heads: int, width: int, itemsize: int = 4) -> int:
    """All that the block saves: ``e (16 B L W + B H L L) + 16 B L``.

    In 16 bits, and without the statistics of the norms, that is the paper's block without its dropouts,
    ``s b h (32 + 2 a s / h)``: section 4.1 less the masks of three dropouts and the result of one.

    >>> b, s, a, h = 2, 128, 4, 256
    >>> block_bytes(b, s, a, h, itemsize=2) - 16 * b * s == s * b * (32 * h + 2 * a * s)
    True
    >>> korthikanti_bytes(b, s, a, h) - (2 * s * b * h + 3 * a * s * s * b) == s * b * (32 * h + 2 * a * s)
    True
    """
    return sum(item.nbytes for item in block_items(batch, length, heads, width, itemsize))


def korthikanti_bytes(batch: int, length: int, heads: int, width: int) -> int:
    """The paper's block, section 4.1, with dropouts and 16-bit activations: ``s b h (34 + 5 a s / h)``.

    >>> korthikanti_bytes(1, 2048, 96, 12288) / 2**30  # a layer of its 175 billion parameter model, one sequence
    2.671875
    """
    return length * batch * (34 * width + 5 * heads * length)
