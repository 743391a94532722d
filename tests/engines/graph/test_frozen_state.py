"""Every kind of change of the Python state is noticed, and nothing else."""

import collections
import dataclasses
import enum
import functools
import gc
import math
import sys
import types
import weakref

import numpy as np
import pytest

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindspore_zb.engines.graph.frozen_state import take_frozen_state
from mindspore_zb.engines.graph.reached import global_names
from tests.engines.graph.whole_joint import compile_whole
from tests.networks import zoo

SCALE = 2
NUMBERS = [1, 2]
SETTINGS = types.SimpleNamespace(scale=2)
HELPERS = types.ModuleType("users_helpers")
HELPERS.SCALE = 2
HELPERS.unused = 2


class Kind(enum.Enum):
    """Two values."""

    ONE = 1
    TWO = 2


@dataclasses.dataclass
class Config:
    """Settings as a dataclass."""

    scale: float = 2.0
    sizes: list = dataclasses.field(default_factory=lambda: [1, 2])


class Slotted:
    """Settings in slots."""

    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 2


class Scaler:
    """An object with a method and a number."""

    offset = 1

    def __init__(self):
        self.scale = 2

    def method(self, x):
        return self.inside(x)

    def inside(self, x):
        return x * self.scale + self.offset * SCALE

    def __call__(self, x):
        return self.method(x)


class Block(nn.Cell):
    """A part of a stage."""

    factor = 3

    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(3, 3)
        self.scale = 2
        self.empty = None

    def construct(self, x):
        return self.fc(x) * self.scale * self.factor + self.extra(x)

    def extra(self, x):
        return x * HELPERS.SCALE


def scaled(x, factor=2, *, more=(1, 2)):
    return x * factor * SCALE * NUMBERS[0] * more[0]


class Stage(nn.Cell):
    """Has an attribute of every kind."""

    def __init__(self):
        super().__init__()
        self.block = nn.SequentialCell(Block(), nn.ReLU())
        self.layers = nn.CellList([Block(), Block()])
        self.hidden = {"cells": [Block()]}
        self.w = Parameter(Tensor(np.ones((2, 3), np.float32)), name="w")
        self.listed = ParameterTuple([Parameter(Tensor([1.0, 2.0]), name="listed0")])
        self.register_buffer("table", Tensor([1.0, 2.0, 3.0]))
        self.mask = Tensor([1.0, 0.0, 1.0])
        self.array = np.arange(3)
        self.nested = {"a": [1, (2, {"b": [3]})], "c": {4, 5}}
        self.number, self.text, self.data, self.fraction = 1000, "text", b"data", 0.5
        self.dtype, self.kind = ms.float32, Kind.ONE
        self.config, self.slotted, self.space = Config(), Slotted(), types.SimpleNamespace(scale=2)
        self.scaler = Scaler()
        self.act = scaled
        self.partial = functools.partial(scaled, factor=3)
        self.norm = nn.LayerNorm((3,)).set_train(False)

    def construct(self, x):
        y = self.block(x) * self.w + self.act(x) + self.scaler.method(x) + self.partial(x)
        return ops.relu(y) * SETTINGS.scale


def other_construct(self, x):
    return x


def set_item(container, key, value):
    container[key] = value


