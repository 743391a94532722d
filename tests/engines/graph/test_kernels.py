"""Several quick kernels in place of a slow one: values by formula, nothing more held, and only where it pays."""

from collections import Counter

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, nn, ops
from mindspore.ops.operations._grad_ops import GeLUGrad

from mindspore_zb import options
from mindspore_zb.engines.graph import kernels
from mindspore_zb.engines.graph.cache import clear_programs
from mindspore_zb.engines.graph.native import mindir
from mindspore_zb.engines.graph.rewriting import Rewriting

from tests.engines.graph.test_engine import check, graph, normal
from tests.networks.compare import assert_same, unsplit_grads

SLOW = ("GeLU", "GeLUGrad", "BiasAddGrad")
POLICIES = ("none", "views", "elementwise", "cheap", "selective")


def gelu(x):
    return ops.gelu(x, approximate="tanh")


class Net(nn.Cell):
    """A linear layer with a bias, its activation, and another one."""

    def __init__(self, width=16, hidden=24):
        super().__init__()
        self.up, self.down = nn.Dense(width, hidden), nn.Dense(hidden, width)
        for place, parameter in enumerate(self.trainable_params()):
            parameter.set_data(normal(*parameter.shape, seed=place) * 0.3)

    def construct(self, x):
        return self.down(gelu(self.up(x)))


class Stateful(nn.Cell):
    """A norm with statistics, and a counter that scales."""

    def __init__(self):
        super().__init__()
        self.norm, self.net = nn.BatchNorm1d(16), Net()
        self.count = Parameter(ms.Tensor(np.float32(1.0)), requires_grad=False, name="count")

    def construct(self, x):
        x = gelu(self.norm(x))
        ops.assign_add(self.count, ms.Tensor(np.float32(1.0)))
        return self.net(x) * self.count


@pytest.fixture(name="always")
def fixture_always(monkeypatch):
    """Every node of a known kind is expanded, however small."""
    monkeypatch.setattr(kernels, "LARGE", dict.fromkeys(SLOW, 1))
    monkeypatch.setattr(kernels, "_FOUND", dict.fromkeys(SLOW, True))
    clear_programs()
    yield
    clear_programs()


@pytest.fixture(name="kinds")
def fixture_kinds(planned):
    """``kinds(fn, x, weights)``: how many operations of each kind are run, once checked."""

    def operations(fn, x, weights=()):
        clear_programs()
        check(fn, x, weights, sens=normal(*fn(x).shape, seed=9).astype(x.dtype))
        return Counter(planned[-1].graph.kind(node) for pieces in (planned[-1].forward, planned[-1].dx, *planned[-1].dw)
                       for node in pieces.whole.nodes)

    return operations


