"""Mixed and other precisions, and networks with random masks."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from tests.networks.zoo import NetCase, normal, of_cell, register
from tests.networks.zoo_dense import Mlp, ResidualMlp
from tests.networks.zoo_vision import ConvNet


@register
def amp_o2():
    """MindSpore's own mixed precision: fp16 layers, fp32 norms, fp32 result."""
    return of_cell(ms.amp.auto_mixed_precision(ResidualMlp(6, 2), "O2"), (3, 6), shares=True, tolerance=5e-3)


@register
def amp_o2_conv_batchnorm():
    """fp16 convolutions around a BatchNorm in fp32."""
    norm = nn.BatchNorm2d(4)
    cell = ms.amp.auto_mixed_precision(ConvNet(norm).set_train(), "O2")
    return of_cell(cell, (3, 2, 8, 8), state=(norm.moving_mean, norm.moving_variance), tolerance=2e-2)


class CastInside(nn.Cell):
    """fp32 weights cast to fp16 in the forward, norm and result in fp32."""

    def __init__(self):
        super().__init__()
        self.one = nn.Dense(6, 8).to_float(ms.float16)
        self.norm = nn.LayerNorm((8,))
        self.two = nn.Dense(8, 4).to_float(ms.float16)

    def construct(self, x):
        return self.two(self.norm(self.one(x).astype(ms.float32))).astype(ms.float32)


@register
def cast_inside():
    return of_cell(CastInside(), (3, 6), tolerance=5e-3)


@register
def half():
    """Everything in fp16, inputs and outputs too."""
    cell = Mlp((6, 8, 4), ops.tanh).to_float(ms.float16)
    case = of_cell(cell, (3, 6))
    return NetCase(cell, lambda batch: (normal((3, 6), batch).astype(ms.float16),), case.weights, tolerance=5e-3)


@register
def double():
    """Everything in fp64."""
    one, two = (Parameter(normal((6, 6), seed, np.float64) / 3, name=f"w{seed}") for seed in (1, 2))

    def fn(x):
        return ops.matmul(ops.tanh(ops.matmul(x, one)), two)

    return NetCase(fn, lambda batch: (normal((3, 6), batch, np.float64),), (one, two))


class Dropped(nn.Cell):
    """Random masks given as inputs: what a dropout does, reproducibly."""

    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(6, 6), nn.Dense(6, 6)])

    def construct(self, x, masks):
        for layer, mask in zip(self.layers, masks):
            x = ops.tanh(layer(x)) * mask * 2.0
        return x


@register
def masks_given():
    """Masks as a tuple of tensors that are not asked for."""
    case = of_cell(Dropped(), (3, 6))

    def inputs(batch):
        rng = np.random.default_rng(batch)
        masks = tuple(Tensor((rng.random((3, 6)) < 0.5).astype(np.float32)) for _ in range(2))
        return normal((3, 6), batch), masks

    return NetCase(case.fn, inputs, case.weights)


class Dropout(nn.Cell):
    """``nn.Dropout`` between layers."""

    def __init__(self):
        super().__init__()
        self.one = nn.Dense(6, 16)
        self.drop = nn.Dropout(p=0.5)
        self.two = nn.Dense(16, 4)

    def construct(self, x):
        return self.two(self.drop(ops.tanh(self.one(x))))


@register
def dropout():
    """A new ``nn.Dropout`` built after ``set_seed`` draws the same masks in the same order."""
    ms.set_seed(11)
    return of_cell(Dropout().set_train(), (3, 6))
