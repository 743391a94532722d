"""Tests of :mod:`mindspore_zb.split.closure`."""

from dataclasses import replace

from hypothesis import given

from mindspore_zb.split import split_backward
from mindspore_zb.split.closure import dx_closure
from mindspore_zb.split.graph import reverse_edges

from . import oracle
from .strategies import examples, graphs, named


@examples(200)
@given(graphs())
def test_closure_is_all_that_lies_between_roots_and_inputs(graph):
    parents, reached = reverse_edges(graph)
    inputs = [leaf for leaf in graph.inputs if leaf is not None and reached[leaf]]
    inside = dx_closure(parents, inputs)
    assert {node for node, is_inside in enumerate(inside) if is_inside} == oracle.closure(graph)
    assert dx_closure(parents, [*reversed(inputs), *inputs]) == inside


def test_no_input_no_closure():
    assert dx_closure([[], [(0, 0)]], []) == [False, False]


def test_an_input_returned_as_it_is():
    graph, number = named({}, roots=["x", "x"], inputs=["x"])
    assert split_backward(graph).closure == (number["x"],)


@examples(100)
@given(graphs())
def test_weights_do_not_change_what_dx_runs(graph):
    assert split_backward(graph).closure == split_backward(replace(graph, weights=())).closure


@examples(100)
@given(graphs())
def test_each_input_adds_its_own_nodes(graph):
    single = [split_backward(replace(graph, inputs=(leaf,))).closure for leaf in graph.inputs]
    assert set(split_backward(graph).closure) == {node for closure in single for node in closure}
