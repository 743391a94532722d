"""The memory timeline of known nets: to the byte what formulas say, freed in the right step, and no trace left."""

import json
import threading
from types import SimpleNamespace

import bench_nets  # of scripts/
import mindspore as ms
import pytest
from mindspore import Parameter, nn, ops

from mindspore_zb import explain, options, zero_bubble
from mindspore_zb.api import run_forward
from mindspore_zb.engines.pynative.native import _pynative_executor, storage_of
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.memory import memory_timeline, recompute_price
from mindspore_zb.memory.layers import Layers
from mindspore_zb.memory.log import SavedTensorLog
from mindspore_zb.memory.timeline import _Steps
from tests.helpers import assert_grads_close, reference, tensor

FLOAT = 4
"""Bytes of a number."""


def saved(timeline):
    return {step.name: step.saved_bytes for step in timeline.steps}


def group_of(timeline, weight):
    """The name of the step that computes the gradient of a weight."""
    return next(step.name for step in timeline.steps if weight in step.weights)


def check_consistent(timeline):
    """The figures of the steps are those of the storages, and nothing outlives the step."""
    curve = timeline.curve()
    for step in timeline.steps:
        assert step.saved_bytes == (curve[step.last - 1] if step.last else 0)
    assert timeline.steps[-1].saved_bytes == timeline.steps[-1].held_bytes == 0
    assert all(storage.freed is not None for storage in timeline.storages)
    assert sum(holder.nbytes for holder in timeline.holders()) == timeline.peak.saved_bytes
    assert sum(holder.nbytes for holder in timeline.operations()) == timeline.peak.saved_bytes
    json.dumps(timeline.to_dict())


# --- known nets -------------------------------------------------------------------------------------------------------

def test_perceptron():
    width, layers, batch = 8, 3, 5
    bench = bench_nets.mlp("silu", width, layers, batch)
    names = [f"layers.{place}" for place in range(layers)]
    timeline = memory_timeline(bench.net, (bench.x,), bench.net.trainable_params())
    check_consistent(timeline)
    one = batch * width * FLOAT  # an activation
    found = saved(timeline)
    assert found["forward"] == layers * one + (layers - 1) * one  # the input of each layer, and that of each silu
    assert found["dx"] == layers * one
    order = [step.name for step in timeline.steps]
    for done, place in enumerate(reversed(range(layers)), 1):  # each weight's dw frees the input of its layer
        step = group_of(timeline, f"layers.{place}.weight")
        assert found[step] == (layers - done) * one
        freed = [storage for storage in timeline.storages if storage.freed_in == step]
        assert [(storage.layer, storage.nbytes, storage.saved_by) for storage in freed] == [
            (names[place], one, "MatMul")]
        assert order.index(step) == 2 * done + 1  # behind its bias
    silu = [storage for storage in timeline.storages if storage.saved_by == "SiLU"]
    assert [(storage.layer, storage.nbytes, storage.freed_in) for storage in silu] == [("", one, "dx")] * (layers - 1)
    assert timeline.storages[0].made_by == "inputs[0]" and timeline.storages[-1].made_by == "SiLU"
    assert all(storage.where.startswith("bench_nets.py:") for storage in timeline.storages)


def test_gradients_wait_for_dw_and_then_for_the_optimizer():
    width, layers, batch = 8, 3, 5
    bench = bench_nets.mlp("tanh", width, layers, batch)
    weights = bench.net.trainable_params()
    got = []
    timeline = memory_timeline(bench.net, (bench.x,), weights, optimizer=got.append)
    check_consistent(timeline)
    dx, *dw, optimizer = timeline.steps[1:]
    assert dx.held_bytes == layers * batch * width * FLOAT  # what flows into a layer, shared by its bias and its matmul
    assert dx.grad_bytes == 0 and dw[-1].held_bytes == 0
    every = layers * (width * width + width) * FLOAT
    assert dw[-1].grad_bytes == every == timeline.weight_bytes
    assert (optimizer.name, optimizer.grad_bytes, optimizer.total) == ("optimizer", 0, 0)
    assert timeline.step_peaks()[-1].nbytes == every
    assert_grads_close(got[0], reference(bench.net, (bench.x,), weights)[1])


