"""Parameters that a compiled forward writes: all of them, once, in order, and what is read before stays what it was."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindspore_zb.api import run_forward
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.fallback import FallbackWarning

from tests.engines.graph.test_engine import graph, normal
from tests.networks.compare import assert_same


class Counts(nn.Cell):
    """Writes some Parameters, as told by a function."""

    def __init__(self, work, names="abc"):
        super().__init__()
        self.work = work
        for place, name in enumerate(names):
            setattr(self, name, Parameter(Tensor(np.array([place + 2.0], np.float32)), name=name, requires_grad=False))

    def construct(self, x):
        return self.work(self, x)

    def values(self):
        return [float(parameter.asnumpy()[0]) for parameter in self.get_parameters()]


def write_all(net, x):
    ops.assign(net.a, net.a + 1)
    ops.assign(net.b, net.b * 2)
    ops.assign(net.c, net.a + net.b)
    return ops.sin(x)


def read_and_write(net, x):
    x = ops.sin(x) + net.b
    ops.assign(net.a, net.a + 1)
    ops.assign(net.b, net.b * 2)
    return ops.sin(x) + net.a


def write_and_read(net, x):
    ops.assign(net.b, net.b + 1)
    return ops.sin(x) * net.b


def read_then_write(net, x):
    x = ops.sin(x) * net.b
    ops.assign(net.b, net.b + 1)
    return x


def view_then_write(net, x):
    x = ops.sin(x) * ops.reshape(net.b, (1, 1))
    ops.assign(net.b, net.b + 1)
    return x


def test_all_are_written():
    net, x = Counts(write_all), normal(2, 3)
    expected = net.values()
    for _ in range(3):
        out, grad_fn = graph(net, x, weights=())
        expected = [expected[0] + 1, expected[1] * 2, expected[0] + 1 + expected[1] * 2]
        assert net.values() == expected
        assert_same(out, ops.sin(x), "out")
        assert_same(grad_fn.compute_input_grad(normal(2, 3, seed=1)), ops.cos(x) * normal(2, 3, seed=1), "dx")
        assert net.values() == expected


def test_what_is_read_before_is_the_old_value():
    net, x, sens = Counts(read_and_write), normal(2, 3), normal(2, 3, seed=1)
    for _ in range(60):  # MindSpore runs it in different ways at first
        a, b = net.values()[:2]
        net.b.set_data(Tensor(np.array([b % 7], np.float32)))
        b %= np.float32(7)
        out, grad_fn = graph(net, x, weights=())
        inner = ops.sin(x) + float(b)
        assert_same(out, ops.sin(inner) + (a + 1), "out")
        assert_same(grad_fn.compute_input_grad(sens), sens * ops.cos(inner) * ops.cos(x), "dx")
        assert net.values()[:2] == [a + 1, b * 2]


def test_micro_batches_in_flight_keep_what_they_read():
    net, x, sens = Counts(write_and_read), normal(2, 3), normal(2, 3, seed=1)
    grad_fns = [graph(net, x, weights=())[1] for _ in range(3)]
    for number in (1, 2, 0):
        assert_same(grad_fns[number].compute_input_grad(sens), sens * ops.cos(x) * (4.0 + number), "dx")


@pytest.mark.parametrize("work", [read_then_write, view_then_write])
def test_the_old_value_in_the_backward_is_not_compiled(work):
    x = normal(2, 3)
    why = r"a Parameter that it writes is needed afterwards as it was before \(b\)"
    with pytest.raises(UnsupportedError, match=why):
        run_forward(Counts(work), (x,), {}, (), False, 0, "graph")
    net = Counts(work)
    compiled = ms.jit(net)
    with pytest.warns(FallbackWarning, match=why):
        out, grad_fn = run_forward(compiled, (x,), {}, (), False, 0, "auto")
    assert grad_fn.engine == "pynative"
    assert_same(out, ops.sin(x) * 3.0, "out")
    assert net.values()[1] == 4.0
