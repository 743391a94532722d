"""``explain``: what it says is what the split does, and it keeps nothing alive."""

import gc
import json
import weakref

import bench_nets  # of scripts/
import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindspore_zb import explain, forward_and_gradfn, options, zero_bubble
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, StateError
from mindspore_zb.memory import SavedTensorLedger
from mindspore_zb.split import BackwardGraph, check_plan, split_backward


def normal(*shape, seed=0):
    return Tensor(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


def weight(name, *shape, seed=1):
    return Parameter(normal(*shape, seed=seed), name=name)


def dense():
    """``tanh(x @ v) @ w``; returns what ``forward_and_gradfn`` does."""
    v, w = weight("v", 4, 4), weight("w", 4, 3)
    return forward_and_gradfn(lambda x: ops.matmul(ops.tanh(ops.matmul(x, v)), w), normal(2, 4), weights=[v, w])


def by_name(explanation, name):
    return [node for node in explanation.nodes if node.name == name]


def test_roles_shapes_and_slots():
    explanation = explain(dense()[1])
    assert explanation.engine == "pynative" and explanation.state == "fresh" and explanation.fallback_reason is None
    assert [(node.name, node.role, node.shapes, node.group) for node in explanation.nodes] == [
        ("MatMulExt", "boundary", ((2, 3),), 0), ("Tanh", "dx", ((2, 4),), None), ("w", "weight", ((4, 3),), 0),
        ("MatMulExt", "boundary", ((2, 4),), 1), ("inputs[0]", "input", ((2, 4),), None),
        ("v", "weight", ((4, 4),), 1)]
    assert explanation.nodes[0].root_slots == (0,) and explanation.nodes[0].weight_edges == (1,)
    assert [group.weights for group in explanation.groups] == [("w",), ("v",)]
    assert explanation.closure == 4 and explanation.held_bytes == 0


def test_eager_boundary():
    norm = nn.LayerNorm((4,))
    explanation = explain(forward_and_gradfn(norm, normal(2, 4), weights=norm.trainable_params())[1])
    [node] = by_name(explanation, "LayerNorm")
    assert node.role == "eager boundary" and node.weight_edges == (1, 2)
    assert "weight gradients caught in dx" in str(explanation)


def test_weights_ready_after_dx():
    net = nn.Dense(4, 3)

    @ms.jit
    def compiled(x):
        return net(x)

    with options(split_blocks=False):
        _, grad_fn = forward_and_gradfn(lambda x: compiled(x), normal(2, 4), weights=net.trainable_params())
    explanation = explain(grad_fn)
    assert [group.ready for group in explanation.groups] == [True]
    assert sorted(node.role for node in explanation.nodes) == ["eager boundary", "input", "weight", "weight"]
    assert "computed with dx" in str(explanation)
    grad_fn.compute_input_grad()
    assert explain(grad_fn).groups[0].captured_bytes == sum(parameter.nbytes for parameter in net.trainable_params())


def test_weight_side_unused_nodes_and_unreached_leaves():
    w, other, lost = weight("w", 4, 4), weight("other", 4), weight("lost", 2)
    _, grad_fn = forward_and_gradfn(lambda x, y: x @ ops.sin(w) + ops.exp(other), normal(2, 4), normal(3),
                                    weights=[w, lost], grad_position=(0, 1))
    explanation = explain(grad_fn)
    assert by_name(explanation, "Sin")[0].role == "weight side"
    assert by_name(explanation, "Exp")[0].role == "unused"
    assert [group.reached for group in explanation.groups] == [True, False]
    assert explanation.inputs[1].node is None
    text = str(explanation)
    assert "input inputs[1] (3) Float32, which no output depends on" in text and "zeros: unreached" in text


def test_agrees_with_the_checked_split():
    bench = bench_nets.transformer(1, 16, 2, 3)
    explanation = explain(forward_and_gradfn(bench.net, bench.x, weights=bench.net.trainable_params())[1])
    graph = BackwardGraph([node.edges for node in explanation.nodes], explanation.roots,
                          [leaf.node for leaf in explanation.inputs], [leaf.node for leaf in explanation.weights])
    plan = split_backward(graph)
    check_plan(graph, plan)
    assert explanation.closure == len(plan.closure)
    assert {frozenset(group.boundaries) for group in explanation.groups} == {
        frozenset((boundary.node, boundary.weight_edges) for boundary in group.boundaries) for group in plan.groups}


def test_after_dx_there_are_bytes_and_no_shapes():
    _, grad_fn = dense()
    grad_fn.compute_input_grad()
    explanation = explain(grad_fn)
    assert explanation.state == "dx computed"
    assert by_name(explanation, "Tanh")[0].shapes == ()
    assert by_name(explanation, "w")[0].shapes == ((4, 3),)
    assert [(group.captured_bytes, group.activation_bytes) for group in explanation.groups] == [(24, 32), (32, 32)]
    assert explanation.held_bytes == 120
    assert [group.nbytes for group in grad_fn.weight_groups] == [56, 64]


def test_a_group_that_is_done():
    _, grad_fn = dense()
    grad_fn.compute_input_grad()
    grad_fn.weight_groups[0].compute()
    explanation = explain(grad_fn)
    assert [group.done for group in explanation.groups] == [True, False]
    assert explanation.groups[0].captured_bytes == explanation.groups[0].activation_bytes == 0
    assert explanation.held_bytes == 64


def test_after_release():
    _, grad_fn = dense()
    grad_fn()
    with pytest.raises(StateError, match="the graph was released, so there is nothing left to explain"):
        explain(grad_fn)


def test_wrong_argument():
    with pytest.raises(ArgumentTypeError, match="explain takes a GradFunction or tensors, not a int"):
        explain(3)


def test_explaining_changes_nothing():
    out, grad_fn = dense()
    _, untouched = dense()
    explain(grad_fn)
    assert np.array_equal(grad_fn.compute_input_grad().asnumpy(), untouched.compute_input_grad().asnumpy())
    explain(grad_fn)
    for ours, theirs in zip(grad_fn.compute_weight_grad(), untouched.compute_weight_grad()):
        assert np.array_equal(ours.asnumpy(), theirs.asnumpy())


def test_no_input_gradients_asked_for():
    w = weight("w", 4, 4)
    explanation = explain(forward_and_gradfn(lambda x: ops.tanh(x @ w), normal(2, 4), weights=w, grad_position=None)[1])
    assert explanation.passes == 0 and explanation.inputs == ()
    assert [node.role for node in explanation.nodes] == ["weight side", "weight side", "weight"]
    assert "outputs" in str(explanation)


def test_names_of_nested_inputs():
    _, grad_fn = forward_and_gradfn(lambda x, mask=None: x["a"] + x["b"][0] * mask, {"a": normal(2), "b": [normal(2)]},
                                    mask=normal(2), grad_position=-1)
    assert [leaf.name for leaf in explain(grad_fn).inputs] == ["inputs[0]['a']", "inputs[0]['b'][0]", "kwargs['mask']"]


def test_fits_json():
    explanation = explain(dense()[1])
    loaded = json.loads(json.dumps(explanation.to_dict()))
    assert loaded["nodes"][1]["name"] == "Tanh" and loaded["groups"][0]["weights"] == ["w"]


@pytest.mark.parametrize("step", ["before dx", "after dx"])
def test_keeps_nothing_alive(step):
    gc.collect()
    gc.disable()
    try:
        w = weight("w", 4, 4)
        ledger = SavedTensorLedger(ignore=[w])
        with ledger.watch():
            _, grad_fn = forward_and_gradfn(lambda x: ops.tanh(x @ w), normal(2, 4), weights=w)
        if step == "after dx":
            grad_fn.compute_input_grad()
        explanation = explain(grad_fn)
        recording = weakref.ref(grad_fn._recording)
        del grad_fn
        assert recording() is None
        assert ledger.alive_bytes() == 0
        assert "MatMul" in str(explanation)
    finally:
        gc.enable()


class Projections(nn.Cell):
    """q, k and v of one activation."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Dense(8, 8, has_bias=False) for _ in range(3))

    def construct(self, x):
        x = ops.tanh(x)
        return self.q(x) * self.k(x) + self.v(x)


def convolutions():
    return nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, has_bias=True),
                             nn.Flatten(), nn.Dense(4 * 64, 5))


@pytest.mark.parametrize("case", [
    *((bench_nets.mlp(name, 16, 3, 4).net, (4, 16)) for name in ("tanh", "silu", "relu", "gelu")),
    (bench_nets.swiglu(8, 16, 4).net, (4, 8)), (bench_nets.transformer(2, 16, 2, 3).net, (2, 3, 16)),
    (Projections(), (4, 8)), (Projections(), (2, 4, 8)), (convolutions(), (2, 3, 8, 8))],
    ids=["tanh", "silu", "relu", "gelu", "swiglu", "transformer", "shared", "copied", "convolutions"])
def test_activation_bytes_are_what_the_ledger_measures(case):
    net, shape = case
    weights = net.trainable_params()
    ledger = SavedTensorLedger(ignore=weights)
    with ledger.watch():
        out, grad_fn = forward_and_gradfn(net, normal(*shape), weights=weights)
    grad_fn.compute_input_grad(ops.ones_like(out))
    assert activation_bytes(grad_fn) == ledger.alive_bytes()
    for group in grad_fn.weight_groups[:-1]:
        group.compute()
        assert activation_bytes(grad_fn) == ledger.alive_bytes()


def activation_bytes(grad_fn):
    """What the groups hold besides gradients, each storage once."""
    gradients = {}
    for state in grad_fn._recording._states.values():
        gradients.update(state.captured())
    return explain(grad_fn).held_bytes - sum(gradients.values())


def test_shared_activations_count_in_each_group_and_once_in_the_total():
    net = Projections()
    out, grad_fn = forward_and_gradfn(net, normal(4, 8), weights=net.trainable_params())
    grad_fn.compute_input_grad(ops.ones_like(out))
    explanation = explain(grad_fn)
    assert [group.activation_bytes for group in explanation.groups] == [128, 128, 128]
    assert activation_bytes(grad_fn) == 128


def test_a_stage_without_input_gradients_counts_its_inside():
    table, w = weight("table", 11, 8), weight("w", 8, 8)
    ids = Tensor(np.arange(6) % 11, ms.int32)
    ledger = SavedTensorLedger(ignore=[table, w])
    with ledger.watch():
        _, grad_fn = forward_and_gradfn(lambda i: ops.tanh(ops.gather(table, i, 0) @ w), ids, weights=[table, w])
    grad_fn.compute_input_grad()
    assert activation_bytes(grad_fn) == 2 * 6 * 8 * 4  # the embeddings and tanh, but not the ids
    assert ledger.alive_bytes() == activation_bytes(grad_fn) + ids.nbytes


def test_text_of_a_deep_graph_is_flat_and_cut():
    def chain(x):
        for _ in range(3000):
            x = ops.tanh(x)
        return x

    explanation = explain(forward_and_gradfn(chain, normal(2))[1])
    short, whole = str(explanation).splitlines(), explanation.text(max_nodes=None).splitlines()
    assert short[-1] == "... 2,800 more nodes left out: text(max_nodes=None) prints all"
    assert sum("Tanh" in line for line in whole) == 3000
    assert max(map(len, whole)) < 130


def test_text_prints_each_node_once_and_names_shared_ones():
    bench = bench_nets.transformer(1, 16, 2, 3)
    explanation = explain(forward_and_gradfn(bench.net, bench.x, weights=bench.net.trainable_params())[1])
    tree = str(explanation).split("further down.")[1]
    for number, node in enumerate(explanation.nodes):
        told = [line for line in tree.splitlines() if f"#{number} {node.name}" in line and "-> #" not in line]
        assert len(told) == (2 if node.name == "inputs[0]" else 1)
    assert tree.count("-> #1 AddExt") == 1 and tree.count("-> #41 Split") == 2


def test_table_of_groups_is_cut():
    weights = [weight(f"w{place}", 2, 2) for place in range(6)]

    def net(x):
        for w in weights:
            x = x @ w
        return x

    explanation = explain(forward_and_gradfn(net, normal(1, 2), weights=weights)[1])
    assert "... 2 more groups left out: text(max_nodes=None) prints all" in explanation.text(max_nodes=4)


def test_draw(tmp_path):
    pytest.importorskip("matplotlib")
    explain(dense()[1]).draw(tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").stat().st_size > 5000


def test_compiled_function():
    net = nn.SequentialCell(nn.Dense(4, 4), nn.Tanh(), nn.Dense(4, 3))
    weights = net.trainable_params()[::-1]

    @ms.jit
    def compiled(x):
        return net(x)

    with options(graph_recompute="elementwise"):
        _, grad_fn = forward_and_gradfn(compiled, normal(2, 4), weights=weights)
    explanation = explain(grad_fn)
    assert explanation.engine == "graph" and explanation.fallback_reason is None
    assert sorted(name for group in explanation.groups for name in group.weights) == \
        sorted(weight.name for weight in weights)
    assert [node.role for node in explanation.nodes].count("weight") == 4
    grad_fn.compute_input_grad()
    assert sum(group.captured_bytes for group in explain(grad_fn).groups) >= grad_fn.nbytes > 0
    assert "dw0" in str(explanation)


# --- the history of a tensor ------------------------------------------------------------------------------------------

def test_history_of_a_tensor(recording):
    w, twice = weight("w", 4, 3), weight("twice", 3)
    with recording():
        shared = ops.tanh(ops.matmul(normal(2, 4), w))
        loss = (shared * twice + ops.sin(shared)).sum()
    explanation = explain(loss)
    assert (explanation.state, explanation.engine, explanation.groups) == ("history", "pynative", ())
    assert {(leaf.name, leaf.shape, leaf.dtype) for leaf in explanation.leaves} == {
        ("w", (4, 3), "Float32"), ("twice", (3,), "Float32")}
    assert sorted(node.name for node in explanation.nodes) == [
        "AddExt", "MatMulExt", "Mul", "Sin", "SumExt", "Tanh", "twice", "w"]
    assert {node.role for node in explanation.nodes} == {"operation", "leaf"}
    tree = str(explanation).split("further down.")[1]
    assert tree.count("-> #") == 1 and "Tanh (2, 3)  shared by 2" in tree and "w (4, 3)" in tree
    assert all(f"#{number} {node.name}" in tree for number, node in enumerate(explanation.nodes))
    json.dumps(explanation.to_dict())


def test_history_inside_of_value_and_grad(tmp_path):
    net, seen = nn.SequentialCell(nn.Dense(4, 4), nn.Tanh()), []

    def loss(x):
        result = net(x).sum()
        seen.append(explain(result, weights=net.trainable_params()))
        return result

    _, grads = ms.value_and_grad(loss, None, net.trainable_params())(normal(2, 4))
    assert {"0.weight", "0.bias"} <= {leaf.name for leaf in seen[0].leaves}
    _, plain = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(normal(2, 4))
    assert all(np.array_equal(one.asnumpy(), other.asnumpy()) for one, other in zip(grads, plain))
    pytest.importorskip("matplotlib")
    seen[0].draw(tmp_path / "history.svg")
    assert "not split" in (tmp_path / "history.svg").read_text() or (tmp_path / "history.svg").stat().st_size > 5000


def test_history_of_several_tensors(recording):
    w = weight("w", 4, 3)
    with recording():
        inner = normal(2, 4) @ w
        outer = ops.tanh(inner)
    explanation = explain([outer, normal(2), inner])
    assert explanation.roots == ((0, 0), (1, 0))
    assert [node.name for node in explanation.nodes] == ["Tanh", "MatMulExt", "w"]
    assert "output" in str(explanation)


def test_explaining_a_history_keeps_nothing_alive(recording):
    w = weight("w", 4, 4)
    ledger = SavedTensorLedger(ignore=[w])
    with recording(), ledger.watch():
        loss = ops.tanh(normal(2, 4) @ w).sum()
    explanation = explain(loss)
    assert ledger.alive_bytes() == 2 * 2 * 4 * 4
    del loss
    assert ledger.alive_bytes() == 0
    assert len(explanation.nodes) == 4


@pytest.mark.parametrize("make, error, message", [
    (lambda: normal(2), ArgumentValueError, "the tensor has no history to explain: compute it while gradients are"),
    (lambda: weight("w", 2), ArgumentValueError, "the tensor has no history to explain"),
    (lambda: [normal(2), normal(3)], ArgumentValueError, "none of the tensors has a history to explain"),
    (lambda: [], ArgumentTypeError, "explain takes a GradFunction or tensors, not a list"),
    (lambda: [normal(2), 3], ArgumentTypeError, "explain takes a GradFunction or tensors, not a list")])
def test_no_history(make, error, message):
    with pytest.raises(error, match=message) as caught:
        explain(make())
    assert "\n" not in str(caught.value)


def test_weights_are_for_tensors():
    with pytest.raises(ArgumentTypeError, match="weights are for explaining a tensor"):
        explain(dense()[1], weights=[])


def test_bytes_of_compiled_blocks_are_added():
    block = nn.Dense(4, 4)
    zero_bubble(block, mode="graph")
    _, grad_fn = forward_and_gradfn(lambda x: block(ops.tanh(block(x))), normal(2, 4), weights=block.trainable_params())
    assert explain(grad_fn).saved_bytes == 2 * (2 * 4 * 4)
    grad_fn.compute_input_grad()
    assert explain(grad_fn).saved_bytes == 2 * (2 * 4 * 4)
    assert explain(dense()[1]).saved_bytes is None
