"""What the split of a tiny graph must be, found by other means than the split's own.

Reachability is Warshall's algorithm instead of a search, groups are naive repeated merging instead of union-find, and
gradients are pulled from the leaves instead of pushed from the roots. Slow on purpose, and only for tiny graphs.
"""

from itertools import combinations
from random import Random


def reachability(graph):
    """``reach[a][b]``: a path, maybe empty, leads from node a to node b."""
    nodes = range(len(graph.edges))
    reach = [[a == b or any(edge is not None and edge[0] == b for edge in graph.edges[a]) for b in nodes]
             for a in nodes]
    for middle in nodes:
        for a in nodes:
            if reach[a][middle]:
                for b in nodes:
                    reach[a][b] = reach[a][b] or reach[middle][b]
    return reach


def between(graph, leaves):
    """The nodes on some path from a root to one of ``leaves``; None among the leaves leads nowhere."""
    reach = reachability(graph)
    return {node for node in range(len(graph.edges))
            if any(reach[root][node] for root, _ in graph.roots)
            and any(leaf is not None and reach[node][leaf] for leaf in leaves)}


def closure(graph):
    """What dx must run."""
    return between(graph, graph.inputs)


def needed(graph):
    """What dx and dw together must run."""
    return between(graph, (*graph.inputs, *graph.weights))


def crossing_edges(graph):
    """``{(node, index)}`` of the edges that lead from the closure, outside of it, towards a weight."""
    inside, every = closure(graph), needed(graph)
    return {(node, index) for node in inside for index, edge in enumerate(graph.edges[node])
            if edge is not None and edge[0] in every - inside}


def groups(graph):
    """The groups as a set of ``(weight positions, boundary nodes, nodes outside the closure)`` frozensets.

    One triple for each weight, merged two by two until no two share a boundary or a node.
    """
    reach, inside, reached = reachability(graph), closure(graph), needed(graph)
    found = []
    for position, leaf in enumerate(graph.weights):
        if leaf in reached:
            nodes = {node for node in reached - inside if reach[node][leaf]}
            starts = {node for node, index in crossing_edges(graph) if graph.edges[node][index][0] in nodes}
            found.append(({position}, starts, nodes))
    while True:
        touching = next((pair for pair in combinations(found, 2)
                         if pair[0][1] & pair[1][1] or pair[0][2] & pair[1][2]), None)
        if touching is None:
            return {tuple(map(frozenset, group)) for group in found}
        one, other = touching
        found = [group for group in found if group is not one and group is not other]
        found.append(tuple(mine | theirs for mine, theirs in zip(one, other)))


def pass_numbers(graph, freed):
    """For each closure node the number of its pass, from every path that leads to it.

    A path takes pass 1 if its first node is freed, else pass 0, and one more for each change of kind.
    """
    inside = closure(graph)

    def from_above(node):
        kind = int(node in freed)
        above = [number for parent in inside if any(edge is not None and edge[0] == node
                                                    for edge in graph.edges[parent])
                 for number in [from_above(parent)]]
        return max([kind] + [number + (number % 2 != kind) for number in above])

    return {node: from_above(node) for node in inside}


class Factors:
    """A linear backward with exact integers: how much of slot s of a node goes along its edge i.

    The factors are positive and large, so that a missing, doubled or misplaced contribution cannot cancel out.
    """

    def __init__(self, seed=0):
        self._seed = seed
        self._known = {}

    def __call__(self, node, slot, index):
        key = (node, slot, index)
        if key not in self._known:
            self._known[key] = Random(f"{self._seed} {key}").randint(2, 10**9)
        return self._known[key]

    def output_gradients(self, graph):
        """One gradient for each root."""
        return [self(node, slot, -1 - place) for place, (node, slot) in enumerate(graph.roots)]

    def along(self, node, index, gradients):
        """What ``node`` sends along its edge ``index`` when ``gradients`` flow into its slots."""
        return sum(self(node, slot, index) * gradient for slot, gradient in gradients.items())


def unsplit_gradients(graph, factors):
    """``{slot: gradient}`` of every node of the graph, leaves among them: the unsplit backward."""
    known = {}
    sens = factors.output_gradients(graph)

    def gradients(node):
        if node not in known:
            total = {}
            for (root, slot), gradient in zip(graph.roots, sens):
                if root == node:
                    total[slot] = total.get(slot, 0) + gradient
            for parent, edges in enumerate(graph.edges):
                for index, edge in enumerate(edges):
                    if edge is not None and edge[0] == node and gradients(parent):
                        total[edge[1]] = total.get(edge[1], 0) + factors.along(parent, index, gradients(parent))
            known[node] = total
        return known[node]

    for node in range(len(graph.edges)):
        gradients(node)
    return known
