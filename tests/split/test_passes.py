"""Tests of :mod:`mindspore_zb.split.passes`: dx in passes and dw in groups give the unsplit gradients."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from mindspore_zb.split import DxPass, GraphError, plan_passes, split_backward
from mindspore_zb.split.passes import Cut

from . import oracle
from .executor import ExecutionError, run_split
from .strategies import examples, freed_and_eager, graphs, named, rearranged


def requested(graph, gradients):
    """The gradients of inputs and weights that got one."""
    leaves = {*graph.inputs, *graph.weights}
    return {node: slots for node, slots in gradients.items() if node in leaves and slots}


@examples(500)
@given(graphs(), st.data())
def test_split_gradients_are_the_unsplit_ones(graph, data):
    """The promise of the package: for any graph, freed nodes, eager boundaries and order of groups."""
    plan = split_backward(graph)
    freed, eager = data.draw(freed_and_eager(plan))
    order = data.draw(st.permutations(range(len(plan.groups))))
    factors = oracle.Factors(data.draw(st.integers(0, 3)))
    expected = requested(graph, oracle.unsplit_gradients(graph, factors))
    assert run_split(graph, plan, factors, freed, eager, order) == expected


@examples(200)
@given(graphs(), st.data())
def test_split_gradients_with_as_much_freed_as_can_be(graph, data):
    plan = split_backward(graph)
    boundaries = {boundary.node for group in plan.groups for boundary in group.boundaries}
    eager = boundaries if data.draw(st.booleans()) else ()
    freed = set(plan.closure) - (boundaries - set(eager))
    factors = oracle.Factors()
    expected = requested(graph, oracle.unsplit_gradients(graph, factors))
    assert run_split(graph, plan, factors, freed, eager) == expected


@examples(300)
@given(graphs(), st.data())
def test_passes_are_the_fewest(graph, data):
    """A node runs in the pass that the worst path to it demands, no later; passes without nodes do not exist."""
    plan = split_backward(graph)
    freed, eager = data.draw(freed_and_eager(plan))
    number = oracle.pass_numbers(graph, freed)
    numbers = sorted({number[node] for node in plan.closure if node not in graph.inputs})
    passes = plan_passes(graph, plan, freed, eager)
    if freed:
        assert [one.frees for one in passes] == [number % 2 == 1 for number in numbers]
        for one, its_number in zip(passes, numbers):
            assert {number[node] for node, _ in one.entries} == {its_number}
            assert {number[cut.node] for cut in one.cuts} <= {its_number}
    else:
        assert len(passes) == bool(numbers)


@examples(200)
@given(graphs(), st.data())
def test_entries_exits_and_cuts_are_consistent(graph, data):
    plan = split_backward(graph)
    freed, eager = data.draw(freed_and_eager(plan))
    passes = plan_passes(graph, plan, freed, eager)
    rank = range(len(graph.edges)) if graph.rank is None else graph.rank
    for one in passes:
        assert one.entries
        for targets in (one.entries, one.exits):
            assert list(targets) == sorted(set(targets), key=lambda target: (rank[target[0]], target))
        assert {cut.target for cut in one.cuts} <= set(one.exits)
        assert all(graph.edges[cut.node][cut.index] == cut.target for cut in one.cuts)
    cuts = Counter((cut.node, cut.index) for one in passes for cut in one.cuts)
    assert all(count == 1 for count in cuts.values())
    entries = Counter(target for one in passes for target in one.entries)
    assert all(count == 1 for count in entries.values())
    inner_roots = {root for root in graph.roots if root[0] in plan.closure and root[0] not in graph.inputs}
    to_closure = {cut.target for one in passes for cut in one.cuts if cut.target[0] in plan.closure}
    assert set(entries) == inner_roots | to_closure


@examples(200)
@given(graphs(), st.data())
def test_numbers_of_nodes_and_order_of_freed_do_not_matter(graph, data):
    plan = split_backward(graph)
    freed, eager = data.draw(freed_and_eager(plan))
    number = data.draw(st.permutations(range(len(graph.edges))))
    graph_again = rearranged(graph, number)
    again = plan_passes(graph_again, split_backward(graph_again), {number[node] for node in freed},
                        frozenset(number[node] for node in eager))
    old = {new: node for node, new in enumerate(number)}

    def back(targets):
        return sorted((old[node], slot) for node, slot in targets)

    def comparable(one, targets):
        return one.frees, targets(one.entries), targets(one.exits)

    passes = plan_passes(graph, plan, list(reversed(freed)), list(reversed(eager)))
    assert [comparable(one, back) for one in again] == [comparable(one, sorted) for one in passes]
    assert [sorted((old[cut.node], cut.index) for cut in one.cuts) for one in again] == \
           [sorted((cut.node, cut.index) for cut in one.cuts) for one in passes]


@examples(150)
@given(graphs(), st.data())
def test_freeing_where_dw_starts_is_refused(graph, data):
    plan = split_backward(graph)
    boundaries = sorted({boundary.node for group in plan.groups for boundary in group.boundaries})
    for node in boundaries:
        others = data.draw(st.permutations([other for other in boundaries if other != node]))
        with pytest.raises(GraphError, match=f"node {node} is where dw starts"):
            plan_passes(graph, plan, freed=[node], eager=others)
        plan_passes(graph, plan, freed=[node], eager=[node])


def test_the_first_of_several_wrong_nodes_is_named():
    graph, number = named({"top": ["low", "a"], "low": ["x", "b"]}, ["top"], ["x"], ["a", "b"])
    with pytest.raises(GraphError, match=f"node {number['top']} is"):
        plan_passes(graph, split_backward(graph), freed=[number["low"], number["top"]])


def test_a_cycle_is_refused():
    graph, number = named({"a": ["b"], "b": ["a", "x"]}, ["a"], ["x"])
    with pytest.raises(GraphError, match="cycle"):
        plan_passes(graph, split_backward(graph), freed=[number["b"]])


def test_nothing_freed_is_one_pass():
    graph, number = named({"mul": ["matmul", "x"], "matmul": ["x", "w"]}, ["mul"], ["x"], ["w"])
    x, mul = number["x"], number["mul"]
    assert plan_passes(graph, split_backward(graph)) == (DxPass(False, ((mul, 0),), ((x, 0),), ()),)


def test_no_closure_is_no_pass():
    graph, _ = named({"matmul": [None, "w"]}, ["matmul"], [None], ["w"])
    assert plan_passes(graph, split_backward(graph)) == ()


def test_an_input_returned_as_it_is_takes_no_pass():
    """Its output gradient is its gradient: no run can start at a leaf."""
    graph, _ = named({}, ["x"], ["x"])
    assert plan_passes(graph, split_backward(graph)) == ()


def test_an_eager_node_leaves_its_weight_gradients_behind():
    """LayerNorm (x, gamma, beta): its one kernel has all three; gamma and beta are caught for dw."""
    graph, number = named({"norm": ["x", "gamma", "beta"]}, ["norm"], ["x"], ["gamma", "beta"])
    norm, x, gamma, beta = (number[name] for name in ("norm", "x", "gamma", "beta"))
    only, = plan_passes(graph, split_backward(graph), freed=[norm], eager=[norm])
    assert only == DxPass(True, ((norm, 0),), ((x, 0), (gamma, 0), (beta, 0)),
                          (Cut(norm, 1, (gamma, 0)), Cut(norm, 2, (beta, 0))))


def test_branches_side_by_side_share_passes():
    """Kept, freed, kept on each of five branches: three passes, not fifteen."""
    edges = {"sum": [f"silu{branch}" for branch in range(5)]}
    for branch in range(5):
        edges.update({f"silu{branch}": [f"matmul{branch}"], f"matmul{branch}": ["x", f"w{branch}"]})
    graph, number = named(edges, ["sum"], ["x"], [f"w{branch}" for branch in range(5)])
    passes = plan_passes(graph, split_backward(graph), freed=[number[f"silu{branch}"] for branch in range(5)])
    assert [one.frees for one in passes] == [False, True, False]


def test_a_short_cut_waits_for_the_long_way():
    """join is met at once from top, and later through the freed node: it and all below must wait for that."""
    graph, number = named({"top": ["join", "silu"], "silu": ["join:1"], "join": ["low", "a"], "low": ["x", "b"]},
                          ["top"], ["x"], ["a", "b"])
    passes = plan_passes(graph, split_backward(graph), freed=[number["silu"]])
    top, silu, join = ((number[name], 0) for name in ("top", "silu", "join"))
    assert [one.entries for one in passes] == [(top,), (silu,), (join, (number["join"], 1))]


@examples(200)
@given(graphs(), st.data())
def test_the_executor_refuses_wrong_passes(graph, data):
    """The referee is not blind: a pass without one of its entries, exits or cuts never gives the right gradients."""
    plan = split_backward(graph)
    freed, eager = data.draw(freed_and_eager(plan))
    factors = oracle.Factors()
    passes = plan_passes(graph, plan, freed, eager)
    right = run_split(graph, plan, factors, freed, eager)

    def goes_wrong(place, *instead):
        wrong = (*passes[:place], *instead, *passes[place + 1:])
        try:
            return run_split(graph, plan, factors, freed, eager, passes=wrong) != right
        except ExecutionError:
            return True

    for place, one in enumerate(passes):
        for field in ("entries", "exits", "cuts"):
            values = getattr(one, field)
            for index in range(len(values)):
                fewer = values[:index] + values[index + 1:]
                assert goes_wrong(place, replace(one, **{field: fewer}))
        assert goes_wrong(place)
        assert goes_wrong(place, one, one)
        assert goes_wrong(place, replace(one, frees=not one.frees))