class ConvNet(nn.Cell):
    """Convolution, batch norm, relu, mean."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3, pad_mode="same"), nn.BatchNorm2d(3)

    def construct(self, x):
        return ops.relu(self.norm(self.conv(x))).mean(axis=(2, 3))


def test_conv_net():
    batch, height, width = 2, 5, 4
    net = ConvNet().set_train()
    timeline = memory_timeline(net, (tensor(batch, 2, height, width),), net.trainable_params())
    check_consistent(timeline)
    pixels = batch * height * width * FLOAT
    statistics = 3 * 3 * FLOAT  # three numbers for each channel; the moving ones are Parameters
    found = saved(timeline)
    assert found["forward"] == 2 * pixels + 3 * pixels + statistics + 3 * pixels  # inputs of conv and norm; relu's output
    assert found["dx"] == 2 * pixels  # the norm's dw is caught in dx
    assert found[group_of(timeline, "conv.weight")] == 0
    assert {layer.layer: layer.saved_bytes for layer in timeline.by_layer()} == {
        "conv": 2 * pixels, "norm": 3 * pixels + statistics, "": 3 * pixels}
    assert {layer.layer: layer.grad_bytes for layer in timeline.by_layer()} == {
        "conv": 3 * 2 * 3 * 3 * FLOAT, "norm": 2 * 3 * FLOAT, "": 0}


def test_transformer():
    blocks, batch, length, width, heads = 2, 2, 3, 8, 4
    bench = bench_nets.transformer(blocks, width, batch, length, heads)
    timeline = memory_timeline(bench.net, (bench.x,), bench.net.trainable_params())
    check_consistent(timeline)
    one = batch * length * width * FLOAT
    norms = 2 * (one + 2 * batch * length * FLOAT)  # input, mean and deviation
    softmax = batch * heads * length * length * FLOAT  # saved by itself and by the matmul behind it
    attention = one + 3 * one + softmax + one  # inputs of qkv and proj; q, k, v
    # Dense copies an input of three dimensions to rows, so the result of gelu is there twice: its own, and down's input.
    feed_forward = one + 3 * 4 * one
    found = saved(timeline)
    assert found["forward"] == blocks * (norms + attention + feed_forward)
    left = {"down": 4 * one, "up": one, "proj": one, "qkv": one}
    assert found["dx"] == blocks * sum(left.values())
    waiting = found["dx"]
    for block in reversed(range(blocks)):
        for layer, nbytes in left.items():
            waiting -= nbytes
            assert found[group_of(timeline, f"{block}.{layer}.weight")] == waiting
    layers = {layer.layer: layer for layer in timeline.by_layer()}
    assert layers["1.down"].saved_bytes == layers["1.down"].after_dx_bytes == 4 * one
    assert layers["1.down"].grad_bytes == (4 * width * width + width) * FLOAT
    assert layers["1.norm2"].after_dx_bytes == 0
    assert [layer.saved_bytes for layer in timeline.by_layer(depth=1)] == [found["forward"] // blocks] * blocks
    assert timeline.peak.step == "forward" and timeline.peak.nbytes == found["forward"]


def test_compiled_as_a_whole():
    width, layers, batch = 8, 3, 5
    bench = bench_nets.mlp("silu", width, layers, batch)
    weights = bench.net.trainable_params()
    one = batch * width * FLOAT
    for policy, count in (("none", 2 * layers - 1), ("elementwise", layers)):  # silu again: then only its inputs, and x
        with options(graph_recompute=policy):
            timeline = memory_timeline(bench.net, (bench.x,), weights, mode="graph")
            _, grad_fn = run_forward(bench.net, (bench.x,), {}, weights, False, 0, "graph")
        assert timeline.engine == "graph" and timeline.storages == ()
        assert timeline.steps[0].held_bytes == count * one == explain(grad_fn).saved_bytes
        assert explain(grad_fn).unsaved_bytes == (2 * layers - 1) * one
        assert (f"; {(2 * layers - 1) * one} bytes without recompute" in str(explain(grad_fn))) == (policy != "none")
        assert timeline.steps[-1].held_bytes == 0 and timeline.steps[-1].grad_bytes == timeline.weight_bytes
        assert any("tells neither layers nor operations" in note for note in timeline.notes)


def test_price_of_recompute_checks_its_arguments():
    with pytest.raises(ArgumentValueError,
                       match="policy must be one of none, views, elementwise, cheap, selective, not 'all'"):
        recompute_price(ops.tanh, (tensor(2),), policy="all")
    with pytest.raises(ArgumentValueError, match="rounds is at least 1, not 0"):
        recompute_price(ops.tanh, (tensor(2),), rounds=0)


# --- what counts ------------------------------------------------------------------------------------------------------

def test_a_view_is_its_whole_storage():
    y = tensor(5, 8)
    assert storage_of(y[1:3]) == storage_of(y) == (y.data_ptr(), 5 * 8 * FLOAT)


def test_what_two_operations_save_counts_once():
    w = Parameter(tensor(8, 8), name="w")

    def net(x):
        y = ops.tanh(x @ w)
        return y * y + ops.sin(y)

    timeline = memory_timeline(net, (tensor(5, 8),), [w])
    assert [storage.nbytes for storage in timeline.storages] == [5 * 8 * FLOAT] * 2  # x, and y
    assert sorted(timeline.storages[1].operations) == ["Mul", "Sin", "Tanh"]


def test_functions_that_call_cells_name_their_layers():
    body, head = nn.Dense(4, 4), nn.Dense(4, 3)
    timeline = memory_timeline(lambda x: head(ops.tanh(body(x))), (tensor(2, 4),),
                               [*body.trainable_params(), *head.trainable_params()])
    assert [storage.layer for storage in timeline.storages] == ["body", ""]
    assert [layer.layer for layer in timeline.layers] == ["body", "head"]
    assert timeline.storages[1].operations == ("MatMul", "Tanh")


def test_only_weights_only_inputs_and_nothing_reached():
    w, lost = Parameter(tensor(4, 4), name="w"), Parameter(tensor(2), name="lost")
    whole = memory_timeline(lambda x: x @ w, (tensor(2, 4),), w, grad_position=None)
    assert [(step.name, step.saved_bytes, step.grad_bytes) for step in whole.steps] == [
        ("forward", 32, 0), ("dw", 0, 64)]
    alone = memory_timeline(lambda x: ops.tanh(x) * w, (tensor(4, 4),))
    assert [(step.name, step.saved_bytes) for step in alone.steps] == [("forward", 64), ("dx", 0)]
    both = memory_timeline(lambda x: x @ w, (tensor(2, 4),), [lost, w])
    assert [step.weights for step in both.steps] == [(), (), ("w",), ("lost",)]
    assert both.steps[-1].grad_bytes == 64 + 8


def test_what_is_held_in_two_ways_counts_once():
    saved_ones = {1: 10, 2: 20}
    log = SimpleNamespace(step="", events=lambda: 2, alive=lambda: saved_ones)
    steps = _Steps(log, None)
    steps.grad_fn = SimpleNamespace(held_storages=lambda: {2: 20, 3: 30, 4: 40})
    shared = SimpleNamespace(data_ptr=lambda: 4, nbytes=40)
    steps.grads = [SimpleNamespace(data_ptr=lambda: 5, nbytes=50), None, shared]
    with steps.of("dx"):
        pass
    [step] = steps.found
    assert (step.saved_bytes, step.held_bytes, step.grad_bytes, step.total) == (30, 70, 50, 150)


def test_keyword_arguments_and_sens():
    w = Parameter(tensor(4, 4), name="w")
    got = []
    timeline = memory_timeline(lambda x, scale: (x * scale) @ w, (tensor(2, 4),), w, kwargs={"scale": tensor(4, seed=1)},
                               sens=tensor(2, 4, seed=2), grad_position=-1, optimizer=lambda grads: got.extend(grads))
    check_consistent(timeline)
    assert [storage.made_by for storage in timeline.storages[:2]] == ["inputs[0]", "kwargs['scale']"]
    expected = reference(lambda x: (x * tensor(4, seed=1)) @ w, (tensor(2, 4),), w, sens=tensor(2, 4, seed=2))[1]
    assert_grads_close(got[0], expected)


def test_a_compiled_block_in_an_eager_net_is_said_not_to_be_seen():
    dense = nn.Dense(4, 4)

    @ms.jit
    def compiled(x):
        return dense(x)

    timeline = memory_timeline(lambda x: ops.tanh(compiled(x)), (tensor(2, 4),), dense.trainable_params())
    assert any("1 compiled block(s) are single nodes" in note for note in timeline.notes)
    zero_bubble(dense, mode="graph")
    eager = memory_timeline(lambda x: ops.tanh(dense(x)), (tensor(2, 4),), dense.trainable_params())
    assert any("1 block(s) of the graph engine ran operation by operation" in note for note in eager.notes)
    for plain in (memory_timeline(dense, (tensor(2, 4),)),
                  memory_timeline(lambda x: dense(x), (tensor(2, 4),), mode="pynative")):
        assert not any("block(s)" in note for note in plain.notes)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recompute(reentrant):
    """The first layer and tanh are computed again: only their input is saved, and sin's."""
    first, second = nn.Dense(4, 8), nn.Dense(8, 3)
    weights = [*first.trainable_params(), *second.trainable_params()]

    def net(x):
        hidden = ms.recompute(nn.SequentialCell(first, nn.Tanh()), x, use_reentrant=reentrant)
        return second(ops.sin(hidden))

    timeline = memory_timeline(net, (tensor(2, 4),), weights)
    check_consistent(timeline)
    assert saved(timeline)["forward"] == (2 * 4 + 2 * 8 + 2 * 8) * FLOAT  # x; what sin takes and gives
    assert {storage.saved_in for storage in timeline.storages} == ({"forward", "dx"} if reentrant else {"forward"})


