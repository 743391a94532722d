"""Tests of :mod:`mindspore_zb.split.plan`: the whole split, what it is invariant under, and known graphs."""

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, strategies as st

from mindspore_zb.split import Boundary, BackwardGraph, Group, GraphError, SplitPlan, check_plan, split_backward

from . import oracle
from .strategies import examples, graphs, named, rearranged


@examples(300)
@given(graphs())
def test_dx_and_dw_run_what_is_needed_and_nothing_else(graph):
    plan = split_backward(graph)
    owned = [*plan.closure, *(node for group in plan.groups for node in group.nodes)]
    assert len(owned) == len(set(owned))
    assert set(owned) == oracle.needed(graph)
    assert set(plan.closure) == oracle.closure(graph)


@examples(300)
@given(graphs())
def test_every_weight_and_input_has_one_place(graph):
    plan = split_backward(graph)
    placed = [*plan.unreached_weights, *(position for group in plan.groups for position in group.weights)]
    assert sorted(placed) == list(range(len(graph.weights)))
    reached = oracle.needed(graph)
    assert plan.unreached_weights == tuple(position for position, leaf in enumerate(graph.weights)
                                           if leaf not in reached)
    assert plan.unreached_inputs == tuple(position for position, leaf in enumerate(graph.inputs)
                                          if leaf not in reached)
    for group in plan.groups:
        assert {graph.weights[position] for position in group.weights} == set(group.nodes) & set(graph.weights)


@examples(300)
@given(graphs())
def test_boundaries_and_roots_are_where_gradients_enter_dw(graph):
    plan = split_backward(graph)
    rank = range(len(graph.edges)) if graph.rank is None else graph.rank
    for group in plan.groups:
        crossing = {(node, index) for node, index in oracle.crossing_edges(graph)
                    if graph.edges[node][index][0] in group.nodes}
        assert {(boundary.node, index) for boundary in group.boundaries
                for index in boundary.weight_edges} == crossing
        for boundary in group.boundaries:
            assert boundary.input_edges == tuple(index for index, edge in enumerate(graph.edges[boundary.node])
                                                 if edge is not None and edge[0] in plan.closure)
        assert sorted(group.roots) == sorted({root for root in graph.roots if root[0] in group.nodes})
        order = [rank[boundary.node] for boundary in group.boundaries]
        assert order == sorted(order)
    begins = [min([rank[boundary.node] for boundary in group.boundaries] + [rank[node] for node, _ in group.roots])
              for group in plan.groups]
    assert begins == sorted(begins)


@examples(200)
@given(graphs())
def test_everything_is_in_the_documented_order(graph):
    plan = split_backward(graph)
    ascending = [plan.closure, plan.unreached_inputs, plan.unreached_weights]
    for group in plan.groups:
        ascending += [group.weights, group.nodes]
        for boundary in group.boundaries:
            ascending += [boundary.weight_edges, boundary.input_edges]
    for values in ascending:
        assert values == tuple(sorted(set(values)))


def numbers_back(plan, number):
    """``plan`` with each node under the number it had before ``number`` renamed it; unordered parts sorted."""
    old = {new: node for node, new in enumerate(number)}
    return replace(plan, closure=tuple(sorted(old[node] for node in plan.closure)), groups=tuple(
        replace(group, boundaries=tuple(replace(boundary, node=old[boundary.node]) for boundary in group.boundaries),
                roots=tuple(sorted((old[node], slot) for node, slot in group.roots)),
                nodes=tuple(sorted(old[node] for node in group.nodes))) for group in plan.groups))


@examples(200)
@given(graphs(), st.data())
def test_the_numbers_of_nodes_do_not_matter(graph, data):
    number = data.draw(st.permutations(range(len(graph.edges))))
    again = split_backward(rearranged(graph, number))
    assert numbers_back(again, number) == split_backward(graph)


@examples(200)
@given(graphs())
def test_the_order_of_edges_does_not_matter(graph):
    def back(node, indices):
        return tuple(sorted(len(graph.edges[node]) - 1 - index for index in indices))

    again = split_backward(rearranged(graph, reverse_edges=True))
    again = replace(again, groups=tuple(replace(group, boundaries=tuple(
        Boundary(start.node, back(start.node, start.weight_edges), back(start.node, start.input_edges))
        for start in group.boundaries)) for group in again.groups))
    assert again == split_backward(graph)


@examples(200)
@given(graphs(), st.data())
def test_the_order_of_weights_and_inputs_only_names_them(graph, data):
    weights = data.draw(st.permutations(range(len(graph.weights))))
    inputs = data.draw(st.permutations(range(len(graph.inputs))))
    again = split_backward(replace(graph, weights=[graph.weights[place] for place in weights],
                                   inputs=[graph.inputs[place] for place in inputs]))
    again = replace(
        again, unreached_weights=tuple(sorted(weights[place] for place in again.unreached_weights)),
        unreached_inputs=tuple(sorted(inputs[place] for place in again.unreached_inputs)),
        groups=tuple(replace(group, weights=tuple(sorted(weights[place] for place in group.weights)))
                     for group in again.groups))
    assert again == split_backward(graph)


@examples(200)
@given(graphs(), st.randoms())
def test_order_and_repetition_of_roots_do_not_matter(graph, random):
    roots = list(graph.roots) * 2
    random.shuffle(roots)
    assert split_backward(replace(graph, roots=roots)) == split_backward(graph)


