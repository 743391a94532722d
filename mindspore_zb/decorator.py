"""``@zero_bubble``: a Cell or function that remembers how its backward is to be split."""

import inspect
import types
from dataclasses import dataclass
from typing import Any, Callable, Tuple

from mindspore import nn

from mindspore_zb.api import check_mode, run_forward
from mindspore_zb.arguments import check_weights
from mindspore_zb.engines.pynative.observe import watch_graph_cells
from mindspore_zb.errors import ArgumentTypeError
from mindspore_zb.grad_function import GradFunction


@dataclass(frozen=True)
class _Settings:
    """What the decorator was given; ``weights`` None stands for the trainable parameters of a Cell."""

    weights: Any
    grad_position: Any
    has_aux: bool
    mode: str

    def run(self, target: Any, inputs: tuple, kwargs: dict) -> Tuple[Any, GradFunction]:
        return run_forward(target, inputs, kwargs, self._weights_of(target), self.has_aux, self.grad_position,
                           self.mode)

    def _weights_of(self, target: Any) -> Any:
        if self.weights is None:
            return target.trainable_params() if isinstance(target, nn.Cell) else None
        if callable(self.weights) and not isinstance(self.weights, nn.Cell):
            return self.weights(target)
        return self.weights


def zero_bubble(target: Any = None, *, weights: Any = None, grad_position: Any = 0, has_aux: bool = False,
                mode: str = "auto") -> Any:
    """Give a Cell class, a Cell instance or a function a method ``forward_and_gradfn(*inputs, **kwargs)``.

    It is :func:`~mindspore_zb.forward_and_gradfn` with the settings below. The target itself is returned, and still
    works as before.

    Args:
        target: what to decorate; without it, ``zero_bubble(...)`` is a decorator.
        weights: the weights of dw. Default: the trainable parameters of the Cell at each call; none for a function.
            A callable is called with the target at each call, so that a class can be decorated.
        grad_position, has_aux: as for :func:`~mindspore_zb.forward_and_gradfn`.
        mode: ``"auto"``, ``"pynative"`` or ``"graph"``: which engine records the forward. A Cell with ``"graph"`` is
            split by compiled pieces of its own also where an eager net calls it.

    Raises:
        ArgumentTypeError, ArgumentValueError: ``target`` is neither of the three, or a setting cannot be used.
        UnsupportedError: ``mode`` is ``"graph"``, which this version does not have.

    Example:
        >>> from mindspore import nn, ops
        >>> from mindspore_zb import zero_bubble
        >>> @zero_bubble
        ... class Stage(nn.Cell):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.dense = nn.Dense(4, 3)
        ...
        ...     def construct(self, x):
        ...         return ops.tanh(self.dense(x))
        >>> stage = Stage()
        >>> out, grad_fn = stage.forward_and_gradfn(ops.ones((2, 4)))
        >>> dx, dw = grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()
        >>> dx.shape, len(dw)
        ((2, 4), 2)
    """
    check_mode(mode)
    if weights is not None and not callable(weights):
        checked = check_weights(weights)  # now, and once: a generator would be empty at the second call
        weights = checked.parameters[0] if checked.single else checked.parameters
    settings = _Settings(weights, grad_position, has_aux, mode)
    if mode == "graph":
        watch_graph_cells()
    return _attach(settings) if target is None else _attach(settings)(target)


def _attach(settings: _Settings) -> Callable[[Any], Any]:
    def decorate(target: Any) -> Any:
        if inspect.isclass(target) and issubclass(target, nn.Cell):
            target.forward_and_gradfn = _method(settings)
        elif isinstance(target, nn.Cell):
            target.forward_and_gradfn = types.MethodType(_method(settings), target)  # a copy binds to the copied Cell
        elif callable(target) and not inspect.isclass(target):
            _attach_to_callable(settings, target)
        else:
            raise ArgumentTypeError("zero_bubble decorates a Cell class, a Cell instance or a function, not "
                                    f"{target!r}")
        return target

    return decorate


def _attach_to_callable(settings: _Settings, target: Any) -> None:
    code = getattr(target, "__code__", None)
    if code is not None and code.co_varnames[:1] == ("self",):
        raise ArgumentTypeError("zero_bubble decorates a Cell class, a Cell instance or a function, but "
                                f"{target.__qualname__} is a method: decorate its class")
    method = types.MethodType(_method(settings), target)
    try:
        target.forward_and_gradfn = method
    except AttributeError as error:
        raise ArgumentTypeError(f"zero_bubble cannot give a {type(target).__name__} a method: decorate the function "
                                "itself, or call forward_and_gradfn") from error


def _method(settings: _Settings) -> Callable[..., Any]:
    def forward_and_gradfn(self, *inputs: Any, **kwargs: Any) -> Tuple[Any, GradFunction]:
        """Run it once; see ``mindspore_zb.forward_and_gradfn``."""
        return settings.run(self, inputs, kwargs)

    forward_and_gradfn.zero_bubble_mode = settings.mode
    return forward_and_gradfn
