"""Which nodes dx must run."""

from typing import List, Sequence, Tuple


def dx_closure(parents: Sequence[Sequence[Tuple[int, int]]], inputs: Sequence[int]) -> List[bool]:
    """For each node whether some input's gradient passes through it: step 2 of the split.

    Breadth first from the input leaves over the reversed edges. A graph without reachable inputs has an empty
    closure: then everything belongs to dw.
    """
    inside = [False] * len(parents)
    queue = []
    for leaf in inputs:
        if not inside[leaf]:
            inside[leaf] = True
            queue.append(leaf)
    for node in queue:  # grows while it is read
        for parent, _ in parents[node]:
            if not inside[parent]:
                inside[parent] = True
                queue.append(parent)
    return inside
