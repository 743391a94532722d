"""Where the nodes of a layered drawing go: pure Python.

Source: Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures" (1981): layers,
bends where an edge passes a layer, fewer crossings by barycentres, then positions.
"""

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

SWEEPS = 12
"""How often the order of the layers, and then the positions in them, are improved down and up."""


DEAD_END_WEIGHT = 0.02
"""How much an item with one neighbour counts beside the others, 1 each."""


@dataclass(frozen=True)
class Layout:
    """A drawing's geometry; one unit is a node's place.

    Attributes:
        x: the position of each node in its layer; the least is 0.
        layer: the layer of each node, 0 on top: the longest way there from a node without parents.
        paths: for each edge the points ``(x, layer)`` it goes through, its ends included.
    """

    x: Tuple[float, ...]
    layer: Tuple[int, ...]
    paths: Tuple[Tuple[Tuple[float, int], ...], ...]


def layered_layout(size: int, edges: Sequence[Tuple[int, int]]) -> Layout:
    """Lay out nodes ``0 .. size - 1`` with all ``(parent, child)`` edges going down.

    >>> layered_layout(3, [(0, 1), (1, 2)]).layer
    (0, 1, 2)
    """
    layer = longest_distances(size, edges)
    chains, layers = _bends(size, edges, layer)
    above, below = _neighbours(chains)
    _reduce_crossings(layers, above, below)
    x = _positions(layers, above, below)
    level = {item: number for number, items in enumerate(layers) for item in items}
    paths = tuple(tuple((x[item], level[item]) for item in chain) for chain in chains)
    return Layout(tuple(x[node] for node in range(size)), tuple(layer), paths)


def longest_distances(size: int, edges: Sequence[Tuple[int, int]]) -> List[int]:
    """For each node the number of edges on the longest way to it."""
    children: List[List[int]] = [[] for _ in range(size)]
    waiting = [0] * size
    for parent, child in edges:
        children[parent].append(child)
        waiting[child] += 1
    distance = [0] * size
    ready = [node for node in range(size) if not waiting[node]]
    for node in ready:  # grows while it is read
        for child in children[node]:
            distance[child] = max(distance[child], distance[node] + 1)
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    return distance


def _bends(size: int, edges: Sequence[Tuple[int, int]],
           layer: Sequence[int]) -> Tuple[List[List[int]], List[List[int]]]:
    """Edges as chains of neighbours, with a new item in each layer they pass; and the items of each layer."""
    layers: List[List[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node in range(size):
        layers[layer[node]].append(node)
    chains = []
    items = size
    for parent, child in edges:
        chain = [parent]
        for passed in range(layer[parent] + 1, layer[child]):
            layers[passed].append(items)
            chain.append(items)
            items += 1
        chains.append([*chain, child])
    return chains, layers


def _neighbours(chains: Sequence[Sequence[int]]) -> Tuple[Dict[int, List[int]], Dict[int, List[int]]]:
    above: Dict[int, List[int]] = {}
    below: Dict[int, List[int]] = {}
    for chain in chains:
        for upper, lower in zip(chain, chain[1:]):
            above.setdefault(lower, []).append(upper)
            below.setdefault(upper, []).append(lower)
    return above, below


def _reduce_crossings(layers: List[List[int]], above: Dict[int, List[int]], below: Dict[int, List[int]]) -> None:
    """Sort each layer by the mean place of its neighbours, down and up in turn."""
    place = {item: number for items in layers for number, item in enumerate(items)}
    for sweep in range(SWEEPS):
        neighbours = below if sweep % 2 else above
        for items in (reversed(layers) if sweep % 2 else layers):
            wanted = {item: _mean([(place[other], 1.0) for other in neighbours.get(item, ())], place[item])
                      for item in items}
            items.sort(key=lambda item: (wanted[item], place[item]))
            for number, item in enumerate(items):
                place[item] = number


def _positions(layers: List[List[int]], above: Dict[int, List[int]], below: Dict[int, List[int]]) -> Dict[int, float]:
    """Move each item below the mean of its neighbours, as far as the order and a distance of one allow.

    Dead ends follow their one neighbour instead of pulling it aside, so that chains come out straight.
    """
    def weight(item: int) -> float:
        return 1.0 if len(above.get(item, ())) + len(below.get(item, ())) > 1 else DEAD_END_WEIGHT

    x = {item: float(number) for items in layers for number, item in enumerate(items)}
    for sweep in range(SWEEPS):
        for items in (reversed(layers) if sweep % 2 else layers):
            wanted = [_mean([(x[other], weight(other)) for side in (above, below) for other in side.get(item, ())],
                            x[item]) for item in items]
            for item, position in zip(items, _spread([*zip(wanted, map(weight, items))])):
                x[item] = position
    least = min(x.values(), default=0.0)
    return {item: position - least for item, position in x.items()}


def _spread(wanted: Sequence[Tuple[float, float]]) -> List[float]:
    """Positions in the same order, at least one apart, the closest to the wanted ones in weighted least squares.

    >>> _spread([(0.0, 1.0), (0.0, 1.0), (5.0, 1.0)])
    [-0.5, 0.5, 5.0]
    """
    blocks: List[Tuple[float, float, int]] = []  # wanted start, weight and number of items that touch and move as one
    for place, (position, weight) in enumerate(wanted):
        block = (position - place, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            start, others, count = blocks.pop()
            block = ((start * others + block[0] * block[1]) / (others + block[1]), others + block[1], count + block[2])
        blocks.append(block)
    spread: List[float] = []
    for start, _, count in blocks:
        spread += [start + place for place in range(len(spread), len(spread) + count)]
    return spread


def _mean(values: Sequence[Tuple[float, float]], default: float) -> float:
    """The mean of ``(value, weight)``."""
    total = sum(weight for _, weight in values)
    return sum(value * weight for value, weight in values) / total if total else default
