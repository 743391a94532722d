"""The cache directory: calls compiled in one process are run by others, and nothing wrong ever comes out of it."""

import gc
import json
import os
import random
import subprocess
import sys
import types
import warnings
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindspore_zb import options
from mindspore_zb.api import run_forward
from mindspore_zb.engines.graph import cache, fingerprint, store
from mindspore_zb.engines.graph.blueprint import Blueprint, Layout, PieceCode, RunCode
from mindspore_zb.engines.graph.joint import Call
from mindspore_zb.engines.graph.outputs import NestedResult
from mindspore_zb.engines.graph.partition import CutSettings, GroupLayout
from mindspore_zb.engines.graph.reached import reach
from mindspore_zb.structure import flatten
from tests.networks.compare import assert_same, unsplit_grads
from tests.networks.zoo import NAMES, build

CHILD = Path(__file__).with_name("cache_child.py")


def normal(*shape, seed=0):
    return Tensor(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


class Net(nn.Cell):
    """A linear layer and a scale."""

    def __init__(self, seed=0, columns=3):
        super().__init__()
        self.weight = Parameter(normal(4, columns, seed=seed), name="weight")
        self.scale = 2.0

    def construct(self, x):
        return ops.tanh(ops.matmul(x, self.weight)) * self.scale


@pytest.fixture(autouse=True)
def warnings_told_again(monkeypatch):
    monkeypatch.setattr(store, "_TOLD", set())


def check(net, directory, x=None):
    """A net run as in a new process gives the values of the unsplit backward."""
    cache.clear_programs()
    x = normal(2, 4) if x is None else x
    sens = normal(*net(x).shape, seed=9)
    right = unsplit_grads(net, (x,), net.trainable_params(), sens)
    with options(graph_cache=directory):
        out, grad_fn = run_forward(net, (x,), {}, net.trainable_params(), False, 0, "graph")
    assert_same(out, right.out, "out")
    assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx")
    assert_same(grad_fn.compute_weight_grad(), right.dw, "dw")


def tensors_in(value):
    """All tensors, those of bfloat16 as float32."""
    return [leaf.astype(ms.float32) if leaf.dtype == ms.bfloat16 else leaf for leaf in flatten(value)[0]
            if isinstance(leaf, Tensor)]


# --- found again ------------------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_another_process_compiles_nothing(tmp_path):
    results = []
    for seed in ("1", "2"):  # sets come in another order
        done = subprocess.run([sys.executable, str(CHILD), str(tmp_path)], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout.splitlines()[-1]))
    assert [result["compiled"] for result in results] == [2, 0]
    assert results[0]["values"] == results[1]["values"]


@pytest.mark.slow
def test_networks_found_again_give_the_same(tmp_path, compiled):
    found = 0
    for name in NAMES[::3]:
        results = []
        for _ in range(2):
            case = build(name)
            cache.clear_programs()
            del compiled[:]
            ms.set_seed(7)
            with options(graph_cache=tmp_path), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out, grad_fn = run_forward(case.fn, case.inputs, case.kwargs, case.weights, case.has_aux,
                                           case.grad_position, "graph" if case.compiles else "auto")
            results.append((out, grad_fn(case.make_sens(out[0] if case.has_aux else out, 0))))
        found += grad_fn.engine == "graph" and not compiled
        assert [leaf.asnumpy().tobytes() for leaf in tensors_in(results[0])] == \
            [leaf.asnumpy().tobytes() for leaf in tensors_in(results[1])], name
    assert found >= 18


def test_equal_nets_with_other_weights(tmp_path, compiled):
    for seed in (1, 2, 3):
        check(Net(seed), tmp_path)
    assert len(compiled) == 1 and len(os.listdir(tmp_path)) == 1


def test_what_makes_a_difference_is_compiled(tmp_path, compiled):
    check(Net(), tmp_path)
    net = Net()
    net.scale = 3.0
    check(net, tmp_path)
    check(Net(columns=5), tmp_path)
    check(Net(), tmp_path, normal(7, 4))
    assert len(compiled) == 4 and len(os.listdir(tmp_path)) == 4


