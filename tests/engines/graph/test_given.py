"""What a compiled call is given besides tensors: Cells, functions and objects change between calls as those of fn do."""

import dataclasses
import functools

import numpy as np
import pytest
from mindspore import Parameter, nn, ops

from mindspore_zb import options
from mindspore_zb.api import run_forward
from mindspore_zb.engines.graph.cache import clear_programs
from mindspore_zb.errors import UnsupportedError
from tests.helpers import assert_grads_close, tensor


class Scaled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 3)
        self.scale = 2.0

    def construct(self, x):
        return self.dense(x) * self.scale


@dataclasses.dataclass
class Choice:
    scale: float = 2.0
    parts: list = dataclasses.field(default_factory=lambda: [1.0, 2.0])


SCALE = 2.0


def by_global(x):
    return x * SCALE


def closure_over(scale):
    def inner(x):
        return x * scale
    return inner


def apply(x, tool):
    return tool(x)


def read(x, tool):
    return x * tool.scale * tool.parts[1]


def forward(fn, *inputs, mode="graph", weights=None):
    return run_forward(fn, inputs, {}, weights, False, 0, mode)


def changed_scale(tool):
    tool.scale = 5.0


def changed_list(tool):
    tool.parts[1] = 7.0


def changed_global(_tool):
    globals()["SCALE"] = 5.0


def changed_closure(tool):
    tool.__closure__[0].cell_contents = 5.0


@pytest.mark.parametrize("fn, make, change", [
    (apply, Scaled, changed_scale), (read, Choice, changed_scale), (read, Choice, changed_list),
    (apply, lambda: by_global, changed_global), (apply, lambda: closure_over(2.0), changed_closure)])
def test_a_change_is_noticed(fn, make, change, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    tool, x = make(), tensor(2, 4)
    for _ in range(2):
        out, grad_fn = forward(fn, x, tool)
        assert grad_fn.engine == "graph"
        assert_grads_close(out, fn(x, tool))
        expected = forward(fn, x, tool, mode="pynative")[1].compute_input_grad()
        assert_grads_close(grad_fn.compute_input_grad(), expected)
        change(tool)


def test_training_flag_of_a_given_cell():
    net, x = nn.SequentialCell(nn.Dense(4, 64), nn.Dropout(p=0.5)), tensor(2, 4)
    for training in (True, False, True):
        net.set_train(training)
        dropped = int((forward(apply, x, net)[0] == 0).sum())
        assert (dropped > 10) == training


def test_a_file_of_another_global_is_not_taken(tmp_path, monkeypatch):
    x = tensor(2, 4)
    for scale in (2.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        clear_programs()  # as another process would be
        with options(graph_cache=str(tmp_path)):
            assert_grads_close(forward(apply, x, by_global)[0], x * scale)


@pytest.mark.parametrize("given", [np.ones(4, np.float32), {1.0, 2.0}, bytearray(b"ab")])
def test_what_cannot_be_watched_is_refused(given):
    with pytest.raises(UnsupportedError, match=f"given a {type(given).__name__}"):
        forward(lambda x, given: x * len(given), tensor(2, 4), given)


def twice(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) * 2
    return wrapper


class Decorated(Scaled):
    @twice
    def construct(self, x):
        return self.dense(x)


class Calling(nn.Dense):
    def __call__(self, x):
        return super().__call__(x) * 2


class WritesTwice(nn.Cell):
    def __init__(self):
        super().__init__()
        self.state = Parameter(ops.zeros(4), name="state", requires_grad=False)

    def construct(self, x):
        old = self.state * 2
        ops.assign(self.state, x.mean(0))
        ops.assign_add(self.state, old)
        return x * self.state


@pytest.mark.parametrize("make, reason", [
    (Decorated, "Decorated.construct is decorated"), (lambda: Calling(4, 3), "Calling has a __call__ of its own"),
    (WritesTwice, "writes a Parameter 2 times")])
def test_what_compiles_to_something_else_is_refused(make, reason):
    net, plain, x = make(), make(), tensor(2, 4)
    with pytest.raises(UnsupportedError, match=reason):
        forward(net, x)
    for parameter, other in zip(plain.get_parameters(), net.get_parameters()):
        parameter.set_data(other.value())
    for _ in range(3):
        assert_grads_close(forward(net, x, mode="pynative")[0], plain(x))


def with_default(x, scale=2.0):
    return x * scale


def test_changed_defaults_are_refused(monkeypatch):
    x = tensor(2, 4)
    assert_grads_close(forward(with_default, x)[0], x * 2)
    monkeypatch.setattr(with_default, "__defaults__", (5.0,))
    for value in (x, tensor(3, 4)):  # of a new shape too: MindSpore has read the function already
        with pytest.raises(UnsupportedError, match="default arguments of with_default changed"):
            forward(with_default, value)
