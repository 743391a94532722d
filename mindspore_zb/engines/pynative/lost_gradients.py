"""``@jit`` sub-cells: notice when MindSpore loses their gradients.

A compiled sub-cell that is asked for some of its gradients gets a pruned copy of its backward, and MindSpore keeps six
such copies; with a seventh it answers with nothing, which ``value_and_grad`` passes on as zeros. Here it is an error.
"""

import contextlib
import functools
from typing import Any, Dict, Iterator, Optional, Set

from mindspore_zb.engines.pynative.node_kinds import JIT_GRAPH
from mindspore_zb.engines.pynative.snapshot import Snapshot
from mindspore_zb.errors import UnsupportedError


@contextlib.contextmanager
def refusing_lost_gradients(snapshot: Snapshot, grads: Dict[int, Optional[Any]]) -> Iterator[None]:
    """Around backward runs that fill ``grads``, the gradient of each leaf asked for, by its place in the snapshot.

    Raises:
        UnsupportedError: a compiled sub-cell ran and gave no gradient to a leaf right below it.
    """
    places = [place for place, name in enumerate(snapshot.names) if name == JIT_GRAPH] \
        if JIT_GRAPH in snapshot.names else []
    if not places:
        yield
        return
    edges = snapshot.graph().edges  # now: a run changes the edges of such nodes
    ran: Set[int] = set()
    handles = [snapshot.nodes[place].register_prehook(functools.partial(_note, ran, place)) for place in places]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for place in sorted(ran):
        for edge in edges[place]:
            if edge is not None and edge[0] in grads and grads[edge[0]] is None:
                raise UnsupportedError(
                    f"MindSpore lost the gradient of {snapshot.nodes[edge[0]].name()}, which a @jit sub-cell uses: its "
                    "compiled functions were asked for more than six different sets of gradients in this process; "
                    "always ask for the same inputs and weights, or start a new process")


def _note(ran: Set[int], place: int, _grads: Any) -> None:
    ran.add(place)
