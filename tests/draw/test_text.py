"""A graph as text; it is plain data, whoever made it."""

from types import SimpleNamespace

from mindspore_zb.draw.text import graph_lines


def node(name, *edges, role="dx", group=None, weight_edges=(), root_slots=()):
    return SimpleNamespace(name=name, role=role, edges=edges, shapes=(), group=group, weight_edges=weight_edges,
                           root_slots=root_slots)


def test_branches_are_indented_and_a_shared_node_comes_below_the_last_of_its_parents():
    nodes = [node("Add", (1, 0), (2, 1), root_slots=(0,)), node("Tanh", (3, 0)), node("Sin", (3, 0)),
             node("Mul", (4, 0), (4, 0)), node("x", role="input")]
    assert graph_lines(nodes, [(0, 0)], None) == [
        "#0 Add  dx, output",
        "├─[0] #1 Tanh  dx",
        "│ └─-> #3 Mul",
        "[1:1] #2 Sin  dx",
        "#3 Mul  dx, shared by 2",
        "└─[0, 1] #4 x  input"]


def test_an_output_inside_of_another_ones_graph_is_printed_once():
    nodes = [node("Sin", (1, 0), root_slots=(0,)), node("Tanh", (2, 0), root_slots=(0, 2)), node("x", role="input")]
    assert graph_lines(nodes, [(1, 0), (1, 2), (0, 0)], None) == [
        "#0 Sin  dx, output", "#1 Tanh  dx, output in slots [0, 2]", "└─#2 x  input"]


def test_a_leaf_that_is_an_output():
    assert graph_lines([node("x", role="input", root_slots=(0,))], [(0, 0)], 1) == ["#0 x  input, output"]


def test_no_graph():
    assert graph_lines([], [], 5) == []


def test_limit_counts_nodes_with_edges():
    nodes = [node("Tanh", (place + 1, 0)) for place in range(5)] + [node("x", role="input")]
    assert graph_lines(nodes, [(0, 0)], 4)[-1].startswith("... 1 more node left out")
    assert len(graph_lines(nodes, [(0, 0)], 5)) == 6


def test_a_deep_graph_needs_no_recursion():
    nodes = [node("Tanh", (place + 1, 0), (place + 2, 0)) for place in range(15000)]
    nodes += [node("Tanh", (15001, 0)), node("x", role="input")]
    lines = graph_lines(nodes, [(0, 0)], None)
    assert max(map(len, lines)) < 60
