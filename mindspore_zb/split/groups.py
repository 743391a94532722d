"""Which weights belong together, and where their dw starts."""

from typing import Dict, List, Sequence, Tuple


class UnionFind:
    """Disjoint sets of the integers below ``size``; the smallest member names the set, so order never matters."""

    def __init__(self, size: int):
        self._parent = list(range(size))

    def find(self, item: int) -> int:
        """The smallest member of the set that holds ``item``."""
        parent = self._parent
        top = item
        while parent[top] != top:
            top = parent[top]
        while parent[item] != top:  # compress, so that long chains stay linear
            parent[item], item = top, parent[item]
        return top

    def union(self, one: int, other: int) -> None:
        """Make one set of the two that hold ``one`` and ``other``."""
        one, other = self.find(one), self.find(other)
        if one != other:
            self._parent[max(one, other)] = min(one, other)


def weight_side(parents: Sequence[Sequence[Tuple[int, int]]], inside: Sequence[bool],
                weights: Sequence[int]) -> Tuple[List[int], Dict[int, List[int]], UnionFind]:
    """Climb from all weights at once to the first closure nodes they meet: steps 3 and 4 of the split.

    Climbing once for all weights, and joining sets on the way, keeps the cost linear where many weights share a
    long way up.

    Returns:
        ``(nodes, boundaries, sets)``: the nodes outside the closure that lead to a weight, the weights included;
        for each boundary node the sorted indices of its edges that lead to a weight; and the sets of nodes that
        dw must treat together.
    """
    sets = UnionFind(len(parents))
    seen = [False] * len(parents)
    queue = []
    for leaf in weights:
        if not seen[leaf]:
            seen[leaf] = True
            queue.append(leaf)
    boundaries: Dict[int, List[int]] = {}
    for node in queue:  # grows while it is read
        for parent, index in parents[node]:
            sets.union(node, parent)
            if inside[parent]:
                boundaries.setdefault(parent, []).append(index)
            elif not seen[parent]:
                seen[parent] = True
                queue.append(parent)
    for edges in boundaries.values():
        edges.sort()
    return queue, boundaries, sets
