"""Run dw: each group from the gradients that dx captured for it."""

import abc
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from mindspore_zb.engines.pynative.dx import Caught
from mindspore_zb.engines.pynative.native import meta_bytes, output_meta, run_backward
from mindspore_zb.engines.pynative.planner import GroupPlan

AT_ONCE = 16
"""Groups that share one backward run when several are asked for: a run costs some 10 us, more than a small dw; and a
run frees each node after it, so little is held longer."""


class GroupState(abc.ABC):
    """What dw of one group holds, from the end of dx to its own."""

    def __init__(self, plan: GroupPlan):
        self.weights = plan.group.weights

    @abc.abstractmethod
    def held(self) -> Sequence[Any]:
        """The gradients that are held."""

    def captured(self) -> Dict[int, int]:
        """Bytes of the gradients that are held, by the address of their storage."""
        return {grad.data_ptr(): grad.nbytes for grad in self.held()}

    def activations(self) -> Dict[Tuple[int, int], int]:
        """Bytes of the activations that dw keeps alive, by the output they are; see ``saved.py``."""
        return {}


class ReadyState(GroupState):
    """The gradients were computed during dx."""

    def __init__(self, plan: GroupPlan, grads: List[Optional[Any]]):
        super().__init__(plan)
        self.grads = grads

    def held(self) -> Sequence[Any]:
        return [grad for grad in self.grads if grad is not None]


class WaitingState(GroupState):
    """The gradients where dw starts.

    Attributes:
        edges: ``(node, slot)`` where gradients enter.
        grads: these gradients.
        beside: leaf nodes to ask for besides the weights.
    """

    def __init__(self, plan: GroupPlan, nodes: Sequence[Any], captured: Dict[int, tuple], caught: Caught):
        super().__init__(plan)
        self.edges: List[Tuple[Any, int]] = []
        self.grads: List[Any] = []
        self.beside = [nodes[node] for node in plan.beside]
        for node in plan.kept:
            for slot, grad in enumerate(captured.pop(node, ())):
                if grad is not None:
                    self.edges.append((nodes[node], slot))
                    self.grads.append(grad)
        self._saved = plan.saved
        self._shapes = [output_meta(nodes[node], slot) for node, slot in plan.saved]  # the nodes will be gone
        for target in plan.targets:
            for grad in caught.pop(target, ()):
                self.edges.append((nodes[target[0]], target[1]))
                self.grads.append(grad)

    def held(self) -> Sequence[Any]:
        return self.grads

    def activations(self) -> Dict[Tuple[int, int], int]:
        return dict(zip(self._saved, map(meta_bytes, self._shapes))) if self.edges else {}


def held_bytes(states: Iterable[GroupState]) -> int:
    """Bytes of the gradients and activations that these groups hold, each storage once."""
    captured: Dict[int, int] = {}
    activations: Dict[Tuple[int, int], int] = {}
    for state in states:
        captured.update(state.captured())
        activations.update(state.activations())
    return sum(captured.values()) + sum(activations.values())


def run_dw(states: Sequence[GroupState], weights: Sequence[Any],
           keep_graph: bool) -> List[Tuple[int, Optional[Any]]]:
    """Gradients of the groups' weights as ``(position, gradient)``, None where no gradient arrives.

    ``weights`` are all weights of the request. Unless ``keep_graph``, each state gives up its gradients.
    """
    results: List[Tuple[int, Optional[Any]]] = []
    waiting = []
    for state in states:
        if isinstance(state, ReadyState):
            results.extend(zip(state.weights, state.grads))
        else:
            waiting.append(state)
    for first in range(0, len(waiting), AT_ONCE):
        results.extend(_run_together(waiting[first:first + AT_ONCE], weights, keep_graph))
    return results


def _run_together(states: Sequence[WaitingState], weights: Sequence[Any],
                  keep_graph: bool) -> List[Tuple[int, Optional[Any]]]:
    positions = [position for state in states for position in state.weights]
    edges = [edge for state in states for edge in state.edges]
    grads = [grad for state in states for grad in state.grads]
    beside = [node for state in states for node in state.beside]
    if not keep_graph:
        for state in states:
            state.edges, state.grads, state.beside = [], [], []
    if not edges:
        return [(position, None) for position in positions]
    leaves = [weights[position] for position in positions]
    return list(zip(positions, run_backward(edges, grads, leaves, keep_graph, beside)))
