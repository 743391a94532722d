"""A process that compiles some calls with a cache directory, and says how many it compiled and what they gave.

    python cache_child.py DIRECTORY
"""

import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from mindspore_zb import options, zero_bubble  # noqa: E402
from mindspore_zb.engines.graph import cache  # noqa: E402

SLOPE = 0.25


def numbers(*shape):
    return Tensor(np.sin(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape))


def scaled(x, by):
    return x * by * SLOPE


class Net(nn.Cell):
    """Some of all: a global, a set, a dict, tied weights, statistics that are written, a result that nests."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4, weight_init=numbers(4, 4), bias_init=numbers(4))
        self.norm = nn.BatchNorm1d(4)
        self.weight = Parameter(numbers(4, 2), name="weight")
        self.shape_of = {"rows": 3, "kinds": ("a", "b")}
        self.kinds = {"z", "y", "x", "w"}

    def construct(self, x, factor=2.0):
        hidden = self.norm(ops.tanh(self.dense(self.dense(x))))
        out = ops.matmul(scaled(hidden, factor), self.weight)
        if "x" in self.kinds:
            out = out + self.shape_of["rows"]
        return {"out": out, "hidden": (hidden, 7)}, "aux"


def main(directory):
    net = Net()
    net.set_train()
    call = zero_bubble(net, mode="graph", has_aux=True, grad_position=-1).forward_and_gradfn
    compiled = []
    compile_blueprint = cache.compile_blueprint
    cache.compile_blueprint = lambda *args: compiled.append(1) or compile_blueprint(*args)
    values = []
    with options(graph_cache=directory):
        for rows in (3, 5, 3):
            (out, aux), grad_fn = call(numbers(rows, 4), factor=3.0)
            dx, dw = grad_fn()
            values += [out["out"], out["hidden"][0], *dx, *dw, net.norm.moving_mean.value()]
            assert aux == "aux" and out["hidden"][1] == 7
    print(json.dumps({"compiled": len(compiled), "values": [value.asnumpy().tolist() for value in values]}))


if __name__ == "__main__":
    ms.set_seed(1)
    main(sys.argv[1])
