"""Transformers, recurrent networks and language models."""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from tests.networks.zoo import NetCase, initialise, integers, normal, normal_inputs, of_cell, register
from tests.networks.zoo_dense import Mlp, SwiGlu


class Attention(nn.Cell):
    """Causal self-attention with one weight for query, key and value."""

    def __init__(self, width, heads):
        super().__init__()
        self.qkv = nn.Dense(width, 3 * width)
        self.out = nn.Dense(width, width)
        self.heads, self.size = heads, width // heads

    def construct(self, x):
        rows, length, width = x.shape
        query, key, value = ops.split(self.qkv(x), width, axis=-1)
        query, key, value = [part.reshape((rows, length, self.heads, self.size)).swapaxes(1, 2)
                             for part in (query, key, value)]
        scores = ops.matmul(query, key.swapaxes(2, 3)) * self.size ** -0.5
        mask = Tensor(np.triu(np.full((length, length), -1e4, np.float32), 1))
        mixed = ops.matmul(ops.softmax(scores + mask, -1), value)
        return self.out(mixed.swapaxes(1, 2).reshape((rows, length, width)))


class Block(nn.Cell):
    """Pre-norm transformer block."""

    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.CellList([nn.LayerNorm((width,)), nn.LayerNorm((width,))])
        self.attention = Attention(width, heads)
        self.mlp = Mlp((width, 2 * width, width), ops.gelu)

    def construct(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


@register
def transformer():
    return of_cell(nn.SequentialCell(Block(8, 2), Block(8, 2)), (2, 4, 8), shares=True)


@register
def transformer_encoder_layer():
    """MindSpore's own post-norm layer."""
    cell = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    return of_cell(cell, (2, 3, 8), shares=True, compiles=False)


class RmsNorm(nn.Cell):
    """By hand."""

    def __init__(self, width):
        super().__init__()
        self.scale = Parameter(Tensor(np.ones(width, np.float32)), name="scale")

    def construct(self, x):
        return x * ops.rsqrt((x * x).mean(-1, keep_dims=True) + 1e-5) * self.scale


class GroupedAttention(nn.Cell):
    """Rotated queries and keys; two heads of queries share one head of keys and values."""

    def __init__(self, width, size):
        super().__init__()
        self.query = nn.Dense(width, 2 * size, has_bias=False)
        self.key = nn.Dense(width, size, has_bias=False)
        self.value = nn.Dense(width, size, has_bias=False)
        self.out = nn.Dense(2 * size, width, has_bias=False)
        self.size = size

    def rotated(self, x, angles):
        one, two = ops.split(x, self.size // 2, axis=-1)
        return ops.concat((one * ops.cos(angles) - two * ops.sin(angles),
                           two * ops.cos(angles) + one * ops.sin(angles)), axis=-1)

    def construct(self, x):
        rows, length, _ = x.shape
        steps = np.arange(length)[:, None] / 10.0 ** np.arange(self.size // 2)[None]
        angles = Tensor(steps.astype(np.float32))
        query = self.query(x).reshape((rows, length, 2, self.size)).swapaxes(1, 2)
        key = self.key(x).reshape((rows, 1, length, self.size))
        query, key = self.rotated(query, angles), self.rotated(key, angles)
        value = self.value(x).reshape((rows, 1, length, self.size))
        scores = ops.softmax(ops.matmul(query, ops.tile(key, (1, 2, 1, 1)).swapaxes(2, 3)) * 0.5, -1)
        mixed = ops.matmul(scores, ops.tile(value, (1, 2, 1, 1)))
        return self.out(mixed.swapaxes(1, 2).reshape((rows, length, 2 * self.size)))


class LlamaBlock(nn.Cell):
    """RMSNorm, grouped rotary attention, SwiGLU."""

    def __init__(self, width):
        super().__init__()
        self.norms = nn.CellList([RmsNorm(width), RmsNorm(width)])
        self.attention = GroupedAttention(width, 4)
        self.mlp = SwiGlu(width, 8)

    def construct(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


@register
def llama_block():
    return of_cell(LlamaBlock(6), (2, 3, 6), shares=True, compiles=False)


class CrossAttention(nn.Cell):
    """Queries of one input, keys and values of another; learned queries beside."""

    def __init__(self):
        super().__init__()
        self.latent = Parameter(normal((2, 6)), name="latent")
        self.query = nn.Dense(6, 6)
        self.keyvalue = nn.Dense(5, 12)

    def construct(self, x, memory):
        query = self.query(ops.concat((x, ops.tile(self.latent.expand_dims(0), (x.shape[0], 1, 1))), axis=1))
        key, value = ops.split(self.keyvalue(memory), 6, axis=-1)
        return ops.bmm(ops.softmax(ops.bmm(query, key.swapaxes(1, 2)), -1), value)


@register
def cross_attention():
    return of_cell(CrossAttention(), (2, 3, 6), (2, 4, 5), grad_position=-1)


class LanguageModel(nn.Cell):
    """Token ids in, the loss of the next token out; the embedding is the output projection too."""

    def __init__(self):
        super().__init__()
        self.table = Parameter(normal((11, 8)), name="table")
        self.positions = Parameter(normal((4, 8)), name="positions")
        self.block = Block(8, 2)
        self.norm = nn.LayerNorm((8,))

    def construct(self, ids, labels):
        x = ops.gather(self.table, ids, 0) + self.positions
        scores = ops.matmul(self.norm(self.block(x)), self.table.swapaxes(0, 1))
        return ops.cross_entropy(scores.reshape((-1, 11)), labels.reshape((-1,)))


@register
def language_model():
    """A whole model on integers: dx is None, everything belongs to dw."""
    cell = LanguageModel()
    initialise(cell)
    return NetCase(cell, lambda batch: (integers((2, 4), 11, batch), integers((2, 4), 11, (batch, 1))),
                   tuple(cell.trainable_params()), shares=True)


class LastStage(nn.Cell):
    """The last stage of a pipeline: hidden values and labels in, loss out."""

    def __init__(self):
        super().__init__()
        self.block = Block(8, 2)
        self.head = nn.Dense(8, 11, has_bias=False)

    def construct(self, x, labels):
        return ops.cross_entropy(self.head(self.block(x)).reshape((-1, 11)), labels.reshape((-1,)))


@register
def last_stage():
    cell = LastStage()
    initialise(cell)
    return NetCase(cell, lambda batch: (normal((2, 4, 8), batch), integers((2, 4), 11, batch)),
                   tuple(cell.trainable_params()), shares=True)


@register
def lstm():
    """Two layers; a tuple in a tuple comes back."""
    return of_cell(nn.LSTM(5, 4, num_layers=2, batch_first=True), (2, 3, 5))


@register
def bidirectional_lstm():
    """States go in as well."""
    cell = nn.LSTM(5, 4, batch_first=True, bidirectional=True)
    initialise(cell)

    def inputs(batch):
        return normal((2, 3, 5), batch), (normal((2, 2, 4), (batch, 1)), normal((2, 2, 4), (batch, 2)))

    return NetCase(cell, inputs, tuple(cell.trainable_params()), grad_position=-1)


@register
def gru():
    return of_cell(nn.GRU(5, 4, batch_first=True), (2, 3, 5), shares=True)


class Recurrent(nn.Cell):
    """A recurrence by hand over unbound steps, all its outputs stacked, the last state beside."""

    def __init__(self, width, size):
        super().__init__()
        self.inner = nn.Dense(width, size)
        self.again = Parameter(normal((size, size)), name="again")
        self.start = Parameter(normal((size,)), name="start")

    def construct(self, x):
        state = ops.tile(self.start.expand_dims(0), (x.shape[0], 1))
        states = []
        for step in ops.unbind(x, 1):
            state = ops.tanh(self.inner(step) + ops.matmul(state, self.again))
            states.append(state)
        return ops.stack(states, axis=1), state


@register
def recurrence_by_hand():
    return of_cell(Recurrent(5, 4), (2, 4, 5), shares=True)


class LstmLoop(nn.Cell):
    """A cell of MindSpore's in a Python loop."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(5, 4)
        self.head = nn.Dense(4, 3)

    def construct(self, x, state):
        for step in range(3):
            state = self.cell(x[:, step], state)
        return self.head(state[0]), state


@register
def lstm_cell_loop():
    cell = LstmLoop()
    initialise(cell)

    def inputs(batch):
        return normal((2, 3, 5), batch), (normal((2, 4), (batch, 1)), normal((2, 4), (batch, 2)))

    return NetCase(cell, inputs, tuple(cell.trainable_params()), grad_position=(0, 1), shares=True, compiles=False)


@register
def state_space():
    """A linear recurrence by cumulative sums in logarithms."""
    decay = Parameter(normal((5,), 3), name="decay")
    mix = Parameter(normal((5, 5), 4), name="mix")

    def fn(x):
        steps = ops.arange(x.shape[1]).astype(x.dtype).reshape((1, -1, 1))
        rate = ops.softplus(decay) * 0.2
        return ops.matmul(ops.cumsum(x * ops.exp(steps * rate), 1) * ops.exp(-steps * rate), mix)

    return NetCase(fn, normal_inputs((2, 4, 5)), (decay, mix))
