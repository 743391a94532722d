"""Run dx: the passes of a plan, and the capture of what flows into the boundary nodes."""

import functools
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mindspore as ms

from mindspore_zb.engines.pynative.native import Meta, allowing_grad_inside, new_leaf, redirect_edge, run_backward
from mindspore_zb.engines.pynative.planner import Plan
from mindspore_zb.split import DxPass

Grads = List[Any]
Caught = Dict[Tuple[int, int], Grads]
"""For each target ``(node, slot)`` the gradients that wait for it; they are added by MindSpore, in this order."""


def run_dx(nodes: Sequence[Any], plan: Plan, caught: Caught, inputs: Dict[int, Any],
           metas: Dict[Tuple[int, int], Meta], grad_inside: bool) -> Dict[int, tuple]:
    """Run all passes.

    Args:
        nodes: the snapshot's nodes.
        plan: the plan for them.
        caught: the gradients of the outputs, by target. What is left in it afterwards are the gradients of these
            leaves, under ``(leaf, 0)``, and what dw starts from besides the captured gradients.
        inputs: the tensor of each leaf whose gradient dx computes.
        metas: shape and dtype of what is meant for each of the plan's fitted targets.
        grad_inside: whether every pass must allow gradients to be recorded while it runs.

    Returns:
        For each kept boundary node the gradients that flowed into its slots, None for a slot without.
    """
    captured: Dict[int, tuple] = {}
    inside = list(plan.needs_grad_inside)
    if grad_inside:
        inside += sorted({entry[0] for dx_pass in plan.passes for entry in dx_pass.entries})
    handles = [nodes[node].register_prehook(functools.partial(_keep, captured, node)) for node in plan.kept]
    try:
        with allowing_grad_inside([nodes[node] for node in inside]):
            for dx_pass in plan.passes:
                _run_pass(nodes, dx_pass, caught, inputs, metas, keep_graph=plan.keeps and not dx_pass.frees,
                          beside=[nodes[node] for node in plan.beside])
    finally:
        for handle in handles:
            handle.remove()
    return captured


def _keep(captured: Dict[int, tuple], node: int, grads: tuple) -> None:
    """A prehook that writes down what flows into a node."""
    captured[node] = grads


def _run_pass(nodes: Sequence[Any], dx_pass: DxPass, caught: Caught, inputs: Dict[int, Any],
              metas: Dict[Tuple[int, int], Meta], keep_graph: bool, beside: Sequence[Any]) -> None:
    edges: List[Tuple[Any, int]] = []
    grads: Grads = []

    def start(node: Any, slot: int, waiting: Optional[Grads]) -> None:
        for grad in waiting or ():
            edges.append((node, slot))
            grads.append(grad)

    for target in dx_pass.entries:
        start(nodes[target[0]], target[1], caught.pop(target, None))
    if not edges or not dx_pass.exits:
        return
    leaves = []
    catchers = {}
    for place, target in enumerate(dx_pass.exits):
        waiting = caught.get(target)
        if target[0] in inputs:
            leaf, node = inputs[target[0]], nodes[target[0]]
        elif target in metas:
            leaf, node = catchers[target] = new_leaf(metas[target][1], metas[target][0])
        else:
            leaf, node = catchers[target] = _catching_leaf(place, waiting)
        start(node, 0, waiting)  # earlier passes' part first: the order of additions stays that of one run
        leaves.append(leaf)
    for cut in dx_pass.cuts:
        redirect_edge(nodes[cut.node], cut.index, catchers[cut.target][1])
    for target, grad in zip(dx_pass.exits, run_backward(edges, grads, leaves, keep_graph, beside)):
        if grad is not None:
            caught[target] = [grad]


def leaf_grad(node: Any, tensor: Any, waiting: Sequence[Any]) -> Optional[Any]:
    """The gradient of a leaf from what waits for it: several gradients if it is itself several of the outputs."""
    if len(waiting) < 2:
        return waiting[0] if waiting else None
    return run_backward([(node, 0)] * len(waiting), waiting, [tensor], keep_graph=True)[0]


def _catching_leaf(place: int, waiting: Optional[Grads]) -> Tuple[Any, Any]:
    """A leaf that stands in for a target, and its node; used again in later runs of the thread.

    A run that starts at a leaf casts to the leaf's dtype, so it must be that of what waits.
    """
    dtype = waiting[0].dtype if waiting else ms.float32
    pool = _POOL.__dict__.setdefault(dtype, [])
    while len(pool) <= place:
        pool.append(new_leaf(dtype))
    return pool[place]


_POOL = threading.local()
