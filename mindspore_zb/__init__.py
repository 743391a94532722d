"""Split the backward pass of any MindSpore computation into dx and dw.

The public names are imported when they are first used, so that the pure parts (:mod:`mindspore_zb.split` and others)
can be imported where there is no MindSpore.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindspore_zb.api import forward_and_gradfn
    from mindspore_zb.decorator import zero_bubble
    from mindspore_zb.errors import ZeroBubbleError
    from mindspore_zb.explanation import Explanation, explain
    from mindspore_zb.grad_function import GradFunction
    from mindspore_zb.settings import options
    from mindspore_zb.weight_group import WeightGroup

__all__ = ["Explanation", "GradFunction", "WeightGroup", "ZeroBubbleError", "explain", "forward_and_gradfn", "options",
           "zero_bubble"]

_MODULES = {"Explanation": "explanation", "GradFunction": "grad_function", "WeightGroup": "weight_group",
            "ZeroBubbleError": "errors", "explain": "explanation", "forward_and_gradfn": "api", "options": "settings",
            "zero_bubble": "decorator"}


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__():
    return sorted({*globals(), *__all__})
