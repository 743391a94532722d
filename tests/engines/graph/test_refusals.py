"""Each refusal is compared with what compiling really does; what compiles rightly must not be refused."""

import datetime
import functools
import random
import secrets
import time
import uuid

import numpy as np
import pytest

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops

from mindspore_zb.engines.graph.refusals import why_not_compiled
from mindspore_zb.memory import synchronize
from tests.engines.graph.whole_joint import compile_whole
from tests.networks import zoo

SCALE = 3
COUNTS = {"calls": 0}
GENERATOR = ms.Generator()


class Net(nn.Cell):
    """A weight, and things to misuse."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.full((2, 3), 0.5, np.float32)), name="w")
        self.scale = 2
        self.counts = {"calls": 1}
        self.sizes = [1, 2]
        self.table = Tensor([2.0, 3.0, 4.0], ms.float32)
        self.dropout = nn.Dropout(p=0.5)
        self.register_buffer("buffer", Tensor([2.0, 3.0, 4.0], ms.float32))


CASES = {}


def case(reason, compiled):
    """A net, the start of the reason for its refusal or None, and what compiling does: "right", "wrong", "error"."""
    def remember(construct):
        CASES[construct.__name__] = (type(construct.__name__, (Net,), {"construct": construct}), reason, compiled)
        return construct
    return remember


@case(None, "right")
def plain(self, x):
    return x * self.w * self.scale * self.sizes[1] * self.counts["calls"]


@case(None, "right")
def numpy_of_constants(self, x):
    return x * self.w / np.sqrt(64) * Tensor(np.arange(3).astype(np.float32)) / float(np.sqrt(x.shape[-1]))


@case(None, "right")
def tensor_constant(self, x):
    return x * self.w * self.table * self.buffer


@case(None, "right")
def local_containers(self, x):
    found = []
    found.append(x)
    named = {}
    named["y"] = found[0] * 2
    return named["y"] * self.w


@case(None, "right")
def assign_to_parameter(self, x):
    ops.assign_add(self.w, ops.ones_like(self.w))
    return x * self.w


@case(None, "right")
def parameter_attribute(self, x):
    self.w = self.w * 2
    return x * self.w


@case(None, "right")
def parameter_item(self, x):
    self.w[0] = self.w[0] * 2
    return x * self.w


@case(None, "right")
def local_tensor_in_place(self, x):
    y = x * self.w
    y[0] = 0.0
    return y * x


@case(None, "right")
def dropout_in_evaluation(self, x):
    return self.dropout(x) * self.w


@case(None, "right")
def attribute_by_getattr(self, x):
    return x * self.w * getattr(self, "scale")


@case("write to attribute 'self.scale'", "error")
def attribute_written(self, x):
    self.scale += 1
    return x * self.w * self.scale


@case("write to attribute 'self.table'", "error")
def tensor_attribute_written(self, x):
    self.table = x[0] * 2
    return x * self.w * self.table


@case("write into 'self.counts'", "error")
def dict_item_written(self, x):
    self.counts["calls"] += 1
    return x * self.w * self.counts["calls"]


@case("write into 'self.sizes'", "wrong")
def list_item_written(self, x):
    self.sizes[0] = self.sizes[0] + 1
    return x * self.w * self.sizes[0]


@case("change of 'self.sizes' by 'append'", "wrong")
def list_appended(self, x):
    self.sizes.append(1)
    return x * self.w * len(self.sizes)


@case("write into 'self.table'", "wrong")
def tensor_item_written(self, x):
    self.table[0] = self.table[0] + 1.0
    return x * self.w * self.table


@case("write into 'table'", "wrong")
def tensor_written_by_another_name(self, x):
    table = self.table
    table[0] = table[0] + 1.0
    return x * self.w * table


@case("change of 'self.table' by 'copy_'", "wrong")
def tensor_copied_into(self, x):
    self.table.copy_(self.table * 2.0)
    return x * self.w * self.table


@case("assign to 'self.buffer', which is no Parameter", "wrong")
def assign_to_buffer(self, x):
    ops.assign(self.buffer, self.buffer * 2)
    return x * self.w * self.buffer


@case("change of 'self.w' by 'add_'", "wrong")
def parameter_added_to(self, x):
    self.w.add_(1.0)
    return x * self.w


@case("write to global 'SCALE'", "wrong")
def global_written(self, x):
    global SCALE
    SCALE = SCALE + 1
    return x * self.w * SCALE


@case("write into 'COUNTS'", "error")
def global_item_written(self, x):
    COUNTS["calls"] += 1
    return x * self.w * COUNTS["calls"]


@case("nonlocal n", "error")
def nonlocal_written(self, x):
    n = 1

    def inner(y):
        nonlocal n
        n = n + 1
        return y * n
    return inner(x) * self.w * n


@case("'n' changes after an inner function was made of it", "wrong")
def late_binding(self, x):
    n = 2

    def inner(y):
        return y * n
    n = 3
    return inner(x) * self.w


@case("change of 'sizes' from inside an inner function", "wrong")
def list_appended_inside(self, x):
    sizes = [1]

    def inner(y):
        sizes.append(2)
        return y * len(sizes)
    return inner(x) * self.w * len(sizes)


def with_kept_list(x, kept=[]):  # noqa: B006
    kept.append(1)
    return x * len(kept)


@case("change of 'kept' by 'append' in with_kept_list", "wrong")
def default_changed(self, x):
    return with_kept_list(x) * self.w


@case("random.random: one value", "wrong")
def python_random(self, x):
    return x * self.w * random.random()


@case("np.random.rand: one value", "wrong")
def numpy_random(self, x):
    return x * self.w * np.random.rand()


@case("secrets.randbelow: one value", "wrong")
def secret(self, x):
    return x * self.w * secrets.randbelow(1 << 20)


@case("uuid.uuid4: one value", "error")
def unique_id(self, x):
    return x * self.w * float(uuid.uuid4().int % 1000003)


@case("time.perf_counter: one value", "wrong")
def clock(self, x):
    return x * self.w * float(time.perf_counter() * 1e6 % 1000)


@case("datetime.datetime.now: one value", "wrong")
def date(self, x):
    return x * self.w * float(datetime.datetime.now().microsecond)


@case("'asnumpy' of a tensor", "error")
def as_numpy(self, x):
    return x * self.w * Tensor(np.sin(x.asnumpy()))


@case("'item' of a tensor", "error")
def as_item(self, x):
    return x * self.w * Tensor(np.float32(x.sum().item()))


@case("'tolist' of a tensor", "error")
def as_list(self, x):
    return x * self.w * x.tolist()[0][0]


@case("mint.rand: MindSpore's generator", "error")
def mint_rand(self, x):
    return mint.rand(2, 3) * self.w * x


@case("mint.nn.functional.dropout: MindSpore's generator", "error")
def mint_dropout(self, x):
    return mint.nn.functional.dropout(x, 0.5, True) * self.w


@case("ms.manual_seed: MindSpore's generator", "error")
def seeding(self, x):
    ms.manual_seed(1)
    return x * self.w


@case(None, None)
def draw_uniform(self, x):
    return ops.rand(2, 3) * self.w * x


@case(None, None)
def draw_normal(self, x):
    return ops.standard_normal((2, 3)) * self.w * x


@case(None, None)
def draw_dropout(self, x):
    return ops.dropout(x, 0.5, True) * self.w


def doubled(grad):
    return grad * 2


@case("register_hook", "right")  # a pure hook is compiled; test_a_compiled_hook_is_silent shows why it is refused
def hook_registered(self, x):
    y = x * self.w
    y.register_hook(doubled)
    return y * 3


def native_run(net, x, sens):
    def loss(x):
        out = net(x)
        return (out * sens).sum(), out
    (_, out), (dx, dw) = ms.value_and_grad(loss, 0, [net.w], has_aux=True)(x)
    return [out, dx, *dw]


def steps():
    rng = np.random.default_rng(0)
    return [(Tensor(rng.random((2, 3)).astype(np.float32) + step), Tensor(rng.random((2, 3)).astype(np.float32)))
            for step in range(3)]


def reset():
    global SCALE
    SCALE = 3
    COUNTS["calls"] = 0
    with_kept_list.__defaults__[0].clear()


def outcome(make):
    """What compiling does to a net, over three runs of one compiled graph."""
    try:  # not inside a grad, which MindSpore may end while the operation is still failing
        make()(steps()[0][0])
        synchronize()
    except RuntimeError as error:
        pytest.skip(f"PyNative has no kernel for it here: {error}")
    reset()
    net = make()
    expected = [native_run(net, x, sens) for x, sens in steps()]
    reset()
    net = make()
    try:
        run = compile_whole(net, *steps()[0], [net.w])
        got = [run(x, sens) for x, sens in steps()]
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return "error"
    near = all(np.allclose(one.asnumpy(), two.asnumpy(), rtol=1e-5)
               for ones, twos in zip(got, expected) for one, two in zip(ones, twos))
    return "right" if near else "wrong"


@pytest.mark.parametrize("name", CASES)
def test_refusal(name):
    make, reason, _ = CASES[name]
    found = why_not_compiled(make())
    if reason is None:
        assert found is None
    else:
        assert found.startswith(reason)
        assert f"in {name}, line " in found or "in with_kept_list, line" in found


@pytest.mark.parametrize("name", [name for name, (_, _, compiled) in CASES.items() if compiled])
def test_what_compiling_does(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # failed compiles write files
    make, _, compiled = CASES[name]
    assert outcome(make) == compiled


DRAWS = ("draw_uniform", "draw_normal", "draw_dropout")


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_new_at_each_run_and_the_same_in_the_backward(name):
    net = CASES[name][0]()
    assert why_not_compiled(net) is None
    x, sens = steps()[1]
    run = compile_whole(net, x, sens, [net.w])
    outs = []
    for _ in range(4):
        out, dx, dw = (tensor.asnumpy() for tensor in run(x, sens))
        expected = sens.asnumpy() * out  # each net is x * w * draw
        np.testing.assert_allclose(dx * x.asnumpy(), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(dw * 0.5, expected, rtol=1e-4, atol=1e-6)
        outs.append(out.tobytes())
    assert len(set(outs)) > 1


def ignore(*_):
    return None


@pytest.mark.parametrize("kind", ["forward_pre_hook", "forward_hook", "backward_pre_hook", "backward_hook"])
def test_hooks_on_cells(kind):
    net = nn.SequentialCell(nn.Dense(2, 2), nn.CellList([nn.ReLU(), nn.Dense(2, 2)])[1])
    handle = getattr(net[1], f"register_{kind}")(ignore)
    words = kind.replace("_", " ").replace("pre hook", "pre-hook")
    assert why_not_compiled(net) == f"{words} on SequentialCell.1"
    handle.remove()
    assert why_not_compiled(net) is None


class Outer(nn.Cell):
    """A net in a net."""

    def __init__(self):
        super().__init__()
        self.inner = CASES["plain"][0]()

    def construct(self, x):
        return self.inner(x)


@pytest.mark.parametrize("kind", ["forward_pre_hook", "forward_hook", "backward_pre_hook", "backward_hook"])
def test_a_compiled_hook_is_silent(kind):
    """What a hook does in Python does not happen at the runs of a compiled graph; in PyNative it does."""
    net, calls = Outer(), []

    def count(*_):
        calls.append(1)
    getattr(net.inner, f"register_{kind}")(count)
    x, sens = steps()[0]
    ms.grad(net)(x)
    assert calls
    run = compile_whole(net, x, sens, net.trainable_params())
    calls.clear()
    run(x, sens)
    assert not calls


def test_hook_on_a_parameter():
    net = nn.Dense(2, 2)
    handle = net.weight.register_hook(doubled)
    assert why_not_compiled(net) == "hook on Parameter 'weight'"
    handle.remove()
    assert why_not_compiled(net) is None


class Holder(nn.Cell):
    """Uses what it is given."""

    def __init__(self, tool):
        super().__init__()
        self.tool = tool
        self.unused = np.random.default_rng(0)

    def construct(self, x):
        return self.tool(x)


class Drawer(nn.Cell):
    """Draws from a generator of its own."""

    def __init__(self, rng):
        super().__init__()
        self.rng = rng

    def construct(self, x):
        return x * self.rng.random()


def doubled_tuple(grads):
    return (grads[0] * 2,)


def test_generators_and_hooks_as_attributes():
    assert why_not_compiled(Drawer(random.Random(0))) == "random.Random at Drawer.rng: its state would not advance"
    assert "numpy.random" in why_not_compiled(Drawer(np.random.default_rng(0)))
    assert why_not_compiled(Holder(ops.HookBackward(doubled_tuple))) == "HookBackward at Holder.tool"
    assert why_not_compiled(Holder(nn.ReLU())) is None  # a generator that no code names does no harm
    assert why_not_compiled(Holder(mint.nn.Dropout(0.5))).startswith("DropoutExt at Holder.tool draws from")


def scaled_by_generator(x):
    return mint.rand(2, 3, generator=GENERATOR) * x


def scaled_by_chance(x, factor=1):
    return x * random.random() * factor


class Chance:
    """An object with methods."""

    def draw(self, x):
        return self.inside(x)

    def inside(self, x):
        return x * random.random()

    def __call__(self, x):
        return self.inside(x)


def calls_another(x):
    return scaled_by_chance(x) + 1


@pytest.mark.parametrize("fn", [
    scaled_by_chance, calls_another, ms.jit(scaled_by_chance), ms.jit(calls_another),
    functools.partial(scaled_by_chance, factor=2), functools.partial(Chance().draw), Chance().draw, Chance(),
    ms.jit(Chance().draw), lambda x: scaled_by_chance(x), Holder(scaled_by_chance), ms.jit(Holder(Chance())),
    Holder(nn.SequentialCell(Holder(calls_another)))], ids=lambda fn: type(fn).__name__)
def test_every_kind_of_callable(fn):
    assert why_not_compiled(fn).startswith("random.random: one value for all runs in ")


def test_a_generator_of_mindspore():
    assert why_not_compiled(scaled_by_generator).startswith("mindspore.common.generator.Generator at GENERATOR")


@pytest.mark.parametrize("name", zoo.NAMES)
def test_no_network_of_the_zoo_is_refused(name):
    assert why_not_compiled(zoo.build(name).fn) is None
