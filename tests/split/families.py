"""Families of large graphs: each makes ``(graph, freed, eager)`` of about ``size`` nodes, and knows its groups."""

from random import Random

from mindspore_zb.split import BackwardGraph


class Builder:
    """Grows a graph node by node; the first node is the root."""

    def __init__(self):
        self.edges = []

    def node(self, *children):
        """A new node with these children; children may be added to ``edges`` later."""
        self.edges.append([(child, 0) for child in children])
        return len(self.edges) - 1

    def nodes(self, count):
        """That many new nodes without children."""
        return [self.node() for _ in range(count)]

    def link(self, parent, *children):
        """Add edges."""
        self.edges[parent].extend((child, 0) for child in children)

    def graph(self, inputs, weights, roots=((0, 0),)):
        """The graph as it is now."""
        return BackwardGraph(self.edges, roots, inputs, weights)


def layers(size):
    """A chain of layers, each matmul(x, w) below an activation: one group for each layer."""
    count = size // 3
    build = Builder()
    x = build.node()
    activations, matmuls, weights = (build.nodes(count) for _ in range(3))
    for place in range(count):
        build.link(activations[place], matmuls[place])
        build.link(matmuls[place], activations[place + 1] if place + 1 < count else x, weights[place])
    return build.graph([x], weights, [(activations[0], 0)]), activations, [], count


def eager_layers(size):
    """The same, with all matmuls eager and freed."""
    graph, activations, _, count = layers(size)
    matmuls = [graph.edges[node][0][0] for node in activations]
    return graph, activations + matmuls, matmuls, count


def one_group(size):
    """Weights with a node of their own each, all of which meet in one node below the boundary."""
    count = size // 2
    build = Builder()
    top, x, meeting = build.nodes(3)
    build.link(top, x, meeting)
    steps, weights = build.nodes(count), build.nodes(count)
    for step, weight in zip(steps, weights):
        build.link(meeting, step)
        build.link(step, weight)
    return build.graph([x], weights), [], [], 1


def long_way_up(size):
    """A twentieth of the nodes are weights, and all of them climb the same chain: ruinous if each climbs alone."""
    build = Builder()
    top, x = build.nodes(2)
    chain, weights = build.nodes(size * 19 // 20), build.nodes(size // 20)
    build.link(top, x, chain[0])
    for above, below in zip(chain, chain[1:]):
        build.link(above, below)
    build.link(chain[-1], *weights)
    return build.graph([x], weights), [], [], 1


def linked_boundaries(size):
    """Neighbouring boundaries share a weight: groups merge in a long chain, in an awkward order."""
    count = size // 2
    build = Builder()
    boundaries, weights = build.nodes(count), build.nodes(count + 1)
    x = build.node()
    for place, boundary in enumerate(boundaries):
        build.link(boundary, boundaries[place + 1] if place + 1 < count else x, weights[place], weights[place + 1])
    Random(0).shuffle(weights)
    return build.graph([x], weights), [], [], 1


def many_paths(size):
    """A ladder of diamonds: the number of paths doubles with each rung, the number of edges does not."""
    build = Builder()
    rungs = [build.nodes(2) for _ in range(size // 4)]
    lower = [build.nodes(2) for _ in rungs]
    x, weight = build.nodes(2)
    for above, below in zip(rungs, rungs[1:]):
        for node in above:
            build.link(node, *below)
    for above, below in zip(lower, lower[1:]):
        for node in above:
            build.link(node, *below)
    for node in rungs[-1]:
        build.link(node, x, lower[0][0])
    for node in lower[-1]:
        build.link(node, weight)
    return build.graph([x], [weight], [(rungs[0][0], 0), (rungs[0][1], 0)]), rungs[0], [], 1


def weights_only(size):
    """No input at all: every root starts a group of its own."""
    build = Builder()
    roots, weights = build.nodes(size // 2), build.nodes(size // 2)
    for root, weight in zip(roots, weights):
        build.link(root, weight)
    return build.graph([None], weights, [(root, 0) for root in roots] * 2), [], [], size // 2


def tangle(size):
    """A random graph; a twentieth of the nodes are weights."""
    random = Random(size)
    build = Builder()
    nodes = build.nodes(size)
    inner = size * 9 // 10
    for place in range(inner):
        build.link(nodes[place], place + 1, *(random.randrange(place + 1, size) for _ in range(2)))
    leaves = nodes[inner:]
    weights = random.sample(leaves, size // 20)
    return build.graph(leaves[-1:] if leaves[-1] not in weights else [], weights), [], [], None


FAMILIES = [layers, eager_layers, one_group, long_way_up, linked_boundaries, many_paths, weights_only, tangle]
