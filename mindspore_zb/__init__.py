"""Split the backward pass of any MindSpore computation into dx and dw.

The public names are imported when they are first used, so that the pure parts (:mod:`mindspore_zb.split` and others)
can be imported where there is no MindSpore.
"""

from typing import TYPE_CHECKING

from mindspore_zb.lazy import lazy_names

if TYPE_CHECKING:
    from mindspore_zb.accumulation import GradientAccumulator
    from mindspore_zb.api import forward_and_gradfn
    from mindspore_zb.decorator import zero_bubble
    from mindspore_zb.errors import ZeroBubbleError
    from mindspore_zb.explanation import Explanation, explain
    from mindspore_zb.grad_function import GradFunction
    from mindspore_zb.settings import options
    from mindspore_zb.weight_group import WeightGroup

__all__ = ["Explanation", "GradFunction", "GradientAccumulator", "WeightGroup", "ZeroBubbleError", "explain",
           "forward_and_gradfn", "options", "zero_bubble"]

_MODULES = {"Explanation": "explanation", "GradFunction": "grad_function", "GradientAccumulator": "accumulation",
            "WeightGroup": "weight_group", "ZeroBubbleError": "errors", "explain": "explanation",
            "forward_and_gradfn": "api", "options": "settings", "zero_bubble": "decorator"}

__getattr__, __dir__ = lazy_names(globals(), _MODULES)
