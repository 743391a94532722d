"""Tests of :mod:`mindspore_zb.split.groups`: disjoint sets, and the climb from the weights."""

from itertools import permutations

import pytest
from hypothesis import given, strategies as st

from mindspore_zb.split import split_backward
from mindspore_zb.split.closure import dx_closure
from mindspore_zb.split.graph import reverse_edges
from mindspore_zb.split.groups import UnionFind, weight_side

from . import oracle
from .strategies import examples, graphs, named


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))), st.randoms())
def test_union_find_is_naive_merging_named_by_the_smallest(pairs, random):
    expected = [{item} for item in range(10)]
    for one, other in pairs:
        merged = expected[one] | expected[other]
        for item in merged:
            expected[item] = merged
    random.shuffle(pairs)
    sets = UnionFind(10)
    for one, other in pairs:
        sets.union(one, other)
    assert [sets.find(item) for item in range(10)] == [min(items) for items in expected]


def test_union_find_survives_the_longest_chain():
    size = 20_000
    sets = UnionFind(size)
    for item in reversed(range(1, size)):
        sets.union(item, item - 1)
    assert sets.find(size - 1) == 0


@examples(200)
@given(graphs())
def test_the_climb_stops_at_the_first_closure_nodes(graph):
    parents, reached = reverse_edges(graph)
    inside = dx_closure(parents, [leaf for leaf in graph.inputs if leaf is not None and reached[leaf]])
    weights = [leaf for leaf in graph.weights if leaf is not None and reached[leaf]]
    nodes, boundaries, _ = weight_side(parents, inside, weights)
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == oracle.needed(graph) - oracle.closure(graph)
    assert all(edges == sorted(edges) for edges in boundaries.values())
    crossing = [(node, index) for node, edges in boundaries.items() for index in edges]
    assert len(crossing) == len(set(crossing))
    assert set(crossing) == oracle.crossing_edges(graph)


@examples(300)
@given(graphs())
def test_groups_are_the_connected_components(graph):
    found = [(frozenset(group.weights), frozenset(boundary.node for boundary in group.boundaries),
              frozenset(group.nodes)) for group in split_backward(graph).groups]
    assert len(found) == len(set(found))
    assert set(found) == oracle.groups(graph)


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_one_weight_that_meets_the_boundaries_of_two_others_joins_all(order):
    """c shares a boundary with a and another one with b: one group, whatever the order of weights."""
    graph, number = named({"top": ["left", "right"], "left": ["x", "a", "c"], "right": ["x", "b", "c"]},
                          roots=["top"], inputs=["x"], weights=order)
    group, = split_backward(graph).groups
    assert group.weights == (0, 1, 2)
    assert [boundary.node for boundary in group.boundaries] == [number["left"], number["right"]]
    assert group.nodes == tuple(sorted(number[weight] for weight in "abc"))


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_weights_joined_below_the_boundary(order):
    """a and c meet in one node outside the closure, c and b in another: one group, whatever the order."""
    graph, _ = named({"first": ["x", "mix"], "second": ["first", "blend"], "mix": ["a", "c"], "blend": ["c", "b"]},
                     roots=["second"], inputs=["x"], weights=order)
    assert [group.weights for group in split_backward(graph).groups] == [(0, 1, 2)]


def test_weights_of_different_layers_stay_apart():
    graph, number = named({"last": ["middle", "c"], "middle": ["first", "b"], "first": ["x", "a"]},
                          roots=["last"], inputs=["x"], weights=["a", "b", "c"])
    plan = split_backward(graph)
    assert [group.weights for group in plan.groups] == [(2,), (1,), (0,)]
    assert [group.boundaries[0].node for group in plan.groups] == [number[name] for name in ("last", "middle", "first")]


def test_a_leaf_that_nobody_asks_for_joins_nothing():
    graph, _ = named({"top": ["left", "right"], "left": ["x", "mix"], "right": ["x", "blend"],
                      "mix": ["a", "frozen"], "blend": ["b", "frozen"]},
                     roots=["top"], inputs=["x"], weights=["a", "b"])
    assert [group.weights for group in split_backward(graph).groups] == [(0,), (1,)]
