"""Convolutions and their norms."""

from mindspore import nn, ops

from tests.networks.zoo import of_cell, register


class ConvNet(nn.Cell):
    """Convolution, norm, pooling, and a dense head."""

    def __init__(self, norm):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, has_bias=True)
        self.norm = norm
        self.second = nn.Conv2d(4, 4, 3, stride=2)
        self.pool = nn.MaxPool2d(2, 2)
        self.head = nn.Dense(4, 3)

    def construct(self, x):
        x = ops.relu(self.norm(self.first(x)))
        x = ops.tanh(self.second(self.pool(x)))
        return self.head(x.mean((2, 3)))


@register
def conv_batchnorm():
    """BatchNorm in training: the moving statistics change once per forward."""
    norm = nn.BatchNorm2d(4)
    cell = ConvNet(norm).set_train()
    return of_cell(cell, (3, 2, 8, 8), state=(norm.moving_mean, norm.moving_variance), tolerance=5e-5)


@register
def conv_batchnorm_eval():
    """BatchNorm with fixed statistics."""
    norm = nn.BatchNorm2d(4)
    return of_cell(ConvNet(norm).set_train(False), (3, 2, 8, 8), state=(norm.moving_mean, norm.moving_variance))


@register
def conv_groupnorm():
    return of_cell(ConvNet(nn.GroupNorm(2, 4)), (2, 2, 8, 8))


class ResNetBlock(nn.Cell):
    """Two convolutions beside one, each with its BatchNorm."""

    def __init__(self):
        super().__init__()
        self.convs = nn.CellList([nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(2, 4, 1)])
        self.norms = nn.CellList([nn.BatchNorm2d(4) for _ in range(3)])

    def construct(self, x):
        main = ops.relu(self.norms[0](self.convs[0](x)))
        main = self.norms[1](self.convs[1](main))
        return ops.relu(main + self.norms[2](self.convs[2](x)))


@register
def resnet_block():
    cell = ResNetBlock().set_train()
    state = tuple(value for norm in cell.norms for value in (norm.moving_mean, norm.moving_variance))
    return of_cell(cell, (2, 2, 6, 6), state=state, shares=True, tolerance=5e-5)


class UNet(nn.Cell):
    """Down, up by a transposed convolution, and a skip that is concatenated."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 2, stride=2)
        self.inside = nn.Conv2d(4, 4, 3, has_bias=True)
        self.up = nn.Conv2dTranspose(4, 2, 2, stride=2)
        self.last = nn.Conv2d(4, 1, 1)

    def construct(self, x):
        inner = ops.tanh(self.inside(ops.tanh(self.down(x))))
        return self.last(ops.concat((x, self.up(inner)), axis=1))


@register
def unet():
    return of_cell(UNet(), (2, 2, 6, 6), shares=True)


class SqueezeExcite(nn.Cell):
    """A convolution per channel, scaled by a gate computed of all of it."""

    def __init__(self):
        super().__init__()
        self.depthwise = nn.Conv2d(4, 4, 3, group=4)
        self.squeeze = nn.Dense(4, 2)
        self.excite = nn.Dense(2, 4)

    def construct(self, x):
        x = self.depthwise(x)
        gate = ops.sigmoid(self.excite(ops.relu(self.squeeze(x.mean((2, 3))))))
        return x * gate.reshape((-1, 4, 1, 1))


@register
def squeeze_excite():
    return of_cell(SqueezeExcite(), (2, 4, 5, 5), shares=True)


@register
def conv1d():
    return of_cell(nn.SequentialCell(nn.Conv1d(3, 4, 3, has_bias=True), nn.Tanh(), nn.Conv1d(4, 2, 3)), (2, 3, 8))


@register
def conv1d_transpose():
    return of_cell(nn.SequentialCell(nn.Conv1dTranspose(3, 4, 3), nn.Tanh(), nn.Conv1d(4, 2, 3)), (2, 3, 6))


@register
def conv3d():
    return of_cell(nn.SequentialCell(nn.Conv3d(2, 3, 2), nn.Tanh()), (1, 2, 3, 3, 3))


class VisionTransformerStem(nn.Cell):
    """Patches by a strided convolution, flattened, with learned positions and a class token."""

    def __init__(self):
        super().__init__()
        from mindspore import Parameter
        from tests.networks.zoo import normal
        self.patches = nn.Conv2d(2, 4, 2, stride=2, has_bias=True)
        self.positions = Parameter(normal((1, 5, 4)), name="positions")
        self.token = Parameter(normal((1, 1, 4)), name="token")

    def construct(self, x):
        rows = self.patches(x).reshape((x.shape[0], 4, 4)).swapaxes(1, 2)
        token = ops.tile(self.token, (x.shape[0], 1, 1))
        return ops.concat((token, rows), axis=1) + self.positions


@register
def vision_stem():
    return of_cell(VisionTransformerStem(), (2, 2, 4, 4))
