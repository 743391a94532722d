"""Small tensors cross in packs: with the same values, held for no longer, and refused if a pack were taken apart wrongly."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, nn, ops
from mindspore.train.mind_ir_pb2 import ModelProto

from mindspore_zb import options
from mindspore_zb.engines.graph import packing, runs
from mindspore_zb.engines.graph.cache import clear_programs
from mindspore_zb.engines.graph.checking import check_model
from mindspore_zb.engines.graph.emit import emit_piece
from mindspore_zb.engines.graph.joint import Call, compile_joint
from mindspore_zb.engines.graph.mindir import JointGraph
from mindspore_zb.engines.graph.native import export_graph
from mindspore_zb.engines.graph.partition import CutSettings, Piece, cut_joint
from mindspore_zb.engines.graph.reading import index_model
from mindspore_zb.errors import MalformedGraphError
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import zeros

from tests.engines.graph.test_engine import Mlp, check, graph, normal
from tests.engines.graph.test_segments import Chain
from tests.networks.compare import assert_same, unsplit_grads
from tests.networks.compiled import function_of
from tests.test_values_random import NOT_COMPILED, check_all


def packs_of(grad_fn):
    """The shapes and dtypes of the packs that a recording holds."""
    return sorted((tuple(value.shape), str(value.dtype)) for name, value in grad_fn._recording.values.items()
                  if name.startswith("packing."))


class TestValues:
    """Whatever is packed."""

    @pytest.mark.parametrize("dtype", [ms.float32, ms.float16, ms.float64], ids=str)
    def test_floats(self, dtype):
        def fn(x):
            x = ops.cast(x, dtype)
            for _ in range(4):
                x = ops.tanh(x) * ops.sin(x)
            return ops.cast(x, ms.float32)

        x, sens = normal(2, 3), normal(2, 3, seed=1)
        _, grad_fn = graph(fn, x, weights=())
        assert all(str(dtype) == found for _, found in packs_of(grad_fn)) and packs_of(grad_fn)
        right = unsplit_grads(fn, (x,), (), sens)
        assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx", 2e-3 if dtype == ms.float16 else None)

    def test_a_dtype_that_the_device_cannot_pack_crosses_alone(self, monkeypatch):
        def fn(x, y):
            z = ops.cast(x, ms.bfloat16)
            for step in range(4):
                z = z * ops.cast(y + float(step), ms.bfloat16)
            return ops.cast(z, ms.float32)

        inputs, sens = (normal(2, 3), normal(2, 3, seed=1)), normal(2, 3, seed=2)
        right = unsplit_grads(fn, inputs, (), sens, grad_position=0)
        for can in (True, False):
            if not can:
                clear_programs()
                monkeypatch.setattr(packing, "stacking", lambda dtype: None)
            _, grad_fn = graph(fn, *inputs, weights=())
            assert can or not packs_of(grad_fn)
            assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx", 2e-2)

    def test_what_is_larger_than_its_shape_crosses_alone(self, monkeypatch):
        """An LSTM gives its backward more than the shapes of its results say."""
        monkeypatch.setattr(packing, "FEWEST", 1)
        clear_programs()
        net = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
        inputs = normal(5, 2, 3), (normal(4, 2, 4, seed=3), normal(4, 2, 4, seed=4))
        sens = normal(5, 2, 8), (normal(4, 2, 4, seed=5), normal(4, 2, 4, seed=6))
        right = unsplit_grads(net, inputs, net.trainable_params(), sens)
        for _ in range(5):
            _, grad_fn = graph(net, *inputs, weights=net.trainable_params())
            assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx")
            assert_same(grad_fn.compute_weight_grad(), right.dw, "dw")
        clear_programs()

    def test_masks_and_integers(self):
        def fn(x):
            for step in range(4):
                index = ops.cast(ops.argmax(x, 1), ms.int32)
                x = ops.select(x > 0.1 * step, x * 2, x * x) + ops.gather(x, index, 0)
            return x

        _, grad_fn = graph(fn, normal(3, 3), weights=())
        assert {dtype for _, dtype in packs_of(grad_fn)} >= {"Bool", "Float32"}
        check(fn, normal(3, 3), ())

    @pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 1, 3)])
    def test_shapes(self, shape):
        def fn(x):
            for _ in range(5):
                x = ops.tanh(x) * ops.sin(x)
            return x

        _, grad_fn = graph(fn, normal(*shape), weights=())
        assert [(found[1:], dtype) for found, dtype in packs_of(grad_fn)] == ([] if 0 in shape else [(shape, "Float32")])
        if 0 not in shape:
            check(fn, normal(*shape), ())

    def test_results_are_no_parts_of_packs(self):
        weights = [Parameter(normal(4, 4, seed=seed), name=f"w{seed}") for seed in range(4)]

        def fn(x):
            outs = ()
            for weight in weights:
                x = ops.tanh(x @ weight)
                outs += (x,)
            return outs

        x, sens = normal(4, 4), tuple(normal(4, 4, seed=seed) for seed in range(4))
        outs, grad_fn = graph(fn, x, weights=weights)
        right = unsplit_grads(fn, (x,), weights, sens)
        assert_same(outs, right.out, "out")
        for out in outs:
            out.add_(1.0)  # what the caller does to them is not seen by a pack that copied them
        outs, grad_fn = graph(fn, x, weights=weights)
        assert_same((grad_fn.compute_input_grad(sens), grad_fn.compute_weight_grad()), (right.dx, right.dw), "gradients")

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::mindspore_zb.fallback.FallbackWarning")
    @pytest.mark.parametrize("first, most, fewest, policy", [(0, 6, 1, "none"), (10, 8, 2, "elementwise"),
                                                             (20, 10, 2, "cheap")])
    def test_random_programs_in_short_runs(self, first, most, fewest, policy, tmp_path, monkeypatch):
        monkeypatch.setattr(runs, "MOST_NODES", most)
        monkeypatch.setattr(packing, "FEWEST", fewest)
        with options(graph_recompute=policy):
            engines = check_all(first, lambda program, weights: ms.jit(function_of(program, weights, tmp_path)),
                                NOT_COMPILED)
        assert engines and {engine for engine, _ in engines.values()} == {"graph"}


class TestMemory:
    """What is held is what would be held without packs."""

    @pytest.mark.slow
    @pytest.mark.parametrize("pieces", ["auto", None])
    @pytest.mark.parametrize("steps", [4, 40])
    def test_bytes_at_every_moment(self, steps, pieces, monkeypatch):
        net = nn.SequentialCell(Chain(steps), Mlp(4, 5), Chain(3))
        x, sens, found, held_packs = normal(3, 4), normal(3, 4, seed=1), [], []
        for small in (0, packing.SMALL):
            monkeypatch.setattr(packing, "SMALL", small)
            clear_programs()
            with options(graph_pieces=pieces):
                _, grad_fn = graph(net, x, weights=net.trainable_params())
            moments = [sum(grad_fn._recording.held_storages().values())]
            held_packs.append(packs_of(grad_fn))
            grad_fn.compute_input_grad(sens)
            moments.append(grad_fn.nbytes)
            for group in grad_fn.weight_groups:
                group.compute()
                moments.append(grad_fn.nbytes)
            found.append(moments)
        clear_programs()
        assert found[0] == found[1] and found[0][-1] == 0 and held_packs[1] and not held_packs[0]

    def test_large_ones_cross_alone(self, monkeypatch):
        monkeypatch.setattr(packing, "SMALL", 3 * 4 * 4)
        clear_programs()
        for rows, packed in ((3, True), (4, False)):
            net = Chain(5)
            _, grad_fn = graph(net, normal(rows, 4), weights=net.trainable_params())
            assert bool(packs_of(grad_fn)) == packed
        clear_programs()

    def test_packs_are_of_limited_size(self, monkeypatch):
        monkeypatch.setattr(packing, "MOST", 8)
        net = Chain(10)
        check(net, normal(3, 4), net.trainable_params())
        clear_programs()
        _, grad_fn = graph(net, normal(3, 4), weights=net.trainable_params())
        sizes = [shape[0] for shape, _ in packs_of(grad_fn)]
        assert max(sizes) == 8 and len(sizes) > 1
        clear_programs()


class Values:
    """Stands for a graph: four small tensors, each the result of a node of its name."""

    def node_of(self, value):
        return value

    def is_static_tensor(self, value):
        return True

    def nbytes(self, value):
        return 4

    def meta(self, value):
        return (1,), ms.float32


def test_what_several_runs_give_is_not_packed():
    values = ("a", "b", "c", "d")
    forward, reader = Piece("forward", frozenset(), (), values), Piece("dx", frozenset(), values, ("x",))
    assert packing.choose_packs(Values(), [forward, reader], ()) == [values]
    assert packing.choose_packs(Values(), [forward, reader], ("b",)) == [("a", "c", "d")]
    again = Piece("dw0", frozenset(), (), ("a",))
    assert packing.choose_packs(Values(), [forward, reader, again], ()) == [("b", "c", "d")]
    assert packing.choose_packs(Values(), [forward, reader, Piece("dw0", frozenset(), ("a", "b"), ())], ()) == []


@pytest.mark.slow
def test_what_is_computed_again_is_not_packed(monkeypatch):
    """Several runs give it, each its own."""
    monkeypatch.setattr(runs, "MOST_NODES", 8)
    monkeypatch.setattr(packing, "FEWEST", 2)

    def fn(x, y):
        a = ops.relu(y) * x
        b = a + y + a
        c, d = ops.sin(b), ops.relu(b) * y
        e = d * y
        f = ops.cos(d) - c
        g, h = ops.sin(f), ops.tanh(e)
        k = c + y
        m = ops.cos(c) - x
        n = ops.sin(y) + h
        p = ops.tanh(n)
        return g + b + (a + h) + (m + (a + h)) + ops.tanh(p) + ops.sin(n) + e * f + ops.tanh(ops.sin(k))

    inputs, sens = (normal(2, 3), normal(2, 3, seed=1)), normal(2, 3, seed=2)
    right = unsplit_grads(fn, inputs, (), sens, grad_position=(0, 1))
    for policy in ("none", "views", "elementwise", "cheap", "selective"):
        clear_programs()
        with options(graph_recompute=policy):
            _, grad_fn = graph(fn, *inputs, weights=(), grad_position=(0, 1))
        assert_same(grad_fn.compute_input_grad(sens), right.dx, f"dx, {policy}")
    clear_programs()


class _Own(nn.Cell):
    """Packs and unpacks as a user would."""

    def construct(self, stack, *tensors):
        return ops.stack(tensors), ops.unstack(stack)[::-1]


@pytest.mark.parametrize("count, shape, dtype", [(3, (2, 3), ms.float32), (7, (), ms.float16), (2, (4,), ms.bool_),
                                                 (5, (1, 2, 3), ms.int64)])
def test_packs_are_written_as_mindspore_writes_them(count, shape, dtype):
    graph = JointGraph(export_graph(_Own(), [zeros((count, *shape), dtype), *[zeros(shape, dtype)] * count]))
    extension = packing._Extension(graph)
    stack, entries = extension.add(graph.inputs[1:])
    extended = JointGraph(extension.model)
    check_model(extension.model)
    own_stack, *own_entries = graph.result()

    def same(name, other, inputs):
        one, own = extended.proto(name), graph.proto(other)
        assert list(one.attribute) == list(own.attribute) and list(one.node_attr) == list(own.node_attr)
        assert list(one.input) == inputs and extended.kind(name) == graph.kind(other)
        if extended.kind(name) != "Constant":
            primitives = [of.primitives[proto.op_type[5:]] for of, proto in ((extended, one), (graph, own))]
            assert list(primitives[0].attribute) == list(primitives[1].attribute)
            assert primitives[0].prim_type == primitives[1].prim_type

    gather = extended.proto(stack).input[0]
    same(stack, own_stack, [gather])
    same(gather, graph.proto(own_stack).input[0], list(graph.inputs[1:]))
    for entry, own_entry in zip(entries, own_entries[::-1]):
        apart, index = extended.proto(entry).input
        same(entry, own_entry, [apart, index])
        same(index, graph.proto(own_entry).input[1], [])
        same(apart, graph.proto(own_entry).input[0], [stack])
    assert len({*entries}) == len(entries) == count


class TestRefused:
    """A run that packs or unpacks in another way than planned does not reach the loader."""

    @pytest.fixture
    def plan(self):
        leaves, structure = flatten(((normal(2, 3),), {}))

        def fn(x):
            for _ in range(5):
                x = ops.tanh(x) * ops.sin(x)
            return x

        joint = compile_joint(Call(fn, structure, leaves, (0,), (), False))
        return runs.plan_runs(joint, cut_joint(joint, CutSettings()))

    def models(self, plan):
        original = index_model(plan.graph.model)
        for piece in (plan.forward, plan.dx):
            run, = piece.runs
            yield emit_piece(plan.graph, run, f"test_{run.name}"), original

    def test_as_they_are(self, plan):
        for model, original in self.models(plan):
            check_model(model, original)
            assert {"Stack", "Unstack"} & {primitive.op_type for primitive in model.primitives}

    @pytest.mark.parametrize("piece", [0, 1], ids=["packing", "unpacking"])
    def test_in_another_order(self, plan, piece):
        model, original = list(self.models(plan))[piece]
        several = [node.name for node in model.graph.node if node.name.startswith("packing.") and len(node.input) > 1]
        assert several
        for before, name in zip([*several[-1:], *several], several):
            changed = ModelProto()
            changed.CopyFrom(model)
            nodes = {node.name: node for node in changed.graph.node}
            if piece == 0:
                nodes[name].input[0], nodes[name].input[1] = nodes[name].input[1], nodes[name].input[0]
            elif before != several[-1]:
                nodes[name].input[1] = nodes[before].input[1]  # the entry before
            else:
                continue
            with pytest.raises(MalformedGraphError, match="in the original graph"):
                check_model(changed, original)

    def test_along_another_axis(self, plan):
        for model, original in self.models(plan):
            changed = ModelProto()
            changed.CopyFrom(model)
            for primitive in changed.primitives:
                if primitive.op_type in ("Stack", "Unstack"):
                    next(attribute for attribute in primitive.attribute if attribute.name == "axis").i = 1
            with pytest.raises(MalformedGraphError, match="is not that of the original graph"):
                check_model(changed, original)


def test_a_call_of_many_small_residuals_hands_over_few(planned):
    def fn(x):
        for _ in range(34):
            x = ops.tanh(x) * ops.sin(x)
        return x

    _, grad_fn = graph(fn, normal(2, 2), weights=())
    plan, = planned
    assert sum(len(run.gives) for run in plan.forward.runs) <= 6
    assert sum(len(run.reads) for run in plan.dx.runs) <= 12
    sens = np.ones((2, 2), np.float32)
    right = unsplit_grads(fn, (normal(2, 2),), (), ms.Tensor(sens))
    assert_same(grad_fn.compute_input_grad(ms.Tensor(sens)), right.dx, "dx")
