"""A net of three groups of weights, and a way to bring its GradFunction to a state."""

from mindspore import nn, ops

from .helpers import weight


class ThreeGroups(nn.Cell):
    """Two dense layers without a bias, and a scale."""

    def __init__(self):
        super().__init__()
        self.one = nn.Dense(4, 4, has_bias=False)
        self.two = nn.Dense(4, 4, has_bias=False)
        self.scale = weight(4, name="scale")

    def construct(self, x):
        return ops.tanh(self.two(ops.tanh(self.one(x)))) * self.scale


def bring_to(state, grad_fn):
    """Make the calls that lead to a state; returns the same object."""
    if state != "fresh":
        grad_fn.compute_input_grad()
    if state == "after dw":
        grad_fn.compute_weight_grad()
    elif state == "after groups":
        for group in grad_fn.weight_groups:
            group.compute()
    elif state == "released":
        grad_fn.release()
    return grad_fn


GONE = ["after dw", "after groups", "released"]
"""All states in which there is nothing left to compute."""
