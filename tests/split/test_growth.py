"""Large graphs: cost is linear in the edges, counted and not timed, and nothing recurses."""

import inspect
import sys

import pytest

from mindspore_zb.split import BackwardGraph, check_plan, plan_passes, split_backward
from mindspore_zb.split.closure import dx_closure
from mindspore_zb.split.graph import reverse_edges
from mindspore_zb.split.groups import weight_side

from . import oracle
from .counting import Count, CountedList, lines_run
from .executor import SplitRun, run_split
from .families import FAMILIES, eager_layers, layers, long_way_up, one_group


def whole_split(graph, freed, eager):
    """All that an engine asks of the split."""
    graph.check()
    plan = split_backward(graph)
    check_plan(graph, plan)
    plan_passes(graph, plan, freed, eager)
    return plan


def lines_of(family, size):
    """Lines that the whole split runs for a graph of ``size`` nodes."""
    graph, freed, eager, _ = family(size)
    with lines_run() as count:
        whole_split(graph, freed, eager)
    return count.total


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_twice_the_size_is_twice_the_work(family):
    small, large = lines_of(family, 2_000), lines_of(family, 4_000)
    assert small > 2_000
    assert large < 2.2 * small


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_ten_thousand_nodes(family):
    graph, freed, eager, groups = family(10_000)
    plan = whole_split(graph, freed, eager)
    if groups is not None:
        assert len(plan.groups) == groups
    assert sum(len(group.weights) for group in plan.groups) + len(plan.unreached_weights) == len(graph.weights)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_each_edge_is_read_a_fixed_number_of_times(family):
    plain, freed, eager, _ = family(10_000)
    count = Count()
    graph = BackwardGraph([CountedList(edges, count) for edges in plain.edges], plain.roots, plain.inputs,
                          plain.weights)
    edges = sum(map(len, plain.edges))
    plan = split_backward(graph)
    assert edges / 2 <= count.total <= 2 * edges  # once to reverse them, once more at boundaries
    count.total = 0
    plan_passes(graph, plan, freed, eager)
    assert count.total <= 3 * edges  # to count parents, to number the passes, to cut


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_each_reversed_edge_is_climbed_once(family):
    graph, *_ = family(10_000)
    parents, reached = reverse_edges(graph)
    count = Count()
    counted = [CountedList(above, count) for above in parents]
    edges = sum(map(len, parents))
    inside = dx_closure(counted, [leaf for leaf in graph.inputs if leaf is not None and reached[leaf]])
    assert count.total <= edges
    count.total = 0
    weight_side(counted, inside, [leaf for leaf in graph.weights if reached[leaf]])
    assert count.total <= edges


def test_lists_of_freed_and_eager_nodes_are_not_searched():
    graph, freed, eager, _ = eager_layers(3_000)
    plan_passes(graph, split_backward(graph), CountedList(freed, Count()), CountedList(eager, Count()))


def test_five_hundred_weights_in_one_group():
    graph, _, _, _ = one_group(1_000)
    group, = whole_split(graph, [], []).groups
    assert group.weights == tuple(range(500))
    assert len(group.nodes) == 1_001


def test_five_hundred_groups():
    graph, freed, _, _ = layers(1_500)
    plan = whole_split(graph, freed, [])
    assert [group.weights for group in plan.groups] == [(position,) for position in range(500)]


def products_along(graph, factors, path):
    """The gradient that arrives behind each node of a chain of ``(node, index)``, which starts at the root."""
    gradient, = factors.output_gradients(graph)
    for node, index in path:
        gradient = factors.along(node, index, {0: gradient})
        yield gradient


def test_a_chain_of_three_thousand_nodes_gives_the_product_of_its_factors():
    """Deeper than Python's stack, with a weight at each end and in the middle, every other part freed."""
    length = 3_000
    assert length > sys.getrecursionlimit() - len(inspect.stack())
    x, top, middle, bottom = range(length, length + 4)
    edges = [[(node + 1, 0)] for node in range(length)] + [[]] * 4
    for node, weight in ((0, top), (length // 2, middle), (length - 1, bottom)):
        edges[node].append((weight, 0))
    graph = BackwardGraph(edges, [(0, 0)], [x], [top, middle, bottom])
    plan = whole_split(graph, [], [])
    freed = [node for node in range(1, length - 1) if node // 100 % 2 and node != length // 2]
    factors = oracle.Factors()
    along = list(products_along(graph, factors, [(node, 0) for node in range(length)]))
    expected = {x: along[-1]}
    for node, weight in ((0, top), (length // 2, middle), (length - 1, bottom)):
        arrived = along[node - 1] if node else factors.output_gradients(graph)[0]
        expected[weight] = factors.along(node, 1, {0: arrived})
    assert run_split(graph, plan, factors, freed) == {leaf: {0: gradient} for leaf, gradient in expected.items()}


def test_a_weight_three_thousand_nodes_below_its_boundary():
    graph, *_ = long_way_up(3_200)
    plan = whole_split(graph, [], [])
    run = SplitRun(graph, plan, oracle.Factors())
    run.run_dx()
    run.run_group(0)
    assert set(run.gradients) == {*graph.inputs, *graph.weights}
