"""Split the backward pass of any MindSpore computation into dx and dw."""

from mindspore_zb.api import forward_and_gradfn
from mindspore_zb.decorator import zero_bubble
from mindspore_zb.errors import ZeroBubbleError
from mindspore_zb.explanation import Explanation, explain
from mindspore_zb.grad_function import GradFunction, WeightGroup
from mindspore_zb.settings import options

__all__ = ["Explanation", "GradFunction", "WeightGroup", "ZeroBubbleError", "explain", "forward_and_gradfn", "options",
           "zero_bubble"]
