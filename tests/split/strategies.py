"""Random backward graphs, and graphs written with names."""

import os
from random import Random

from hypothesis import HealthCheck, settings, strategies as st

from mindspore_zb.split import BackwardGraph

EXAMPLES = int(os.environ.get("ZB_TEST_EXAMPLES", "0"))
"""More than 0: that many fresh random examples for each property instead of the repeatable ones."""


def examples(count):
    """Settings of a property test: ``count`` examples, the same in every run."""
    return settings(max_examples=EXAMPLES or count, derandomize=not EXAMPLES, database=None, deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def named(edges, roots, inputs=(), weights=()):
    """A graph with names for nodes, numbered by first mention.

    Names that are no key of ``edges`` are leaves. A slot is written ``"node:slot"``; without one it is 0.

    Returns:
        ``(graph, number)``, with ``number`` the node of each name.
    """
    number = {}

    def target(text):
        if text is None:
            return None
        name, _, slot = text.partition(":")
        return number.setdefault(name, len(number)), int(slot or 0)

    for name in edges:
        target(name)
    rows = [[target(child) for child in children] for children in edges.values()]
    roots = [target(root) for root in roots]
    leaves = [[None if name is None else target(name)[0] for name in names] for names in (inputs, weights)]
    rows += [[] for _ in range(len(number) - len(rows))]
    return BackwardGraph(rows, roots, *leaves), number


@st.composite
def graphs(draw, most_inner=9):
    """A graph with everything that frameworks hand over.

    Shared nodes, several slots and several edges to one child, None places, several, repeated and nested roots, roots
    that are leaves, leaves that nobody asks for, absent and unreached inputs and weights, and node numbers that say
    nothing about the order of execution. Hypothesis chooses the number of inner nodes, and can shrink it; a seeded
    generator does the rest, as Hypothesis' own choices repeat themselves too much to give many graphs with groups.
    """
    inner = draw(st.integers(0, most_inner).map(lambda fewer: most_inner - fewer))
    wiring = Random(draw(st.integers(0, 2**64)) * 16 + inner)
    inputs = wiring.choice((1, 1, 1, 1, 2, 2, 3, 0))
    weights = wiring.choice((2, 3, 3, 4, 4, 5, 1, 0))
    size = inner + inputs + weights + wiring.choice((0, 0, 0, 1, 2))
    number = wiring.sample(range(size), size)
    unused = number[inner:]
    edges = [()] * size
    for place in range(min(inner, size - 1)):
        edges[number[place]] = tuple(_edge(wiring, number, place + 1, inner, unused)
                                     for _ in range(wiring.choice((2, 2, 2, 3, 3, 3, 4, 4, 1, 0))))
    roots = []
    for _ in range(wiring.choice((1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 0)) if size else 0):
        place = wiring.choice((0, 0, 1, 2, wiring.randrange(size)))
        roots.append((number[min(place, size - 1)], wiring.choice((0, 0, 1))))

    def leaves(begin, count):
        places = [*number[begin:begin + count], *[None] * wiring.choice((0, 0, 1, 2))]
        return tuple(wiring.sample(places, len(places)))

    order = [0] * size
    for place, node in enumerate(number):
        order[node] = place
    return BackwardGraph(tuple(edges), tuple(roots), leaves(inner, inputs), leaves(inner + inputs, weights),
                         wiring.choice((tuple(order), None)))


def _edge(wiring, number, begin, inner, unused):
    """To one of the places from ``begin`` on: a near one, a leaf (often its first use), any; sometimes to none."""
    kind = wiring.choice(("near", "near", "near", "leaf", "leaf", "leaf", "later", "none"))
    last = len(number) - 1
    if kind == "none":
        return None
    if kind == "near":
        child = number[wiring.randint(begin, min(begin + 1, last))]
    elif kind == "leaf" and unused and wiring.random() < 0.7:
        child = unused.pop()
    else:
        child = number[wiring.randint(min(inner, last) if kind == "leaf" else begin, last)]
    return child, wiring.choice((0, 0, 0, 1, 2))


def subsets(items):
    """Some of ``items``."""
    items = sorted(items)
    return st.lists(st.booleans(), min_size=len(items), max_size=len(items)).map(
        lambda chosen: [item for item, is_chosen in zip(items, chosen) if is_chosen])


@st.composite
def freed_and_eager(draw, plan):
    """A choice ``(freed, eager)`` that :func:`plan_passes` accepts."""
    boundaries = {boundary.node for group in plan.groups for boundary in group.boundaries}
    eager = draw(subsets(boundaries))
    return draw(subsets(set(plan.closure) - (boundaries - set(eager)))), eager


def rearranged(graph, number=None, reverse_edges=False):
    """The same graph with node ``n`` called ``number[n]`` and, if asked for, each node's edges in reverse order.

    The rank goes along, so that groups must come out in the same order.
    """
    size = len(graph.edges)
    number = list(range(size)) if number is None else number
    rank = range(size) if graph.rank is None else graph.rank

    def moved(edge):
        return None if edge is None else (number[edge[0]], edge[1])

    edges, new_rank = [()] * size, [0] * size
    for node, row in enumerate(graph.edges):
        edges[number[node]] = tuple(moved(edge) for edge in (reversed(row) if reverse_edges else row))
        new_rank[number[node]] = rank[node]
    return BackwardGraph(tuple(edges), tuple(moved(root) for root in graph.roots),
                         tuple(None if leaf is None else number[leaf] for leaf in graph.inputs),
                         tuple(None if leaf is None else number[leaf] for leaf in graph.weights), tuple(new_rank))