def test_nothing_is_written_unless_asked_for(tmp_path, compiled, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(Net(), None)
    assert not os.listdir(tmp_path)
    check(Net(), Path("made") / "here")
    assert os.listdir(tmp_path / "made" / "here")


# --- fingerprints -----------------------------------------------------------------------------------------------------

def name_of(fn, *args, settings=CutSettings(), **changes):
    leaves, structure = flatten((args, {}))
    call = replace(Call(fn, structure, leaves, (0,), (), False), **changes)
    return fingerprint.fingerprint(call, reach(fn), (), settings)


def function(source, **names):
    """A function made from source that a file has."""
    module = types.ModuleType("users_module")
    module.ops = ops
    vars(module).update(names)
    exec(compile(source, "<test>", "exec"), vars(module))
    return module.fn


@pytest.fixture
def source_of(monkeypatch):
    """Sources by function, as the functions of this test are in no file."""
    sources = {}
    monkeypatch.setattr(fingerprint.inspect, "getsource", lambda fn: sources.get(fn, fn.__qualname__))
    return sources


SOURCE = "def fn(x, by=1.0):\n    return ops.sin(x) * by * FACTOR\n"


def test_equal_code_and_values_have_one_name(source_of):
    x = normal(2, 2)
    names = {name_of(function(SOURCE, FACTOR=2.0), x) for _ in range(3)}
    assert len(names) == 1 and len(names.pop()) == 64


def test_each_difference_has_another_name(source_of, monkeypatch):
    x = normal(2, 2)
    edited = function(SOURCE, FACTOR=2.0)
    source_of[edited] = "edited since"
    names = [name_of(function(SOURCE, FACTOR=2.0), x), name_of(function(SOURCE, FACTOR=3.0), x),
             name_of(function(SOURCE.replace("sin", "cos"), FACTOR=2.0), x),
             name_of(function(SOURCE.replace("1.0", "1.5"), FACTOR=2.0), x), name_of(edited, x),
             name_of(function(SOURCE, FACTOR=2.0), normal(2, 3)),
             name_of(function(SOURCE, FACTOR=2.0), x.astype(ms.float16)),
             name_of(function(SOURCE, FACTOR=2.0), x, 2.0), name_of(function(SOURCE, FACTOR=2.0), x, 2),
             name_of(function(SOURCE, FACTOR=2), x), name_of(function(SOURCE, FACTOR=True), x),
             name_of(function(SOURCE, FACTOR=normal(2, 2)), x), name_of(function(SOURCE, FACTOR=normal(2, 2, seed=1)), x),
             name_of(function(SOURCE, FACTOR=2.0), x, asked=()), name_of(function(SOURCE, FACTOR=2.0), x, has_aux=True),
             name_of(function(SOURCE, FACTOR=2.0), [x]), name_of(function(SOURCE, FACTOR=2.0), (x,)),
             name_of(function(SOURCE, FACTOR=2.0), x, settings=CutSettings(pieces=1)),
             name_of(function(SOURCE, FACTOR=2.0), x, settings=CutSettings(recompute="cheap"))]
    monkeypatch.setenv("MS_DEV_SOMETHING", "1")
    names.append(name_of(function(SOURCE, FACTOR=2.0), x))
    monkeypatch.setattr(fingerprint, "_versions", lambda: ("another version",))
    names.append(name_of(function(SOURCE, FACTOR=2.0), x))
    assert None not in names and len(set(names)) == len(names)


def test_a_cell_is_told_by_all_that_it_compiles_with():
    x = normal(2, 4)
    nets = [Net() for _ in range(6)]
    nets[1].set_train()
    nets[2].extra = 1
    nets[3].weight.requires_grad = False
    nets[4].to_float(ms.float16)
    nets[5].weight = Parameter(normal(4, 3).astype(ms.float16), name="weight")
    names = [name_of(net, x) for net in nets]
    assert None not in names and len(set(names)) == 6
    assert name_of(Net(seed=4), x) == names[0]


def test_what_cannot_be_told_has_no_name(source_of):
    x = normal(2, 2)
    for thing in (object(), normal(1024, 1024), iter(()), np.zeros(1 << 18)):
        assert name_of(function(SOURCE, FACTOR=thing), x) is None


def test_source_that_is_not_there():
    assert name_of(function(SOURCE, FACTOR=2.0), normal(2, 2)) is None


# --- damage -----------------------------------------------------------------------------------------------------------

def stored(tmp_path):
    return next(path for path in tmp_path.iterdir())


@pytest.mark.parametrize("damage", [
    lambda content: b"", lambda content: content[:40], lambda content: content[:-1], lambda content: content + b"x",
    lambda content: b"\x80" * len(content), lambda content: content.replace(b"pieces 4", b"pieces 3"),
    lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:]])
