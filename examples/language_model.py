"""The net and the text of the first example: a small transformer that reads bytes, cut in two pipeline stages."""

from pathlib import Path
from typing import Iterator, List, Tuple

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

VOCABULARY = 256  # a token is a byte
MicroBatch = Tuple[Tensor, Tensor]  # token ids and the ids that follow them, both (batch, length)


def linear(inputs: int, outputs: int) -> nn.Dense:
    """A linear layer; without bias, as is usual in language models."""
    return nn.Dense(inputs, outputs, has_bias=False)


class Block(nn.Cell):
    """A pre-norm transformer block with causal attention; (batch, length, width) to the same shape."""

    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.norm1, self.norm2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.qkv, self.proj = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)
        self.times, self.times_transposed = ops.BatchMatMul(), ops.BatchMatMul(transpose_b=True)
        self.mask = Tensor(np.triu(np.full((length, length), -1e9, np.float32), k=1))

    def construct(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(ops.gelu(self.up(self.norm2(x)), approximate="tanh"))

    def attention(self, x):
        """Each place looks at itself and at the places before it."""
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, self.head_width)
        q, k, v = ops.unbind(qkv.transpose(2, 0, 3, 1, 4))
        scores = self.times_transposed(q, k) * self.head_width ** -0.5 + self.mask
        mixed = self.times(ops.softmax(scores, axis=-1), v)
        return self.proj(mixed.transpose(0, 2, 1, 3).reshape(batch, length, width))


class FirstStage(nn.Cell):
    """Embedding and the first blocks: token ids (batch, length) to activations (batch, length, width)."""

    def __init__(self, blocks: int, width: int, heads: int, length: int):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(length, width)
        self.place_ids = Tensor(np.arange(length), mstype.int32)
        self.blocks = nn.SequentialCell([Block(width, heads, length) for _ in range(blocks)])

    def construct(self, ids):
        return self.blocks(self.tokens(ids) + self.places(self.place_ids))


class LastStage(nn.Cell):
    """The last blocks, the head and the loss: activations and target ids to one number."""

    def __init__(self, blocks: int, width: int, heads: int, length: int):
        super().__init__()
        self.blocks = nn.SequentialCell([Block(width, heads, length) for _ in range(blocks)])
        self.norm = nn.LayerNorm((width,))
        self.head = linear(width, VOCABULARY)
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, hidden, targets):
        logits = self.head(self.norm(self.blocks(hidden)))
        return self.loss(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


class LanguageModel(nn.Cell):
    """Both stages in a row: what is trained when nothing is split.

    Args:
        blocks: number of blocks, 2 or more; the first stage has the smaller half, for it has the embedding too.
        width: size of the activations, a multiple of ``heads``.
        heads: attention heads of each block.
        length: number of tokens that are read at once.
    """

    def __init__(self, blocks: int, width: int, heads: int, length: int):
        super().__init__()
        self.size = (blocks, width, heads, length)
        self.first = FirstStage(blocks // 2, width, heads, length)
        self.last = LastStage(blocks - blocks // 2, width, heads, length)

    def construct(self, ids, targets):
        return self.last(self.first(ids), targets)


def copy_weights(source: nn.Cell, target: nn.Cell) -> None:
    """Give ``target`` the values of the weights of ``source``; nothing is shared."""
    for mine, theirs in zip(source.trainable_params(), target.trainable_params()):
        theirs.set_data(Tensor(mine.asnumpy().copy()))


def read_text(folder: Path, most: int) -> bytes:
    """The Python sources and other text files in ``folder``, in the order of their names, cut at ``most`` bytes.

    Raises:
        OSError: there is none, or less than a thousand bytes, or it cannot be read.
    """
    text = b""
    for path in sorted(path for ending in ("py", "txt", "md", "rst") for path in folder.glob(f"*.{ending}")):
        text += path.read_bytes() + b"\n"
        if len(text) >= most:
            break
    if len(text) < 1000:
        raise FileNotFoundError(f"no text to train on: {folder} holds no kilobyte of .py, .txt, .md or .rst files")
    return text[:most]


def endless_steps(text: bytes, micro_batches: int, batch: int, length: int, seed: int) -> Iterator[List[MicroBatch]]:
    """For each step its micro-batches: pieces from random places of ``text``, the same for the same ``seed``."""
    numbers = np.frombuffer(text, np.uint8).astype(np.int32)
    random = np.random.RandomState(seed)
    while True:
        starts = random.randint(0, len(numbers) - length - 1, (micro_batches, batch))
        windows = numbers[starts[..., None] + np.arange(length + 1)]
        yield [(Tensor(window[:, :-1]), Tensor(window[:, 1:])) for window in windows]