class TestValues:
    """What the quick kernels compute."""

    @staticmethod
    def right(x):
        """GeLU by tanh and its derivative, in double precision."""
        inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)
        slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x ** 2)
        return x * (1 + np.tanh(inner)) / 2, (1 + np.tanh(inner)) / 2 + x * (1 - np.tanh(inner) ** 2) / 2 * slope

    @pytest.mark.usefixtures("always")
    def test_gelu_by_its_formula(self):
        x = np.linspace(-9, 9, 10001).astype(np.float32)
        out, grad_fn = graph(gelu, ms.Tensor(x), weights=())
        right, slope = self.right(x.astype(np.float64))
        np.testing.assert_allclose(out.asnumpy(), right, atol=1e-6, rtol=0)
        sens = np.linspace(3, -2, 10001).astype(np.float32)
        np.testing.assert_allclose(grad_fn.compute_input_grad(ms.Tensor(sens)).asnumpy(), sens * slope, atol=4e-6, rtol=0)

    @pytest.mark.usefixtures("always")
    def test_small_values_keep_their_digits(self):
        x = np.linspace(-5, -1, 1001).astype(np.float32)
        out, _ = graph(gelu, ms.Tensor(x), weights=())
        np.testing.assert_allclose(out.asnumpy(), self.right(x.astype(np.float64))[0], rtol=1e-5)

    @pytest.mark.usefixtures("always")
    def test_extremes_are_those_of_mindspore(self):
        x = ms.Tensor(np.array([0, -0.0, 1e-30, -1e-30, 30, -30, 1e5, -1e5, 1e12, -1e12, 3e19, -3e19, 1e20, -1e20,
                                np.inf, -np.inf, np.nan], np.float32))
        right = unsplit_grads(gelu, (x,), (), ops.ones_like(x))
        out, grad_fn = graph(gelu, x, weights=())
        np.testing.assert_allclose(out.asnumpy(), right.out.asnumpy(), rtol=1e-6)
        np.testing.assert_allclose(grad_fn.compute_input_grad(ops.ones_like(x)).asnumpy(), right.dx.asnumpy(), rtol=1e-6)

    @pytest.mark.usefixtures("always")
    @pytest.mark.parametrize("shape", [(5, 16), (1, 16), (2, 3, 16), (2, 2, 3, 16)], ids=str)
    def test_a_net(self, shape, kinds):
        net = Net()
        found = kinds(net, normal(*shape), net.trainable_params())
        assert not any(found[kind] for kind in SLOW)
        assert found["ReduceSum"] == 2 and found["Sigmoid"] == 3

    @pytest.mark.usefixtures("always")
    def test_sizes_and_scopes_are_those_of_what_was_there(self, planned):
        """Runs and packs go by the one, profiles by the other."""
        net = Net()
        graph(net, normal(5, 16), weights=net.trainable_params())
        found = planned[-1].graph
        added = [node for node in found.order if node.startswith("quick.")]
        assert len(added) > 10
        assert {found.meta(node)[0] for node in added} == {(5, 24)}
        assert all("GeLU" in found.proto(node).domain for node in added)

    @pytest.mark.usefixtures("always")
    @pytest.mark.parametrize("policy", POLICIES)
    def test_every_policy(self, policy):
        net = nn.SequentialCell(Net(), nn.LayerNorm((16,)), Net())
        with options(graph_recompute=policy):
            check(net, normal(5, 16), net.trainable_params())

    @pytest.mark.usefixtures("always")
    def test_a_result_that_is_an_activation(self):
        net, x = Net(), normal(5, 16)

        def fn(x):
            hidden = gelu(net.up(x))
            return net.down(hidden), hidden, gelu(hidden)

        sens = (normal(5, 16, seed=1), normal(5, 24, seed=2), normal(5, 24, seed=3))
        right = unsplit_grads(fn, (x,), net.trainable_params(), sens)
        out, grad_fn = graph(fn, x, weights=net.trainable_params())
        assert_same(out, right.out, "out")
        assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx")
        assert_same(grad_fn.compute_weight_grad(), right.dw, "dw")

    @pytest.mark.usefixtures("always")
    def test_a_net_with_states(self):
        """What is written, and read after the write, is what it was."""
        x, sens, nets = normal(6, 16), normal(6, 16, seed=1), [Stateful().set_train() for _ in range(2)]
        for _ in range(2):
            right = unsplit_grads(nets[0], (x,), nets[0].trainable_params(), sens)
            out, grad_fn = graph(nets[1], x, weights=nets[1].trainable_params())
            assert_same(out, right.out, "out")
            assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx")
            assert_same(grad_fn.compute_weight_grad(), right.dw, "dw")
        states = [[ms.Tensor(parameter.asnumpy()) for parameter in net.get_parameters()] for net in nets]
        assert_same(states[1], states[0], "states")
        assert nets[1].count.asnumpy() == 3


class WithBackward(nn.Cell):
    """Its own backward gives MindSpore's kernel something else than the GeLU, which on CPU is not read."""

    def __init__(self, gives):
        super().__init__()
        self.gives, self.grad = gives, GeLUGrad()

    def construct(self, x):
        return gelu(x)

    def bprop(self, x, out, dout):
        return (self.grad(dout, x, self.gives(x, out)),)


def the_input(x, _):
    return x


def ones(x, _):
    return ops.ones_like(x)


def another(x, _):
    return ops.GeLU()(x + 1.0)