CHANGES = {
    "attribute 'number' of Stage changed from 1000 to 1001": lambda s: setattr(s, "number", 1001),
    "attribute 'number' of Stage changed from 1000 to 1000.0": lambda s: setattr(s, "number", 1000.0),
    "attribute 'text' of Stage changed from 'text' to 'other'": lambda s: setattr(s, "text", "other"),
    "attribute 'data' of Stage changed": lambda s: setattr(s, "data", b"other"),
    "attribute 'fraction' of Stage changed from 0.5 to nan": lambda s: setattr(s, "fraction", math.nan),
    "attribute 'dtype' of Stage changed": lambda s: setattr(s, "dtype", ms.float16),
    "attribute 'kind' of Stage changed": lambda s: setattr(s, "kind", Kind.TWO),
    "attribute 'scale' of Stage.block.0 changed from 2 to 3": lambda s: setattr(s.block[0], "scale", 3),
    "attribute 'empty' of Stage.block.0 changed from None to 1": lambda s: setattr(s.block[0], "empty", 1),
    "attribute 'scale' of Stage.layers.1 changed": lambda s: setattr(s.layers[1], "scale", 3),
    "attribute 'scale' of Stage.hidden['cells'][0] changed": lambda s: setattr(s.hidden["cells"][0], "scale", 3),
    "attribute 'factor' of Stage.block.0 was added": lambda s: setattr(s.block[0], "factor", 4),
    "attribute 'text' of Stage was removed": lambda s: delattr(s, "text"),
    "attribute 'nested' of Stage changed ": lambda s: s.nested["a"].append(1),
    "attribute 'nested' of Stage changed  ": lambda s: set_item(s.nested["a"][1][1]["b"], 0, 4),
    "attribute 'nested' of Stage changed   ": lambda s: s.nested["c"].add(6),
    "attribute 'nested' of Stage changed    ": lambda s: set_item(s.nested, "d", 1),
    "attribute 'nested' of Stage changed     ": lambda s: set_item(s.nested, "a", s.nested.pop("a")),
    "attribute 'array' of Stage changed": lambda s: set_item(s.array, 0, 7),
    "attribute 'mask' of Stage was replaced": lambda s: setattr(s, "mask", Tensor([1.0, 0.0, 1.0])),
    "the buffer 'table' of Stage was replaced": lambda s: s.register_buffer("table", Tensor([1.0, 2.0])),
    "the buffer 'more' of Stage was added or removed": lambda s: s.register_buffer("more", Tensor([1.0, 2.0])),
    "attribute 'scale' of Stage.config changed from 2.0 to 3.0": lambda s: setattr(s.config, "scale", 3.0),
    "attribute 'sizes' of Stage.config changed": lambda s: s.config.sizes.append(1),
    "attribute 'config' of Stage was replaced": lambda s: setattr(s, "config", Config()),
    "attribute 'scale' of Stage.slotted changed from 2 to 3": lambda s: setattr(s.slotted, "scale", 3),
    "attribute 'scale' of Stage.space changed from 2 to 3": lambda s: setattr(s.space, "scale", 3),
    "attribute 'scale' of Stage.scaler changed from 2 to 3": lambda s: setattr(s.scaler, "scale", 3),
    "attribute 'act' of Stage was replaced": lambda s: setattr(s, "act", ops.relu),
    "attribute 'keywords' of Stage.partial changed": lambda s: set_item(s.partial.keywords, "factor", 4),
    "attribute 'construct' of Stage.block.0 was added":
        lambda s: setattr(s.block[0], "construct", types.MethodType(other_construct, s.block[0])),
    "training flag of Stage changed from False to True": lambda s: s.set_train(),
    "training flag of Stage.layers changed from False to True": lambda s: s.layers.set_train(),
    "mixed precision of Stage.block changed": lambda s: s.block.to_float(ms.float16),
    "the Cell '_recompute_cell' of Stage.norm was added or removed": lambda s: s.norm.recompute(),
    "compiler flags of Stage.norm changed": lambda s: s.norm.add_flags(broadcast_flag=True),
    "forward hooks of Stage.block.1 changed": lambda s: s.block[1].register_forward_hook(other_construct),
    "forward pre-hooks of Stage changed": lambda s: s.register_forward_pre_hook(other_construct),
    "backward hooks of Stage.norm changed": lambda s: s.norm.register_backward_hook(other_construct),
    "backward pre-hooks of Stage.norm changed": lambda s: s.norm.register_backward_pre_hook(other_construct),
    "hooks of Parameter 'w' changed": lambda s: s.w.register_hook(abs),
    "the Cell 'norm' of Stage was replaced": lambda s: setattr(s, "norm", nn.LayerNorm((3,))),
    "the Cell '0' of Stage.block was replaced": lambda s: set_item(s.block, 0, Block()),
    "the Cell '1' of Stage.layers was replaced": lambda s: set_item(s.layers, 1, Block()),
    "attribute 'hidden' of Stage changed": lambda s: set_item(s.hidden["cells"], 0, Block()),
    "Parameter 'weight' of Stage.block.0.fc was replaced":
        lambda s: setattr(s.block[0].fc, "weight", Parameter(Tensor(np.ones((3, 3), np.float32)), name="weight")),
    "Parameter 'w' has another shape":
        lambda s: s.w.set_data(Tensor(np.ones((4, 3), np.float32)), slice_shape=True),
    "Parameter 'w' has another dtype": lambda s: s.w.set_dtype(ms.float16),
    "Parameter 'w' has another requires_grad": lambda s: setattr(s.w, "requires_grad", False),
    "Parameter 'listed0' has another requires_grad": lambda s: setattr(s.listed[0], "requires_grad", False),
}


