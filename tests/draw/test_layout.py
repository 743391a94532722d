"""The layout of a layered drawing."""

import random

import pytest

from mindspore_zb.draw.layout import layered_layout, longest_distances


def random_dag(seed, size):
    """A graph in which every edge leads to a higher number."""
    source = random.Random(seed)
    return [(parent, child) for child in range(1, size)
            for parent in sorted({source.randrange(child) for _ in range(source.randrange(1, 4))})]


@pytest.mark.parametrize("seed", range(10))
def test_edges_go_down_and_no_two_nodes_overlap(seed):
    edges = random_dag(seed, 60)
    layout = layered_layout(60, edges)
    for (parent, child), path in zip(edges, layout.paths):
        assert layout.layer[child] > layout.layer[parent]
        assert path[0] == (layout.x[parent], layout.layer[parent])
        assert path[-1] == (layout.x[child], layout.layer[child])
        assert [layer for _, layer in path] == list(range(layout.layer[parent], layout.layer[child] + 1))
    for one in range(60):
        for other in range(one):
            if layout.layer[one] == layout.layer[other]:
                assert abs(layout.x[one] - layout.x[other]) > 0.999


def test_layer_is_the_longest_way_from_the_top():
    assert longest_distances(4, [(0, 1), (1, 2), (0, 2), (2, 3), (0, 3)]) == [0, 1, 2, 3]


def test_a_chain_is_straight():
    layout = layered_layout(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    assert layout.x == (0.0,) * 5


def test_a_long_chain_needs_no_recursion():
    assert layered_layout(15000, [(node, node + 1) for node in range(14999)]).layer[-1] == 14999


def test_nothing_to_lay_out():
    assert layered_layout(0, []).x == ()