def scaled(_, out):
    return out * 2.0


def itself(_, out):
    return out


@pytest.mark.usefixtures("always")
class TestOwnBackward:
    """Who writes a backward may give GeLUGrad what he likes."""

    @pytest.mark.parametrize("gives", [the_input, ones, another, scaled])
    def test_what_is_not_the_gelu_is_not_read(self, gives, kinds):
        assert kinds(WithBackward(gives), normal(5, 16))["GeLUGrad"] == 1

    @pytest.mark.parametrize("shape", [(1, 5, 16), (80,), (16, 5)], ids=str)
    def test_a_gradient_of_another_shape(self, shape, kinds):
        """MindSpore's kernel goes by the number of elements alone."""
        class Reshaped(WithBackward):
            def bprop(self, x, out, dout):
                return (self.grad(ops.reshape(dout, shape), x, out) * dout,)

        assert kinds(Reshaped(itself), normal(5, 16))["GeLUGrad"] == 1

    def test_one_tensor_for_all(self, kinds):
        class Doubled(WithBackward):
            def bprop(self, x, out, dout):
                return (self.grad(x, x, out) * dout,)

        assert kinds(Doubled(itself), normal(5, 16))["GeLUGrad"] == 0

    def test_the_gelu(self, kinds):
        assert kinds(WithBackward(itself), normal(5, 16))["GeLUGrad"] == 0


class TestMemory:
    """The cut knows nothing of it."""

    def test_bytes_at_every_moment(self, monkeypatch):
        net, x, sens, found = nn.SequentialCell(Net(), Net()), normal(5, 16), normal(5, 16, seed=1), []
        monkeypatch.setattr(kernels, "LARGE", dict.fromkeys(SLOW, 1))
        for pays in (False, True):
            monkeypatch.setattr(kernels, "_FOUND", dict.fromkeys(SLOW, pays))
            clear_programs()
            _, grad_fn = graph(net, x, weights=net.trainable_params())
            recording = grad_fn._recording
            moments = [recording.crossing_bytes(), sum(recording.held_storages().values())]
            grad_fn.compute_input_grad(sens)
            moments.append(sum(recording.held_storages().values()))
            grad_fn.compute_weight_grad()
            found.append((moments, sum(recording.held_storages().values())))
        clear_programs()
        assert found[0] == found[1] and found[0][1] == 0