def settled(stage):
    """A stage that has run: MindSpore has written what it writes into its Cells."""
    stage(Tensor(np.ones((2, 3), np.float32)))
    return stage


@pytest.mark.parametrize("phrase", CHANGES)
def test_a_change_of_a_cell(phrase):
    stage = settled(Stage())
    state = take_frozen_state(stage)
    assert state.difference() is None
    CHANGES[phrase](stage)
    assert state.difference().startswith(phrase.rstrip())
    assert state.difference().startswith(phrase.rstrip()), "it must stay noticed"
    assert take_frozen_state(stage).difference() is None


@pytest.mark.parametrize("change", [
    lambda s: setattr(s, "number", int("1000")), lambda s: setattr(s, "text", "".join(("te", "xt"))),
    lambda s: setattr(s, "nested", {"a": [1, (2, {"b": [3]})], "c": {5, 4}}),
    lambda s: setattr(s, "array", np.arange(3)),
    lambda s: s.w.set_data(Tensor(np.zeros((2, 3), np.float32))),
    lambda s: ops.assign_add(s.w, ops.ones_like(s.w)),
    lambda s: settled(s), lambda s: ms.grad(s)(Tensor(np.ones((2, 3), np.float32))),
    lambda s: s.register_forward_hook(other_construct).remove(),
    lambda s: (s.w.register_hook(abs).remove()),
    lambda s: list(s.cells_and_names()) + s.trainable_params() + [repr(s)],
    lambda s: setattr(HELPERS, "unused", HELPERS.unused + 1),
    lambda s: s.config.sizes.append(s.config.sizes.pop()),
    lambda s: gc.collect(),
])
def test_what_is_no_change(change):
    stage = Stage()
    state = take_frozen_state(stage)
    assert state.difference() is None
    change(stage)
    assert state.difference() is None
    assert state.difference() is None


IN_PLACE = {"item": lambda t: set_item(t, 0, 4.0), "copy_": lambda t: t.copy_(Tensor([7.0, 7.0, 7.0])),
            "assign": lambda t: ops.assign(t, Tensor([7.0, 7.0, 7.0]))}


@pytest.mark.parametrize("change", IN_PLACE)
@pytest.mark.parametrize("name, phrase", [("mask", "attribute 'mask'"), ("table", "the buffer 'table'")])
def test_tensors_changed_in_place(change, name, phrase):
    stage = Stage()
    state, blind = take_frozen_state(stage, contents=True), take_frozen_state(stage)
    assert state.difference() is None
    IN_PLACE[change](getattr(stage, name))
    assert state.difference().startswith(f"{phrase} of Stage was ")
    assert blind.difference() is None, "the documentation says that this is not noticed"


def test_a_value_that_comes_back():
    stage = Stage()
    state = take_frozen_state(stage)
    stage.number = 5
    assert state.difference()
    stage.number = 1000
    assert state.difference() is None
    stage.nested["a"].append(7)
    assert state.difference()
    stage.nested["a"].pop()
    assert state.difference() is None


def test_the_smallest_differences_of_numbers():
    stage = Stage()
    for old, new in ((0.0, -0.0), (1, True), (1, 1.0), (math.inf, -math.inf), (None, False), ("", b"")):
        stage.number = old
        state = take_frozen_state(stage)
        stage.number = new
        assert state.difference(), (old, new)
    stage.number = math.nan
    state = take_frozen_state(stage)
    stage.number = float("nan")
    assert state.difference() is None


@pytest.mark.parametrize("name", ["construct", "extra"])
def test_a_method_replaced_in_its_class(name, monkeypatch):
    state = take_frozen_state(Stage())
    stage = Stage()
    state = take_frozen_state(stage)
    monkeypatch.setattr(Block, name, other_construct)
    assert state.difference() == f"'{name}' of class Block was replaced"


def test_the_construct_of_a_cell_of_mindspore_replaced(monkeypatch):
    stage = Stage()
    state = take_frozen_state(stage)
    monkeypatch.setattr(nn.LayerNorm, "construct", other_construct)
    assert state.difference() == "'construct' of class LayerNorm was replaced"


