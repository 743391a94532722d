"""The way in: :func:`forward_and_gradfn`. ``decorator.py`` builds on it."""

from typing import Any, Callable, Optional, Sequence, Tuple

import mindspore as ms
from mindspore import nn

from mindspore_zb.arguments import InputLayout, OutputLayout, check_grad_position, check_weights
from mindspore_zb.engines.base import Recording
from mindspore_zb.engines.pynative.native import leaf_alias
from mindspore_zb.engines.pynative.recording import record
from mindspore_zb.engines.watch import current_watcher
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, UnsupportedVersionError
from mindspore_zb.fallback import refuse_or_warn, warn_of_block
from mindspore_zb.grad_function import GradFunction, Request
from mindspore_zb.settings import current_options
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import detached, is_parameter, is_tensor


def forward_and_gradfn(fn: Callable[..., Any], /, *inputs: Any, weights: Any = None, has_aux: bool = False,
                       grad_position: Any = 0, **kwargs: Any) -> Tuple[Any, GradFunction]:
    """Run ``fn`` once, and return its result and a function for its backward, whole or split into dx and dw.

    Args:
        fn: a Cell, function, bound method, ``functools.partial`` or other callable.
        *inputs: positional arguments of ``fn``: any nesting of tuples, lists and dicts of tensors and other values.
        weights: the weights of dw: None, one Parameter, or an iterable of Parameters.
        has_aux: ``fn`` returns ``(out, *aux)`` and only ``out`` is differentiated.
        grad_position: the inputs of dx: an int for that input's bare gradient, a tuple of ints for a tuple of
            gradients, -1 for all inputs (and keyword arguments, if they hold tensors), None for none.
        **kwargs: keyword arguments of ``fn``; ``weights``, ``has_aux`` and ``grad_position``
            are not passed on.

    Returns:
        ``(out, grad_fn)``: the result of ``fn`` without history (with ``has_aux`` the whole tuple), and a
        :class:`GradFunction`.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument, or what ``fn`` returns, cannot be used. What ``fn`` itself
            raises passes through. In either case nothing of the caller's has changed.

    Example:
        >>> import mindspore as ms
        >>> from mindspore import nn, ops
        >>> from mindspore_zb import forward_and_gradfn
        >>> net, x = nn.Dense(4, 3), ops.ones((2, 4))
        >>> out, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        >>> dx = grad_fn.compute_input_grad()      # send it to the previous stage at once
        >>> dw = grad_fn.compute_weight_grad()     # in the next idle slot
        >>> dx.shape, [grad.shape for grad in dw]
        ((2, 4), [(3, 4), (3,)])
    """
    return run_forward(fn, inputs, kwargs, weights, has_aux, grad_position)


def run_forward(fn: Callable[..., Any], inputs: tuple, kwargs: dict, weights: Any, has_aux: bool,
                grad_position: Any, mode: str = "auto") -> Tuple[Any, GradFunction]:
    """:func:`forward_and_gradfn` with the arguments of ``fn`` apart from its own, and a choice of engine."""
    check_mode(mode)
    if not callable(fn):
        raise ArgumentTypeError(f"fn must be callable, not a {type(fn).__name__}")
    if not isinstance(has_aux, bool):
        raise ArgumentTypeError(f"has_aux must be True or False, not {has_aux!r}")
    checked_weights = check_weights(weights)
    position = check_grad_position(grad_position, len(inputs))
    if position is None and not checked_weights.parameters:
        raise ArgumentValueError("weights is empty and grad_position is None: there is nothing to differentiate")
    layout = InputLayout(inputs, kwargs, position)
    args, rebound_kwargs, leaves = layout.rebind(leaf_alias, detached)
    outputs = _Outputs(has_aux)
    reason: Optional[str] = None
    engine, recording = "pynative", None
    if mode == "graph" or (mode == "auto" and is_compiled(fn)):
        recorded = _compiled(fn, args, rebound_kwargs, leaves, checked_weights.parameters, has_aux)
        if isinstance(recorded, str):
            reason = recorded
            refuse_or_warn(fn, mode, reason)
        else:
            engine, recording = "graph", recorded.recording
            outputs(recorded.result)
    if recording is None:
        recording = _eager(fn, args, rebound_kwargs, leaves, checked_weights.parameters, outputs, mode)
    request = Request(checked_weights, position is not None, layout, outputs.layout,
                      tuple((leaf.shape, leaf.dtype) for leaf in leaves))
    grad_fn = GradFunction(recording, request, engine, reason)
    watcher = current_watcher()
    if watcher is not None:
        watcher.made(grad_fn)
    return outputs.detached(), grad_fn


