"""Run dw: each group from the gradients that dx captured for it."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

from mindspore_zb.engines.pynative.dx import Caught
from mindspore_zb.engines.pynative.native import run_backward
from mindspore_zb.engines.pynative.planner import GroupPlan

AT_ONCE = 16
"""Groups that share one backward run when several are asked for: a run costs some 10 us, more than a small dw; and a
run frees each node after it, so little is held longer."""


class GroupState:
    """What dw of one group needs, from the end of dx to its own.

    Attributes:
        weights: positions of the group's weights.
        edges: ``(node, slot)`` where gradients enter.
        grads: these gradients.
    """

    __slots__ = ("weights", "edges", "grads")

    def __init__(self, nodes: Sequence[Any], group: GroupPlan, captured: Dict[int, tuple], caught: Caught):
        self.weights = group.weights
        self.edges: List[Tuple[Any, int]] = []
        self.grads: List[Any] = []
        for node in group.kept:
            for slot, grad in enumerate(captured.pop(node, ())):
                if grad is not None:
                    self.edges.append((nodes[node], slot))
                    self.grads.append(grad)
        for target in group.targets:
            for grad in caught.pop(target, ()):
                self.edges.append((nodes[target[0]], target[1]))
                self.grads.append(grad)

    def held_bytes(self) -> int:
        """Bytes of the gradients that wait, each storage once."""
        return sum({grad.data_ptr(): grad.nbytes for grad in self.grads}.values())


def run_dw(states: Sequence[GroupState], weights: Sequence[Any],
           keep_graph: bool) -> List[Tuple[int, Optional[Any]]]:
    """Gradients of the groups' weights as ``(position, gradient)``, None where no gradient arrives.

    ``weights`` are all weights of the request. Unless ``keep_graph``, each state gives up its gradients.
    """
    results: List[Tuple[int, Optional[Any]]] = []
    for first in range(0, len(states), AT_ONCE):
        together = states[first:first + AT_ONCE]
        positions = [position for state in together for position in state.weights]
        edges = [edge for state in together for edge in state.edges]
        grads = [grad for state in together for grad in state.grads]
        if not keep_graph:
            for state in together:
                state.edges, state.grads = [], []
        if edges:
            found = run_backward(edges, grads, [weights[position] for position in positions], keep_graph)
        else:
            found = (None,) * len(positions)
        results.extend(zip(positions, found))
    return results