def test_a_class_attribute(monkeypatch):
    stage = Stage()
    state = take_frozen_state(stage)
    monkeypatch.setattr(Block, "factor", 4)
    assert state.difference() == "'factor' of class Block changed from 3 to 4"


# --- all kinds of callables -------------------------------------------------------------------------------------------

class Calls(nn.Cell):
    """Calls what it is given."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def construct(self, x):
        return self.fn(x)


class Jitted(nn.Cell):
    """Its construct is compiled."""

    @ms.jit
    def construct(self, x):
        return scaled(x)


def indirectly(x):
    return scaled(x) + 1


def closure(fn, k=3):
    def inner(x):
        return fn(x) * k
    return inner


MAKERS = {
    "function": lambda: scaled,
    "function that calls it": lambda: indirectly,
    "lambda": lambda: lambda x: scaled(x),
    "jit function": lambda: ms.jit(scaled),
    "jit function that calls it": lambda: ms.jit(indirectly),
    "closure": lambda: closure(scaled),
    "partial": lambda: functools.partial(scaled, factor=4),
    "partial of a Cell": lambda: functools.partial(Calls(scaled)),
    "bound method": lambda: Scaler().method,
    "jit bound method": lambda: ms.jit(Scaler().method),
    "callable object": lambda: Scaler(),
    "Cell": lambda: Calls(scaled),
    "Cell of a callable object": lambda: Calls(Scaler()),
    "Cell compiled whole": lambda: ms.jit(Calls(scaled)),
    "Cell with a compiled construct": lambda: Jitted(),
    "construct of a Cell": lambda: Calls(indirectly).construct,
    "Cells in Cells": lambda: Calls(nn.SequentialCell(Calls(functools.partial(Calls(closure(scaled)))))),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_global_is_noticed_from_every_kind_of_callable(kind, monkeypatch):
    fn = MAKERS[kind]()
    owner = getattr(fn, "__self__", None)  # a bound method holds its object, and nobody else does
    state = take_frozen_state(fn)
    assert state.difference() is None
    monkeypatch.setattr(__import__("sys").modules[__name__], "SCALE", 5)
    assert state.difference() == f"global 'SCALE' of module {__name__} changed from 2 to 5"
    monkeypatch.undo()
    assert state.difference() is None
    assert owner is None or owner is fn.__self__


def test_functions(monkeypatch):
    state = take_frozen_state(scaled)
    monkeypatch.setattr(scaled, "__defaults__", (3,))
    assert state.difference() == "default arguments of scaled changed"
    monkeypatch.undo()
    NUMBERS.append(3)
    assert state.difference() == f"global 'NUMBERS' of module {__name__} changed"
    NUMBERS.pop()
    assert state.difference() is None
    monkeypatch.setattr(scaled, "__code__", indirectly.__code__)
    assert state.difference() == "code of scaled was replaced"


def test_closure_variables():
    k = 2

    def fn(x):
        return x * k

    state = take_frozen_state(fn)
    assert state.difference() is None
    k = 3
    name = "test_closure_variables.<locals>.fn"
    assert state.difference() == f"closure variable 'k' of {name} changed from 2 to 3"


def test_names_of_the_users_modules_and_objects(monkeypatch):
    stage = Stage()
    state = take_frozen_state(stage)
    monkeypatch.setattr(HELPERS, "SCALE", 3)
    assert state.difference() == "global 'SCALE' of module users_helpers changed from 2 to 3"
    monkeypatch.undo()
    monkeypatch.setattr(SETTINGS, "scale", 3)
    assert state.difference() == "attribute 'scale' of SETTINGS changed from 2 to 3"


def test_bound_methods_and_callable_objects(monkeypatch):
    scaler = Scaler()
    for fn in (scaler, scaler.method, ms.jit(scaler.method), functools.partial(scaler.method)):
        state = take_frozen_state(fn)
        scaler.scale = 3
        assert state.difference().endswith("changed from 2 to 3")
        scaler.scale = 2
        assert state.difference() is None
    monkeypatch.setattr(Scaler, "inside", other_construct)
    assert state.difference() == "'inside' of class Scaler was replaced"


def test_partials():
    fn = functools.partial(scaled, factor=[1, 2])
    state = take_frozen_state(fn)
    fn.keywords["factor"].append(3)
    assert state.difference() == "attribute 'keywords' of partial of scaled changed"


def test_what_contains_itself():
    stage = Stage()
    stage.nested["self"] = stage.nested
    stage.scaler.owner = stage
    state = take_frozen_state(stage)
    assert state.difference() is None
    stage.nested["a"].append(1)
    assert state.difference()


# --- life -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", MAKERS)
def test_nothing_is_kept_alive(kind):
    fn = MAKERS[kind]()
    watched = weakref.ref(getattr(fn, "__self__", fn))
    mine = getattr(fn, "__module__", None) == __name__ and getattr(fn, "__name__", "") in globals()
    gc.disable()
    try:
        state = take_frozen_state(fn)
        del fn
        if mine or kind.startswith("jit function"):
            return  # functions of this module live as long as it does
        assert watched() is None
        assert state.difference()
    finally:
        gc.enable()


def test_a_stage_and_its_parts_are_not_kept_alive():
    stage = Stage()
    gone = [weakref.ref(thing) for thing in (stage, stage.mask, stage.block[0], stage.scaler, stage.config)]
    state = take_frozen_state(stage)
    gc.collect()
    gc.disable()
    try:
        del stage
        assert [reference() for reference in gone] == [None] * len(gone)
        assert "no longer exists" in state.difference()
    finally:
        gc.enable()


def test_an_object_at_the_address_of_a_dead_one():
    """Identities are addresses: a new object at an old address must not pass for the old one."""
    stage, reused = Stage(), 0
    for _ in range(50):
        stage.act = collections.deque()  # nothing is known of it but the identity
        state, address = take_frozen_state(stage), id(stage.act)
        stage.act = None
        stage.act = collections.deque()
        reused += id(stage.act) == address
        assert state.difference()
    assert reused, "the test must meet the case"


@pytest.mark.parametrize("name", zoo.NAMES)
def test_silence_over_the_zoo(name):
    """Running and differentiating a network, and an optimizer step, change nothing that a compiled graph depends on."""
    case = zoo.build(name)
    state = take_frozen_state(case.fn)
    assert state.difference() is None
    inputs = case.inputs
    case.fn(*inputs, **case.kwargs)
    assert state.difference() is None
    for weight in case.weights:
        weight.set_data(weight + 1)
    case.fn(*case.make_inputs(1), **case.kwargs)
    assert state.difference() is None


def test_compiling_changes_nothing():
    net = nn.SequentialCell(nn.Dense(3, 3), nn.LayerNorm((3,)), Calls(indirectly))
    net[0].recompute()
    x = Tensor(np.ones((2, 3), np.float32))
    state = take_frozen_state(net)
    run = compile_whole(net, x, x, net.trainable_params())
    run(x, x)
    assert state.difference() is None
    net(x)
    assert state.difference() is None


def test_it_is_cheap_enough_for_every_micro_batch():
    """It calls less than to look at each attribute of the Cells once would: what is called is counted, not timed."""
    net = nn.SequentialCell(*[nn.SequentialCell(nn.Dense(3, 3), nn.LayerNorm((3,)), nn.ReLU()) for _ in range(12)])
    cells = [cell for _, cell in net.cells_and_names()]
    assert len(cells) == 49
    state = take_frozen_state(net)

    def yardstick():
        for cell in cells:
            for value in vars(cell).values():
                id(value)

    def calls(action):
        count = 0

        def called(_frame, event, _argument):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(called)
        try:
            action()
        finally:
            sys.setprofile(None)
        return count

    assert 0 < calls(state.difference) < calls(yardstick)


def reads_two_globals(x):
    return ops.sin(x) * SCALE


def test_globals_of_one_code_in_two_modules():
    """What is kept of a code is not what a module has of it."""
    twin = types.FunctionType(reads_two_globals.__code__, {"SCALE": 1})
    assert global_names(reads_two_globals) == ["ops", "SCALE"] and global_names(twin) == ["SCALE"]


def test_globals_of_a_code_without_a_hash():
    code = reads_two_globals.__code__
    odd = types.FunctionType(code.replace(co_consts=(*code.co_consts, [1])), globals())
    assert global_names(odd) == ["ops", "SCALE"]