def _eager(fn: Callable[..., Any], args: tuple, kwargs: dict, leaves: Sequence[Any], weights: Sequence[Any],
           outputs: "_Outputs", mode: str) -> Recording:
    """The forward run by the PyNative engine, compiled blocks in it by the graph engine if that may choose."""
    chosen = current_options()
    if mode == "auto" and chosen.split_blocks:
        try:
            from mindspore_zb.engines.mixed.record import CutSettings, record_mixed
        except UnsupportedVersionError:
            pass
        else:
            pieces = None if chosen.graph_pieces is None else 1  # a net of many blocks has many groups anyway
            return record_mixed(fn, args, kwargs, leaves, weights, outputs, chosen.free_early,
                                CutSettings(pieces, chosen.graph_recompute, chosen.graph_cache or ""), warn_of_block)
    return record(fn, args, kwargs, leaves, weights, outputs, chosen.free_early)


def _compiled(fn: Callable[..., Any], args: tuple, kwargs: dict, leaves: Sequence[Any], weights: Sequence[Any],
              has_aux: bool) -> Any:
    """The forward run by the graph engine, or why it cannot be."""
    try:
        from mindspore_zb.engines.graph.record import CutSettings, record_compiled
    except UnsupportedVersionError as error:
        return str(error)
    chosen = current_options()
    return record_compiled(fn, args, kwargs, leaves, weights, has_aux,
                           CutSettings(chosen.graph_pieces, chosen.graph_recompute, chosen.graph_cache or ""))


def check_mode(mode: Any) -> None:
    """Raise unless ``mode`` is one that this version has."""
    if not isinstance(mode, str) or mode not in ("auto", "pynative", "graph"):
        raise ArgumentValueError(f"mode must be 'auto', 'pynative' or 'graph', not {mode!r}")


def is_compiled(fn: Any) -> bool:
    """Whether ``fn`` is a ``@jit`` function, a Cell whose construct is one, or any Cell in MindSpore's graph mode."""
    if isinstance(fn, nn.Cell) and ms.get_context("mode") == ms.GRAPH_MODE:
        return True
    return hasattr(fn, "__wrapped_by_jit__") or hasattr(getattr(fn, "construct", None), "__wrapped_by_jit__")


class _Outputs:
    """What ``fn`` returned, taken apart."""

    def __init__(self, has_aux: bool):
        self._has_aux = has_aux
        self._aux: tuple = ()
        self.layout: OutputLayout

    def __call__(self, result: Any) -> list:
        """The differentiated tensors of ``result``."""
        if self._has_aux:
            if not isinstance(result, (tuple, list)) or not result:
                raise ArgumentTypeError("with has_aux, fn must return a tuple (out, *aux), but it returned a "
                                        f"{type(result).__name__}")
            result, self._aux = result[0], tuple(result[1:])
        self.layout = OutputLayout(result)
        return self.layout.differentiable

    def detached(self) -> Any:
        """The result of ``fn`` without history: the caller may keep it and no graph stays alive."""
        out = self.layout.replace_leaves(detached)
        if not self._has_aux:
            return out
        leaves, structure = flatten(self._aux)
        self._aux = ()
        return (out, *structure.unflatten([detached(leaf) if is_tensor(leaf) and not is_parameter(leaf) else leaf
                                           for leaf in leaves]))