class TestWhereItPays:
    """What is replaced, and what stays."""

    @pytest.mark.parametrize("pays", [True, False])
    def test_each_kind_is_measured_once(self, pays, kinds, monkeypatch):
        asked = []

        def measured(one, several):
            asked.extend(one.kind(node) for node in one.order)
            assert not any(several.kind(node) in SLOW for node in several.order)
            return pays

        monkeypatch.setattr(kernels, "_is_quicker", measured)
        monkeypatch.setattr(kernels, "_FOUND", {})
        monkeypatch.setattr(kernels, "LARGE", dict.fromkeys(SLOW, 1))
        net = nn.SequentialCell(Net(), Net())
        for rows in (5, 6):
            found = kinds(net, normal(rows, 16), net.trainable_params())
            assert [found[kind] for kind in SLOW] == ([0, 0, 0] if pays else [2, 2, 4])
        assert sorted(asked) == sorted(SLOW)

    def test_small_tensors_stay(self, kinds, monkeypatch):
        monkeypatch.setattr(kernels, "_FOUND", dict.fromkeys(SLOW, True))
        monkeypatch.setattr(kernels, "LARGE", dict.fromkeys(SLOW, 5 * 24))
        net = Net()
        found = kinds(net, normal(5, 16), net.trainable_params())
        assert found["GeLU"] == found["GeLUGrad"] == 0
        assert found["BiasAddGrad"] == 1  # that of five rows of 16

    @pytest.mark.usefixtures("always")
    @pytest.mark.parametrize("dtype", [ms.float16, ms.float64], ids=str)
    def test_other_dtypes_stay(self, dtype, kinds):
        assert kinds(gelu, normal(5, 16).astype(dtype))["GeLU"] == 1

    @pytest.mark.usefixtures("always")
    def test_other_axes_stay(self, kinds):
        net = nn.Conv2d(2, 3, 3, has_bias=True)
        assert kinds(net, normal(2, 2, 5, 5), net.trainable_params())["BiasAddGrad"] == 1

    def test_without_kernels_for_it_all_stays(self, kinds, monkeypatch):
        def fails(*_):
            raise RuntimeError("no kernel")

        monkeypatch.setattr(kernels, "LoadedGraph", fails)
        monkeypatch.setattr(kernels, "_FOUND", {})
        monkeypatch.setattr(kernels, "LARGE", dict.fromkeys(SLOW, 1))
        net = Net()
        found = kinds(net, normal(5, 16), net.trainable_params())
        assert [found[kind] for kind in SLOW] == [1, 1, 2]

    @pytest.mark.parametrize("own, quick, pays", [(1.0, 0.4, True), (1.0, 0.6, False), (0.1, 1.0, False)])
    def test_it_pays_to_take_less_than_half_of_the_time(self, own, quick, pays, kinds, monkeypatch):
        now = [0.0]

        def loaded(found, _):
            seconds = own if any(found.kind(node) in SLOW for node in found.order) else quick

            def run():
                now[0] += seconds
            return run

        monkeypatch.setattr(kernels, "loaded", loaded)
        monkeypatch.setattr(kernels.time, "perf_counter", lambda: now[0])
        monkeypatch.setattr(kernels, "_FOUND", {})
        monkeypatch.setattr(kernels, "LARGE", dict.fromkeys(SLOW, 1))
        net = Net()
        found = kinds(net, normal(5, 16), net.trainable_params())
        assert [found[kind] for kind in SLOW] == ([0, 0, 0] if pays else [1, 1, 2])

    @pytest.mark.parametrize("shape", [(256, 64), (4, 64, 64), (1024, 64)], ids=str)
    def test_what_is_measured(self, shape, monkeypatch):
        """Both ways compute the same, on tensors whose size does not depend on the net's."""
        measured = {}

        def measuring(one, several):
            x = normal(*kernels.SIZE)
            arguments = (x, normal(*kernels.SIZE, seed=1), gelu(normal(*kernels.SIZE, seed=1)))[:len(one.inputs)]
            measured[one.kind(one.order[0])] = [kernels.loaded(found, arguments)() for found in (one, several)], [
                {found.meta(value)[0] for value in found.inputs} for found in (one, several)]
            return False

        monkeypatch.setattr(kernels, "_is_quicker", measuring)
        monkeypatch.setattr(kernels, "_FOUND", {})
        net = Net(width=64, hidden=256)
        clear_programs()
        graph(net, normal(*shape), weights=net.trainable_params())
        assert sorted(measured) == sorted(SLOW)
        for kind, ((one, several), sizes) in measured.items():
            assert sizes == [{kernels.SIZE}] * 2
            assert one.shape == several.shape == (kernels.SIZE[1:] if kind == "BiasAddGrad" else kernels.SIZE)
            np.testing.assert_allclose(several, one, atol=1e-6 * abs(one).max(), rtol=0)

    def test_operations_that_are_set_otherwise_are_told_apart(self, planned):
        clear_programs()
        graph(gelu, normal(5, 16), weights=())
        rewriting = Rewriting(planned[-1].graph)
        one, same, other = (mindir.PrimitiveProto(name=name, op_type="Mul") for name in ("one", "same", "other"))
        other.attribute.add().name = "set otherwise"
        assert rewriting._reference(one) == rewriting._reference(same) != rewriting._reference(other)

    def test_on_this_device(self, kinds, monkeypatch):
        """Whatever the measurement says, values are right."""
        monkeypatch.setattr(kernels, "_FOUND", {})
        net = Net(width=64, hidden=256)
        found = kinds(net, normal(256, 64), net.trainable_params())
        assert sorted(kernels._FOUND) == sorted(SLOW)
        assert [found[kind] > 0 for kind in SLOW[:2]] == [not kernels._FOUND[kind] for kind in SLOW[:2]]