def test_a_damaged_file_is_told_and_replaced(damage, tmp_path, compiled):
    check(Net(), tmp_path)
    path = stored(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.warns(store.CacheWarning, match=f"{path.name} is damaged .*: compiling anew"):
        check(Net(), tmp_path)
    assert len(compiled) == 2
    check(Net(), tmp_path)
    assert len(compiled) == 2


def test_the_file_of_another_call(tmp_path, compiled):
    one, other = tmp_path / "one", tmp_path / "other"
    check(Net(), one)
    check(Net(columns=5), other)
    stored(other).replace(stored(one))
    with pytest.warns(store.CacheWarning, match="it is that of another call"):
        check(Net(), one)


def test_no_mutation_of_a_file_is_accepted(tmp_path, compiled):
    check(Net(), tmp_path)
    path = stored(tmp_path)
    content, name, generator = path.read_bytes(), path.stem, random.Random(3)
    assert store.decode(content, name)
    for _ in range(500):
        mutant = bytearray(content)
        for _ in range(generator.randrange(1, 4)):
            place = generator.randrange(len(mutant))
            mutant[place:place + generator.randrange(3)] = bytes(generator.randrange(256)
                                                                 for _ in range(generator.randrange(3)))
        if bytes(mutant) != content:
            with pytest.raises(ValueError):
                store.decode(bytes(mutant), name)


def test_a_directory_that_cannot_be(tmp_path, compiled):
    (tmp_path / "file").write_text("")
    with pytest.warns(store.CacheWarning, match="file/below cannot be written .*: nothing is kept there") as told:
        check(Net(), tmp_path / "file" / "below")
        check(Net(seed=1), tmp_path / "file" / "below")
    assert len(told) == 1 and len(compiled) == 2


def test_a_full_directory(tmp_path, compiled, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(store.os, "replace", full)
        with pytest.warns(store.CacheWarning, match="cannot be written .No space left on device.: nothing is kept there"):
            check(Net(), tmp_path)
    assert not os.listdir(tmp_path)
    check(Net(), tmp_path)
    assert len(os.listdir(tmp_path)) == 1


def test_a_file_that_cannot_be_read(tmp_path, compiled):
    check(Net(), tmp_path)
    path = stored(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.warns(store.CacheWarning) as told:
        check(Net(), tmp_path)
    assert "cannot be read (Is a directory): compiling anew" in str(told[0].message)


# --- what a file holds ------------------------------------------------------------------------------------------------

def some_blueprint(constants, main):
    run = RunCode(b"\x00\xff data", ("a", "b"), (((2, 3), ms.float16), ((), ms.bool_)), ("c", "t"), ("t",))
    code = PieceCode((run, replace(run, gives=())), ("a", "b"), ("s", ""), ("c",), ("d:w",))
    layout = Layout(("x",), ("s",), {"d:w": 4}, constants, ("o",), (((5,), ms.bfloat16),), ("g",), (0, 2), main, None,
                    (GroupLayout((0, 1), ("v", "v"), ("n",), ("MatMul",)),), 7, 9)
    return Blueprint(layout, code, replace(code, runs=()), (code, code))


def test_all_comes_back():
    constants = {"k": Tensor(np.array([[1.5, -0.0]], np.float64)), "i": Tensor(3, ms.int32)}
    nested = NestedResult("{'a': ('tensor', 0), 'b': [1, 2, 3, 4]}", [None, True, -0.0, "text", 10 ** 30])
    before = some_blueprint(constants, nested)
    after = store.decode(store.encode(before, "name"), "name")
    assert (after.forward, after.dx, after.dw) == (before.forward, before.dx, before.dw)
    for field in ("inputs", "sens", "places", "outs", "out_metas", "dxs", "differentiable", "aux", "groups",
                  "saved_bytes", "unsaved_bytes"):
        assert getattr(after.layout, field) == getattr(before.layout, field), field
    assert repr(after.layout.main.nested(["t"])) == "{'a': ('t', None), 'b': [True, -0.0, 'text', " + str(10 ** 30) + "]}"
    for key, tensor in constants.items():
        found = after.layout.constants[key]
        assert found.dtype == tensor.dtype and found.asnumpy().tobytes() == tensor.asnumpy().tobytes()
        assert found.shape == tensor.shape


@pytest.mark.parametrize("constant", [ms.float32, object(), (1,), np.float32(1)],
                         ids=lambda constant: type(constant).__name__)
def test_constants_without_a_text_form_are_not_kept(constant, tmp_path):
    store.keep_blueprint(str(tmp_path), "name", some_blueprint({}, NestedResult("('tensor', 0)", [constant])))
    assert not os.listdir(tmp_path)


def test_the_callers_frozen_objects_stay_frozen(compiled):
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        check(Net(), None)
        assert gc.get_freeze_count() > 0.99 * frozen > 10_000  # some may have died
    finally:
        gc.unfreeze()
    check(Net(), None)
    assert gc.get_freeze_count() < 1000 and len(compiled) == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path, compiled):
    check(Net(), tmp_path)
    path = stored(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(store.CacheWarning, match="cannot be read"):
        check(Net(), tmp_path)
    assert len(compiled) == 2
