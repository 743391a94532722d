"""The nets that the benchmarks share, each with the bytes that its dw needs by formula."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops


@dataclass(frozen=True)
class BenchNet:
    """A net, its input, and the bytes of activations that its dw reads (4 bytes a number)."""

    name: str
    net: Any
    x: Any
    dw_bytes: int


class Mlp(nn.Cell):
    """``layers`` linear layers of equal width with an activation between them."""

    def __init__(self, width: int, layers: int, activation: Any):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(width, width) for _ in range(layers)])
        self.activation = activation

    def construct(self, x):
        for place, layer in enumerate(self.layers):
            x = layer(x) if place == 0 else layer(self.activation(x))
        return x


class SwiGlu(nn.Cell):
    """``x + down(silu(gate(x)) * up(x))``."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate, self.up = nn.Dense(width, hidden, has_bias=False), nn.Dense(width, hidden, has_bias=False)
        self.down = nn.Dense(hidden, width, has_bias=False)

    def construct(self, x):
        return x + self.down(ops.silu(self.gate(x)) * self.up(x))


class Block(nn.Cell):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.norm1, self.norm2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.qkv, self.proj = nn.Dense(width, 3 * width), nn.Dense(width, width)
        self.up, self.down = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)

    def attention(self, x):
        """Self-attention without a mask."""
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, self.head_width)
        q, k, v = (part.squeeze(2).transpose(0, 2, 1, 3) for part in ops.split(qkv, 1, axis=2))
        scores = ops.softmax(ops.matmul(q, k.swapaxes(-1, -2)) * (self.head_width ** -0.5), axis=-1)
        return self.proj(ops.matmul(scores, v).transpose(0, 2, 1, 3).reshape(batch, length, width))

    def construct(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(ops.gelu(self.up(self.norm2(x)), approximate="tanh"))


def mlp(activation: str, width: int = 1024, layers: int = 6, batch: int = 256) -> BenchNet:
    """An MLP; dw of each layer reads the layer's input."""
    function = {"tanh": ops.tanh, "silu": ops.silu, "relu": ops.relu, "gelu": ops.gelu}[activation]
    return BenchNet(f"MLP {activation} {layers}x{width}, batch {batch}", Mlp(width, layers, function),
                    normal(batch, width), layers * batch * width * 4)


def swiglu(width: int = 512, hidden: int = 1024, batch: int = 256) -> BenchNet:
    """A SwiGLU block; gate and up read the same input."""
    return BenchNet(f"SwiGLU {width}/{hidden}, batch {batch}", SwiGlu(width, hidden), normal(batch, width),
                    batch * (width + hidden) * 4)


def transformer(blocks: int, width: int, batch: int, length: int, heads: int = 4) -> BenchNet:
    """Transformer blocks; per block dw reads the inputs of qkv, proj and up (width) and of down (4 width). The norms
    compute dw in dx and need nothing afterwards but their small results, which do not count as saved."""
    return BenchNet(f"transformer {blocks} blocks, width {width}, batch {batch}, length {length}",
                    nn.SequentialCell(*[Block(width, heads) for _ in range(blocks)]), normal(batch, length, width),
                    blocks * batch * length * 7 * width * 4)


def normal(*shape: int) -> Any:
    """Standard normal numbers, the same in every run."""
    return Tensor(np.random.RandomState(0).standard_normal(shape).astype(np.float32))
