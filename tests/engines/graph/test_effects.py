"""Parameters that a compiled forward writes: all of them, once, in order, and what is read before stays what it was."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindspore_zb import options
from mindspore_zb.api import run_forward
from mindspore_zb.engines.graph.checking import check_model
from mindspore_zb.engines.graph.emit import emit_piece
from mindspore_zb.engines.graph.reading import index_model
from mindspore_zb.errors import UnsupportedError
from mindspore_zb.fallback import FallbackWarning

from tests.engines.graph.test_engine import graph, normal
from tests.networks.compare import assert_same, unsplit_grads


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


def write_in_turn(net, x):
    ops.assign(net.a, net.a + 1)
    ops.assign(net.b, net.b * 2)
    ops.assign(net.c, net.a + net.b)
    return ops.sin(x)


def write_at_one_moment(net, x):
    """The compiler orders these writes by one node."""
    ops.assign(net.a, ops.reshape(x.sum(), (1,)))
    ops.assign(net.b, ops.reshape((x * x).sum(), (1,)))
    return ops.sin(x)


def read_and_write(net, x):
    x = ops.sin(x) + net.b
    ops.assign(net.a, net.a + 1)
    ops.assign(net.b, net.b * 2)
    return ops.sin(x) + net.a


def write_and_read(net, x):
    ops.assign(net.b, net.b + 1)
    return ops.sin(x) * net.b


def add_and_read(net, x):
    """Its backward needs what is read after the write, and not what is written."""
    ops.assign_add(net.b, ops.ones((1,)))
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
    net, x = Counts(write_in_turn), normal(2, 3)
    expected = net.values()
    for _ in range(3):
        out, grad_fn = graph(net, x, weights=())
        expected = [expected[0] + 1, expected[1] * 2, expected[0] + 1 + expected[1] * 2]
        assert net.values() == expected
        assert_same(out, ops.sin(x), "out")
        assert_same(grad_fn.compute_input_grad(normal(2, 3, seed=1)), ops.cos(x) * normal(2, 3, seed=1), "dx")
        assert net.values() == expected


def test_all_are_written_that_are_written_at_one_moment():
    net = Counts(write_at_one_moment)
    for seed in range(3):
        x = normal(2, 3, seed=seed)
        graph(net, x, weights=())
        np.testing.assert_allclose(net.values(), [x.asnumpy().sum(), (x.asnumpy() ** 2).sum(), 4.0], rtol=1e-5)


class Transposed(nn.Cell):
    """Gives the transposed product of a Parameter as it was, which it then writes."""

    def __init__(self):
        super().__init__()
        self.a = Parameter(normal(2, 4, 5, seed=1), name="a", requires_grad=False)
        self.b = Parameter(normal(2, 4, 3, seed=2), name="b", requires_grad=False)

    def construct(self, x):
        product = ops.matmul(ops.transpose(self.b, (0, 2, 1)), self.a)
        ops.assign(self.a, self.a * 2.0)
        ops.assign(self.b, self.b + 1.0)
        return x * ops.transpose(product, (0, 2, 1))


@pytest.mark.parametrize("make, size", [(lambda: Counts(read_and_write), (2, 3)), (Transposed, (2, 5, 3))],
                         ids=["sum", "transposed product"])
def test_a_write_waits_for_those_who_read_before(make, size, planned):
    graph(make(), normal(*size), weights=())
    plan, = planned
    model = emit_piece(plan.graph, *plan.forward.runs, "test_order")
    index = check_model(model, index_model(plan.graph.model))
    written = {index.nodes[node].input[0].rpartition(".")[2]: node for node in index.nodes
               if index.operation(node) == "Assign"}
    assert {*written} == {"a", "b"}
    for node in written.values():
        done, moment = set(), index.nodes[node].input[2]
        while index.operation(moment) == "UpdateState":
            done.add(index.nodes[moment].input[1])
            moment = index.nodes[moment].input[0]
        parameter = index.nodes[node].input[0]
        loads = {load for load in index.nodes if index.operation(load) == "Load"
                 and index.nodes[load].input[0] == parameter and index.nodes[load].input[1] == moment}
        readers = {reader for reader in index.nodes if loads & {*index.nodes[reader].input}
                   and index.operation(reader) not in ("UpdateState", "MakeTuple", "Depend")}
        assert loads and readers and readers <= done


def test_a_transposed_product_of_the_old_value():
    net, x = Transposed(), normal(2, 5, 3)
    for _ in range(5):
        a, b = net.a.asnumpy().copy(), net.b.asnumpy().copy()
        out, grad_fn = graph(net, x, weights=())
        product = Tensor((b.transpose(0, 2, 1) @ a).transpose(0, 2, 1))
        assert_same(out, x * product, "out")
        assert_same(grad_fn.compute_input_grad(x), x * product, "dx")
        assert_same((net.a, net.b), (Tensor(2 * a), Tensor(b + 1)), "state")


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


@pytest.mark.parametrize("work", [write_and_read, add_and_read])
def test_micro_batches_in_flight_keep_what_they_read(work):
    net, x, sens = Counts(work), normal(2, 3), normal(2, 3, seed=1)
    grad_fns = [graph(net, x, weights=())[1] for _ in range(3)]
    for number in (1, 2, 0):
        assert_same(grad_fns[number].compute_input_grad(sens), sens * ops.cos(x) * (4.0 + number), "dx")


@pytest.mark.parametrize("policy", ["none", "cheap"])
@pytest.mark.parametrize("work", [read_then_write, view_then_write])
def test_the_old_value_in_the_backward_is_not_compiled(work, policy):
    x = normal(2, 3)
    why = r"a Parameter that it writes is needed afterwards as it was before \(b\)"
    with options(graph_recompute=policy), pytest.raises(UnsupportedError, match=why):
        run_forward(Counts(work), (x,), {}, (), False, 0, "graph")
    net = Counts(work)
    compiled = ms.jit(net)
    with pytest.warns(FallbackWarning, match=why):
        out, grad_fn = run_forward(compiled, (x,), {}, (), False, 0, "auto")
    assert grad_fn.engine == "pynative"
    assert_same(out, ops.sin(x) * 3.0, "out")
    assert net.values()[1] == 4.0


class Shifted(nn.Cell):
    """What the forward adds is a Parameter that it writes then: under no policy is that to be added again."""

    def __init__(self):
        super().__init__()
        self.shift = Parameter(Tensor(np.float32(0.5)), name="shift", requires_grad=False)
        self.weight = Parameter(normal(3, seed=4), name="weight")

    def construct(self, x):
        y = ops.sin(ops.exp(x * 0.1 + self.shift)) * self.weight
        ops.assign(self.shift, ops.ReduceMean()(x))
        return y * ops.cos(x)


@pytest.mark.parametrize("policy", ["none", "views", "elementwise", "cheap", "selective"])
def test_what_comes_from_an_old_value_is_not_computed_again(policy):
    ours, own, sens = Shifted(), Shifted(), normal(2, 3, seed=1)
    for seed in (2, 3):
        x = normal(2, 3, seed=seed)
        right = unsplit_grads(own, (x,), own.trainable_params(), sens)
        with options(graph_recompute=policy):
            out, grad_fn = graph(ours, x, weights=ours.trainable_params())
        assert_same(out, right.out, "out")
        assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx")
        assert_same(grad_fn.compute_weight_grad(), right.dw, "dw")
        assert_same(Tensor(ours.shift.asnumpy()), Tensor(own.shift.asnumpy()), "state")
