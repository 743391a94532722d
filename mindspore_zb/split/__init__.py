"""The split of a backward graph into dx and dw: pure Python, no framework.

Words used throughout
---------------------
node
    One step of the backward pass. It receives gradients of its outputs, one per *slot*, and sends gradients along
    its *edges*.
edge
    ``(child, slot)``: where a node sends one of its gradients. Edges keep the order the framework gives them.
root
    ``(node, slot)`` that receives a gradient from outside (the gradient of an output).
input, weight
    Leaf nodes whose gradients are asked for: dx and dw.
dx closure
    Every node that some input's gradient passes through. Exactly what dx must run.
boundary node
    A node of the closure with an edge that leads, outside the closure, to a weight. dw starts there.
group
    Weights whose dw share work: connected through shared boundary nodes or shared nodes outside the closure.

The order of the modules is the order of the algorithm: :mod:`~mindspore_zb.split.graph`,
:mod:`~mindspore_zb.split.closure`, :mod:`~mindspore_zb.split.groups`, :mod:`~mindspore_zb.split.plan`,
:mod:`~mindspore_zb.split.check`, which proves a plan right, and :mod:`~mindspore_zb.split.passes`, which cuts dx into
runs that free memory early.
"""

from mindspore_zb.split.check import check_plan
from mindspore_zb.split.graph import BackwardGraph, GraphError
from mindspore_zb.split.passes import DxPass, plan_passes
from mindspore_zb.split.plan import Boundary, Group, SplitPlan, split_backward

__all__ = ["BackwardGraph", "Boundary", "DxPass", "Group", "GraphError", "SplitPlan", "check_plan", "plan_passes",
           "split_backward"]