# --- no trace ---------------------------------------------------------------------------------------------------------

CALL = nn.Cell.__call__


def under_watch():
    return _pynative_executor.is_saved_tensor_hook_active(), nn.Cell.__call__ is not CALL


class Failing(nn.Cell):
    """Raises, unless told not to; remembers whether it was watched."""

    def __init__(self, fails):
        super().__init__()
        self.dense, self.fails, self.seen = nn.Dense(4, 4), fails, None

    def construct(self, x):
        self.seen = under_watch()
        if self.fails:
            raise KeyError("on purpose")
        return self.dense(x)


@pytest.mark.parametrize("place", ["fn", "optimizer"])
def test_no_trace_when_something_raises(place):
    net = Failing(place == "fn")

    def fail(_grads):
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        memory_timeline(net, (tensor(2, 4),), net.trainable_params(), optimizer=fail)
    assert net.seen == (True, True)
    assert under_watch() == (False, False)
    net.fails = False
    assert [storage.layer for storage in memory_timeline(net, (tensor(2, 4),), net.trainable_params()).storages] == [
        "dense"]


def test_another_thread_that_runs_at_the_same_time_is_not_seen():
    mine, other, started, go_on = nn.Dense(4, 4), nn.Dense(4, 4), threading.Event(), threading.Event()
    log = SavedTensorLog(Layers(mine))

    def slow(x):
        started.set()
        go_on.wait(20)
        return other(x)

    thread = threading.Thread(target=lambda: run_forward(slow, (tensor(2, 4),), {}, None, False, 0))
    thread.start()
    started.wait(20)
    with log.watch():
        go_on.set()
        _, grad_fn = run_forward(mine, (tensor(2, 4),), {}, mine.trainable_params(), False, 0)
    thread.join(20)
    assert under_watch() == (False, False)
    assert [(storage.layer, storage.nbytes) for storage in log.storages()] == [("", 32)]
    grad_fn.release()
    assert log.alive() == {}


