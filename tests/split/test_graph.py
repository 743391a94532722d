"""Tests of :mod:`mindspore_zb.split.graph`: the graph's own check, and its reversal."""

import pytest
from hypothesis import given

from mindspore_zb.split import BackwardGraph, GraphError
from mindspore_zb.split.graph import reverse_edges

from . import oracle
from .strategies import examples, graphs, named


def matmul(**changes):
    """``x @ w``: node 0 with the input leaf 1 and the weight leaf 2, with some fields changed."""
    fields = {"edges": [[(1, 0), (2, 0)], [], []], "roots": [(0, 0)], "inputs": [1], "weights": [2]}
    return BackwardGraph(**{**fields, **changes})


@examples(200)
@given(graphs())
def test_check_accepts_every_well_formed_graph(graph):
    graph.check()


def test_check_accepts_the_empty_graph():
    BackwardGraph([], [], [], []).check()


def test_check_accepts_absent_inputs_and_weights_any_number_of_times():
    matmul(inputs=[None, 1, None], weights=[None, None, 2]).check()
    matmul(inputs=[None], weights=[None]).check()


@pytest.mark.parametrize("changes, named_thing", [
    ({"edges": [[(1, 0), (3, 0)], [], []]}, r"edge 1 of node 0 leads to \(3, 0\)"),
    ({"edges": [[(1, 0), (-1, 0)], [], []]}, r"edge 1 of node 0 leads to \(-1, 0\)"),
    ({"edges": [[(1, -2), (2, 0)], [], []]}, r"edge 0 of node 0 leads to \(1, -2\)"),
    ({"roots": [(0, 0), (3, 0)]}, r"root \(3, 0\)"),
    ({"roots": [(-1, 0)]}, r"root \(-1, 0\)"),
    ({"roots": [(0, -1)]}, r"root \(0, -1\)"),
    ({"inputs": [3]}, "input leaf 3"),
    ({"inputs": [-2]}, "input leaf -2"),
    ({"inputs": [0]}, "input leaf 0"),
    ({"weights": [3]}, "weight leaf 3"),
    ({"weights": [-1]}, "weight leaf -1"),
    ({"weights": [0]}, "weight leaf 0"),
    ({"inputs": [1, None, 1]}, "inputs 0 and 2 share leaf 1"),
    ({"weights": [None, 2, 2]}, "weights 1 and 2 share leaf 2"),
    ({"inputs": [None, 1], "weights": [2, None, 1], "edges": [[(1, 0)], [], []]}, "leaf 1 is both"),
    ({"rank": [0, 1]}, "rank of 2 nodes for a graph of 3"),
    ({"rank": [0, 1, 2, 3]}, "rank of 4 nodes for a graph of 3"),
])
def test_check_names_what_cannot_be(changes, named_thing):
    with pytest.raises(GraphError, match=named_thing):
        matmul(**changes).check()


def test_a_leaf_may_have_places_without_gradient_but_no_edges():
    matmul(edges=[[(1, 0), (2, 0)], [None], [None, None]]).check()
    with pytest.raises(GraphError, match="weight leaf 2"):
        matmul(edges=[[(1, 0), (2, 0)], [], [None, (1, 0)]]).check()


def test_graph_errors_are_value_errors():
    assert issubclass(GraphError, ValueError)


@examples(200)
@given(graphs())
def test_reversal_is_every_edge_that_the_backward_runs_once(graph):
    parents, reached = reverse_edges(graph)
    reach = oracle.reachability(graph)
    every = [any(reach[root][node] for root, _ in graph.roots) for node in range(len(graph.edges))]
    assert reached == every
    backwards = sorted((parent, index, child) for child, above in enumerate(parents) for parent, index in above)
    assert backwards == sorted((node, index, edge[0]) for node, edges in enumerate(graph.edges) if every[node]
                               for index, edge in enumerate(edges) if edge is not None)


def test_repeated_roots_and_edges_are_not_repeated_parents():
    graph, number = named({"square": ["x", None, "x:1"]}, roots=["square", "square", "square:1"], inputs=["x"])
    parents, reached = reverse_edges(graph)
    assert parents[number["x"]] == [(number["square"], 0), (number["square"], 2)]
    assert reached == [True, True]