@pytest.mark.parametrize("order", ["abc", "bac", "cba"])
def test_equal_ranks_are_ordered_by_number_not_by_weights(order):
    graph, number = named({"top": ["left", "right"], "left": ["x", "a", "c"], "right": ["x", "b", "c"]},
                          roots=["top"], inputs=["x"], weights=order)
    group, = split_backward(replace(graph, rank=[7] * len(graph.edges))).groups
    assert [start.node for start in group.boundaries] == [number["left"], number["right"]]


@examples(100)
@given(graphs())
def test_lists_give_the_same_plan_and_are_left_alone(graph):
    lists = BackwardGraph([list(edges) for edges in graph.edges], list(graph.roots), list(graph.inputs),
                          list(graph.weights), None if graph.rank is None else list(graph.rank))
    before = repr(lists)
    plan = split_backward(lists)
    check_plan(lists, plan)
    assert plan == split_backward(graph)
    assert repr(lists) == before
    hash(plan)


def test_plans_are_frozen():
    graph, _ = named({"matmul": ["x", "w"]}, roots=["matmul"], inputs=["x"], weights=["w"])
    plan = split_backward(graph)
    for value, field in ((plan, "groups"), (plan.groups[0], "nodes"), (plan.groups[0].boundaries[0], "node"),
                         (graph, "edges")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field, ())


def test_weights_that_share_a_leaf_are_refused():
    graph, number = named({"matmul": ["x", "w"]}, roots=["matmul"], inputs=["x"], weights=["w", "w"])
    assert number["w"] == 2
    with pytest.raises(GraphError, match="weight 0 is in 0 groups"):
        split_backward(graph)


def test_no_graph_at_all():
    assert split_backward(BackwardGraph([], [], [None], [None, None])) == SplitPlan((), (), (0,), (0, 1))


def group_of(graph, number, weight):
    """The group with the leaf called ``weight``, boundaries and roots by name."""
    name = {node: name for name, node in number.items()}
    group, = [group for group in split_backward(graph).groups if number[weight] in group.nodes]
    return ({name[start.node]: start.weight_edges for start in group.boundaries},
            {(name[node], slot) for node, slot in group.roots},
            {name[node] for node in group.nodes})


def test_one_weight_used_twice():
    """``x @ w @ w``."""
    graph, number = named({"second": ["first", "w"], "first": ["x", "w"]}, ["second"], ["x"], ["w"])
    assert group_of(graph, number, "w") == ({"second": (1,), "first": (1,)}, set(), {"w"})


def test_an_output_of_weights_alone():
    """``(tanh(x @ w), tanh(w).sum())``: dw starts at a boundary and at a root."""
    graph, number = named({"tanh": ["matmul"], "matmul": ["x", "w"], "sum": ["tanh_w"], "tanh_w": ["w"]},
                          ["tanh", "sum"], ["x"], ["w"])
    assert group_of(graph, number, "w") == ({"matmul": (1,)}, {("sum", 0)}, {"sum", "tanh_w", "w"})


def test_outputs_inside_the_graph_of_other_outputs():
    """``(h, h, sin(h))`` with ``h = x @ w``, and ``(v, v + 1)`` with ``v = w * w``."""
    graph, number = named({"sin": ["matmul"], "matmul": ["x", "w"]}, ["matmul", "matmul", "sin"], ["x"], ["w"])
    assert group_of(graph, number, "w") == ({"matmul": (1,)}, set(), {"w"})
    graph, number = named({"add": ["mul", None], "mul": ["w", "w"]}, ["mul", "add", "mul"], [], ["w"])
    assert group_of(graph, number, "w") == ({}, {("mul", 0), ("add", 0)}, {"add", "mul", "w"})


def test_a_weight_that_is_an_output():
    graph, number = named({"matmul": ["x", "w"]}, ["w", "matmul", "w"], ["x"], ["w"])
    assert group_of(graph, number, "w") == ({"matmul": (1,)}, {("w", 0)}, {"w"})


def test_token_ids_leave_everything_to_dw():
    """No input takes a gradient: no closure, and one group from the root."""
    graph, number = named({"matmul": ["embedding", "w"], "embedding": [None, "table"]}, ["matmul"], [None],
                          ["w", "table"])
    plan = split_backward(graph)
    assert plan.closure == ()
    assert plan.unreached_inputs == (0,)
    assert plan.groups == (Group((0, 1), (), ((number["matmul"], 0),), (0, 1, 2, 3)),)


def test_unused_weights_and_inputs_are_unreached():
    graph, _ = named({"sin": ["x"], "other": ["unused", "spare"]}, ["sin"], ["x", "spare", None], ["unused", None])
    plan = split_backward(graph)
    assert plan.groups == ()
    assert plan.unreached_inputs == (1, 2)
    assert plan.unreached_weights == (0, 1)


def test_one_tensor_given_twice_has_two_leaves():
    graph, number = named({"mul": ["first", "second"]}, ["mul"], ["first", "second"])
    assert split_backward(graph).closure == (number["mul"], number["first"], number["second"])


def test_pieces_of_a_split_go_different_ways():
    """Slots of one node: the unused third piece changes nothing, the weight is behind the split."""
    graph, number = named({"add": ["sin", "split:1"], "sin": ["split:0"], "split": ["matmul"], "matmul": ["x", "w"]},
                          ["add"], ["x"], ["w"])
    assert group_of(graph, number, "w") == ({"matmul": (1,)}, set(), {"w"})


def test_norms_that_share_a_beta_are_one_group():
    graph, number = named({"second": ["first", "gamma2", "beta"], "first": ["x", "gamma1", "beta"]},
                          ["second"], ["x"], ["gamma1", "gamma2", "beta"])
    assert group_of(graph, number, "beta") == ({"second": (1, 2), "first": (1, 2)}, set(),
                                               {"gamma1", "gamma2", "beta"})