# --- the device's own figures -----------------------------------------------------------------------------------------

def test_where_the_allocator_reports_its_bytes_each_step_has_them(monkeypatch):
    figures = SimpleNamespace(now=10 ** 6, peak=0)

    def allocated():
        figures.now -= 1000
        figures.peak = max(figures.peak, figures.now + 500)
        return figures.now

    def reset():
        figures.peak = 0

    monkeypatch.setattr(ms, "runtime", SimpleNamespace(
        memory_allocated=allocated, max_memory_allocated=lambda: figures.peak, reset_peak_memory_stats=reset))
    dense = nn.Dense(4, 4)
    timeline = memory_timeline(dense, (tensor(2, 4),), dense.trainable_params())
    found = [(step.device_bytes, step.device_peak) for step in timeline.steps]
    first = found[0][0]
    assert found == [(first - 1000 * place, first - 1000 * place + 500) for place in range(len(timeline.steps))]
    assert not any("reports no memory" in note for note in timeline.notes)


def test_where_it_does_not_a_note_says_so():
    timeline = memory_timeline(ops.tanh, (tensor(2, 4),))
    assert all(step.device_bytes is None and step.device_peak is None for step in timeline.steps)
    assert any("MindSpore reports no memory of this device" in note for note in timeline.notes)


@pytest.mark.parametrize("arguments, error, message", [
    (dict(fn=3, inputs=()), ArgumentTypeError, "fn must be callable, not a int"),
    (dict(fn=ops.tanh, inputs=3), ArgumentTypeError, "inputs must be a tuple of the arguments of fn, not a int"),
    (dict(fn=ops.tanh, inputs=(3,), kwargs=3), ArgumentTypeError, "kwargs must be a dict, not a int"),
    (dict(fn=ops.tanh, inputs=(3,), optimizer=3), ArgumentTypeError, "optimizer must be callable, not a int"),
    (dict(fn=ops.tanh, inputs=(3,), weights=[3]), ArgumentTypeError, r"weights\[0\] must be a Parameter, not a int"),
    (dict(fn=ops.tanh, inputs=(3,), mode="no"), ArgumentValueError, "mode must be 'auto', 'pynative' or 'graph'")])
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        memory_timeline(**arguments)
