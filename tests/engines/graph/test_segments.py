"""Large pieces are cut into runs where little crosses, and compute what they would as one."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Parameter, nn, ops

from mindspore_zb.engines.graph import runs
from mindspore_zb.engines.graph.partition import Piece
from mindspore_zb.engines.graph.segments import MOST_OPERATIONS, cheapest_cuts, segments

from tests.engines.graph.test_engine import check, graph, normal
from tests.networks.compare import assert_same, unsplit_grads


def parts_of(cuts):
    return list(zip(cuts, cuts[1:]))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), min_size=0, max_size=9), st.integers(1, 5))
def test_cuts_are_the_cheapest_there_are(inside, most):
    crossing = [0, *inside, 0]
    count = len(crossing) - 1
    every = [(0, *chosen, count) for size in range(count) for chosen in itertools.combinations(range(1, count), size)]
    possible = [cuts for cuts in every if all(end - start <= most for start, end in parts_of(cuts))
                and None not in [crossing[cut] for cut in cuts]]
    found = cheapest_cuts(crossing, most)
    assert (found is None) == (not possible)
    if possible:
        def cost(cuts):
            return sum(crossing[cut] for cut in cuts) + 10 * len(cuts)

        assert tuple(found) in possible and cost(found) == min(map(cost, possible))


class Line:
    """A graph of nodes that each read the one before; some give no tensor."""

    effects, written = (), frozenset()

    def __init__(self, count, no_tensors):
        self.order = tuple(map(str, range(count)))
        self._no_tensors = no_tensors

    def reads(self, node):
        return (str(int(node) - 1),) if node != "0" else ()

    def node_of(self, value):
        return value

    def is_static_tensor(self, value):
        return int(value) not in self._no_tensors


@pytest.mark.parametrize("no_tensors, count", [((), 2), ((3,), 3), ((3, 4), 3), ((1, 2, 3, 4), 1)])
def test_only_tensors_cross(no_tensors, count):
    line = Line(8, no_tensors)
    found = segments(line, Piece("line", frozenset(line.order), (), ("7",)), 4)
    assert [node for run in found for node in sorted(run.nodes)] == list(line.order)
    assert len(found) == count and (count == 1 or all(len(run.nodes) <= 4 for run in found))
    assert not {int(value) for run in found[:-1] for value in run.gives} & {*no_tensors}


class Chain(nn.Cell):
    """Many small operations: the more of them, the more runs."""

    def __init__(self, steps, width=4):
        super().__init__()
        self.steps = steps
        self.first, self.last = nn.Dense(width, width), nn.Dense(width, width)

    def construct(self, x):
        x = self.first(x)
        for _ in range(self.steps):
            x = ops.tanh(x) + 0.5 * ops.sin(x)
        return self.last(x)


class TestRuns:
    """What is run of a piece."""

    @pytest.mark.slow
    @pytest.mark.parametrize("steps", [10, 70])
    def test_values_of_runs(self, steps, planned):
        net = Chain(steps)
        check(net, normal(3, 4), net.trainable_params())
        plan, = planned
        for piece in (plan.forward, plan.dx, *plan.dw):
            assert set().union(*(run.nodes for run in piece.runs)) == piece.whole.nodes
            assert all(len(run.nodes) <= MOST_OPERATIONS for run in piece.runs)
        assert (len(plan.forward.runs) > 1) == (len(plan.dx.runs) > 1) == (steps > 10)

    @pytest.mark.slow
    def test_what_crosses_between_runs_only_is_not_held(self, planned):
        def fn(x):
            total = x
            for step in range(120):
                total = total + ops.sin(x * step)
            return total

        x, sens = normal(3, 4), normal(3, 4, seed=1)
        _, grad_fn = graph(fn, x, weights=())
        plan, program = planned[0], grad_fn._recording.program
        inside = {value for run in plan.forward.runs for value in run.gives} - {*plan.forward.whole.gives}
        assert len(plan.forward.runs) > 1 and inside
        values = {name: x for name in program.layout.inputs}
        program.forward.run(values)
        assert {*values} == {*program.layout.inputs, *plan.forward.whole.gives}
        right = unsplit_grads(fn, (x,), (), sens)
        assert_same(grad_fn.compute_input_grad(sens), right.dx, "dx")

    def test_a_piece_with_effects_stays_whole(self, planned):
        class Counting(nn.Cell):
            def __init__(self):
                super().__init__()
                self.count = Parameter(normal(1), name="count", requires_grad=False)
                self.dense = nn.Dense(4, 4)

            def construct(self, x):
                x = self.dense(x)
                for _ in range(60):
                    x = ops.tanh(x) * ops.sin(x)
                ops.assign(self.count, self.count + 1)
                return x * self.count

        net = Counting()
        before = net.count.asnumpy().copy()
        _, grad_fn = graph(net, normal(3, 4), weights=net.trainable_params())
        plan, = planned
        assert len(plan.forward.runs) == 1 < len(plan.dx.runs) and len(plan.forward.whole.nodes) > MOST_OPERATIONS
        sens = normal(3, 4, seed=2)
        dx, dw = grad_fn.compute_input_grad(sens), grad_fn.compute_weight_grad()
        assert (net.count.asnumpy() == before + 1).all()
        net.count.set_data(net.count - 1)
        right = unsplit_grads(net, (normal(3, 4),), net.trainable_params(), sens)
        assert_same((dx, dw), (right.dx, right.dw), "gradients")

    @pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
    def test_tuples_do_not_cross(self, most, planned, monkeypatch):
        monkeypatch.setattr(runs, "MOST_NODES", most)
        weight = Parameter(normal(6), name="weight")

        def fn(x):
            parts = ops.split(ops.tanh(x * weight), (1, 2, 3), axis=1)
            x = ops.exp(ops.concat(parts[::-1], 1))
            return x * ops.sin(x) + ops.concat(parts, 1)

        check(fn, normal(2, 6), [weight])
        plan, = planned
        assert all(plan.graph.is_static_tensor(value) for piece in (plan.forward, plan.dx, *plan.dw)
                   for run in piece.runs for value in (*run.reads, *run.gives))
