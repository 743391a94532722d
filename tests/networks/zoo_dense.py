"""Networks of dense layers."""

from mindspore import Parameter, nn, ops

from tests.networks.zoo import NetCase, integers, normal, of_cell, register


class Mlp(nn.Cell):
    """Dense layers with a function between them."""

    def __init__(self, widths, act):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(one, two) for one, two in zip(widths, widths[1:])])
        self.act = act

    def construct(self, x):
        for layer in self.layers[:-1]:
            x = self.act(layer(x))
        return self.layers[-1](x)


@register
def mlp_tanh():
    return of_cell(Mlp((6, 8, 8, 4), ops.tanh), (3, 6))


@register
def mlp_silu():
    return of_cell(Mlp((6, 8, 8, 4), ops.silu), (3, 6))


@register
def mlp_gelu():
    return of_cell(Mlp((6, 8, 4), ops.gelu), (2, 3, 6))


@register
def sequential():
    """Layers of many kinds in a row, the first without a bias."""
    return of_cell(nn.SequentialCell(nn.Dense(6, 8, has_bias=False), nn.ReLU(), nn.Dense(8, 8), nn.Sigmoid(),
                                     nn.LayerNorm((8,)), nn.Dense(8, 4, activation="tanh")), (3, 6))


class SwiGlu(nn.Cell):
    """``down(silu(gate(x)) * up(x))``"""

    def __init__(self, width, inner):
        super().__init__()
        self.gate = nn.Dense(width, inner, has_bias=False)
        self.up = nn.Dense(width, inner, has_bias=False)
        self.down = nn.Dense(inner, width, has_bias=False)

    def construct(self, x):
        return self.down(ops.silu(self.gate(x)) * self.up(x))


@register
def swiglu():
    return of_cell(SwiGlu(6, 8), (2, 3, 6), shares=True)


class ResidualMlp(nn.Cell):
    """Blocks ``x + f(norm(x))``."""

    def __init__(self, width, depth):
        super().__init__()
        self.norms = nn.CellList([nn.LayerNorm((width,)) for _ in range(depth)])
        self.blocks = nn.CellList([Mlp((width, 2 * width, width), ops.gelu) for _ in range(depth)])

    def construct(self, x):
        for norm, block in zip(self.norms, self.blocks):
            x = x + block(norm(x))
        return x


@register
def residual_mlp():
    return of_cell(ResidualMlp(6, 3), (3, 6), shares=True)


class Highway(nn.Cell):
    """``gate * h + (1 - gate) * x``"""

    def __init__(self, width):
        super().__init__()
        self.change = nn.Dense(width, width)
        self.gate = nn.Dense(width, width)

    def construct(self, x):
        gate = ops.sigmoid(self.gate(x))
        return gate * ops.tanh(self.change(x)) + (1 - gate) * x


@register
def highway():
    return of_cell(nn.SequentialCell(Highway(5), Highway(5)), (3, 5), shares=True)


class Siamese(nn.Cell):
    """One tower for two inputs, compared by all pairs of products."""

    def __init__(self):
        super().__init__()
        self.tower = Mlp((6, 8, 4), ops.tanh)

    def construct(self, x, y):
        return ops.matmul(self.tower(x), self.tower(y).swapaxes(0, 1))


@register
def siamese():
    return of_cell(Siamese(), (3, 6), (3, 6), grad_position=(1, 0))


class Repeated(nn.Cell):
    """One layer and one norm, used in every step."""

    def __init__(self, width, times):
        super().__init__()
        self.layer = nn.Dense(width, width)
        self.norm = nn.LayerNorm((width,))
        self.times = times

    def construct(self, x):
        for _ in range(self.times):
            x = self.norm(ops.tanh(self.layer(x)))
        return x


@register
def repeated_layer():
    """Each weight has as many uses as there are steps; the LayerNorm's are computed with dx."""
    return of_cell(Repeated(6, 4), (3, 6))


class Moe(nn.Cell):
    """Experts weighted by the softmax of the largest router scores."""

    def __init__(self, width, experts):
        super().__init__()
        self.router = nn.Dense(width, experts, has_bias=False)
        self.experts = nn.CellList([SwiGlu(width, width) for _ in range(experts)])
        self.count = experts

    def construct(self, x):
        best, places = ops.topk(self.router(x), 2)
        shares = ops.softmax(best, -1)
        out = ops.zeros_like(x)
        for number in range(self.count):
            chosen = ops.equal(places, number).astype(x.dtype)
            share = (shares * chosen).sum(-1, keepdims=True)
            out = out + share * self.experts[number](x)
        return out


@register
def moe():
    """Routing by topk: integers in between, and experts that some micro-batches do not reach."""
    return of_cell(Moe(6, 3), (4, 6), shares=True)


class Bilinear(nn.Cell):
    """``x_i W_k y_j`` with a stack of matrices, and a bias that is broadcast twice."""

    def __init__(self):
        super().__init__()
        self.kernels = Parameter(normal((4, 6, 5)), name="kernels")
        self.bias = Parameter(normal((4, 1)), name="bias")

    def construct(self, x, y):
        return ops.bmm(ops.matmul(x, self.kernels), y.swapaxes(0, 1).expand_dims(0).tile((4, 1, 1))) \
            + self.bias.expand_dims(1)


@register
def bilinear():
    return of_cell(Bilinear(), (3, 6), (3, 5), grad_position=-1)


class Prelu(nn.Cell):
    """Slopes for each channel and one for all."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(6, 5)
        self.slopes = nn.PReLU(5)
        self.second = nn.Dense(5, 4)
        self.slope = nn.PReLU(1)

    def construct(self, x):
        return self.slope(self.second(self.slopes(self.first(x))))


@register
def prelu():
    return of_cell(Prelu(), (3, 6))


class FactorisationMachine(nn.Cell):
    """Squares of sums minus sums of squares of embeddings, and a deep part on the same embeddings."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 4)
        self.deep = Mlp((14, 8, 1), ops.relu)

    def construct(self, ids, dense):
        rows = self.table(ids)
        pairs = (ops.square(rows.sum(1)) - ops.square(rows).sum(1)).sum(-1, keepdims=True) * 0.5
        flat = ops.concat((rows.reshape((ids.shape[0], -1)), dense), axis=-1)
        return pairs + self.deep(flat)


@register
def deep_factorisation():
    """Token ids beside dense features: the gradient of the ids is None."""
    case = of_cell(FactorisationMachine(), (3, 2), grad_position=(0, 1))
    return NetCase(case.fn, lambda batch: (integers((3, 3), 20, batch), normal((3, 2), batch)), case.weights,
                   grad_position=(0, 1))


class GraphConvolution(nn.Cell):
    """``A relu(A x W) V`` with a constant adjacency matrix."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(5, 6)
        self.second = nn.Dense(6, 3)

    def construct(self, x, adjacency):
        return ops.matmul(adjacency, self.second(ops.relu(self.first(ops.matmul(adjacency, x)))))


@register
def graph_convolution():
    return of_cell(GraphConvolution(), (4, 5), (4, 4))
