"""``forward_and_gradfn`` with the conventions of MindSpore's ``hyper_parallel``, for its pipeline stages.

Change the one import in ``hyper_parallel/platform/mindspore/pipeline_parallel/stage.py``::

    from mindspore_zb.integrations.hyper_parallel import forward_and_gradfn

What was read: github.com/mindspore-ai/hyper-parallel, version 0.1.0 (2026): ``platform/mindspore/pipeline_parallel/``
with ``backward.py`` (commit 4ae132d6) and ``stage.py`` (7994b2ae), and its test of gradient storage. That stage calls
``accumulate_grad`` and that test uses it, but no published ``backward.py`` that defines it was found: here it is what
they rely on. Nothing was run with the package itself.

Its conventions, all kept here:

* ``grad_position`` is -1 by default: all inputs, and keyword arguments if they hold tensors. ``()``, which a first
  stage passes, means none.
* Every gradient that is computed is also summed into ``_grad`` of its input or weight; ``Tensor.grad`` of
  ``enable_mindspore_backward_compat`` reads that.
* ``compute_weight_grad`` and the weights' part of a call are tuples, also for one bare Parameter. The inputs' part of
  a call with weights is a tuple for positions, and nests like the inputs for -1; keyword arguments' gradients then
  follow as an item of their own.
* ``compute_input_grad`` gives a bare gradient for one position, also for ``(0,)``; ``()`` if none holds a tensor.
* ``sens`` is read leaf by leaf: a list of tensors fits any nesting of outputs. With ``has_aux`` a list's first item
  counts.
* ``accumulate_grad(sens)`` is the unsplit backward whose gradients are wanted in ``_grad``; it returns dx.
* A stage asks ``grad_fn._saved_intermediates`` whether dx has run.

What is different, and meant to be: values are those of ``mindspore.value_and_grad`` also where theirs are not (shared
boundaries; weights without a path get zeros), ``_grad`` never shares memory with a gradient that was handed out and is
really summed on every device, the flags of the inputs stay as they are, the output carries no graph, and errors are
those of this package. Refused is what cannot be right here: weights that are no Parameters.
"""

from typing import Any, Callable, Sequence, Tuple

from mindspore_zb import api
from mindspore_zb.engines.pynative.native import store_grad, stored_grad
from mindspore_zb.errors import ArgumentValueError, StateError
from mindspore_zb.grad_function import GradFunction
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import add_in_place, copied, is_differentiable, is_parameter, is_tensor


def forward_and_gradfn(fn: Callable[..., Any], /, *inputs: Any, weights: Any = None, has_aux: bool = False,
                       grad_position: Any = -1, **kwargs: Any) -> Tuple[Any, "StageGradFunction"]:
    """Run ``fn`` once; :func:`mindspore_zb.forward_and_gradfn` with the conventions above.

    Raises:
        ArgumentTypeError, ArgumentValueError: see there.

    Example:
        >>> from mindspore import nn, ops
        >>> from mindspore_zb.integrations.hyper_parallel import forward_and_gradfn
        >>> net, x = nn.Dense(4, 3), ops.ones((2, 4))
        >>> for micro_batch in range(2):
        ...     out, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params(), grad_position=(0,))
        ...     dx, dw = grad_fn.compute_input_grad([ops.ones_like(out)]), grad_fn.compute_weight_grad()
        >>> net.bias._grad.asnumpy().tolist(), dw[1].asnumpy().tolist()
        ([4.0, 4.0, 4.0], [2.0, 2.0, 2.0])
    """
    if weights is not None and not is_parameter(weights) and hasattr(weights, "__iter__"):
        weights = tuple(weights)
    if isinstance(grad_position, (tuple, list)):
        places = [place for place in grad_position if not _is_place(place, inputs) or is_tensor(inputs[place])]
        position: Any = tuple(places) or None
    else:
        position = grad_position
        if _is_place(position, inputs) and not is_tensor(inputs[position]):
            position = None
    out, grad_fn = api.forward_and_gradfn(fn, *inputs, weights=weights, has_aux=has_aux, grad_position=position,
                                          **kwargs)
    parameters = () if weights is None else (weights,) if is_parameter(weights) else weights
    asked = [*inputs, kwargs] if position == -1 else [] if position is None else \
        [inputs[place] for place in (position if isinstance(position, tuple) else (position,))]
    return out, StageGradFunction(grad_fn, out[0] if has_aux else out, has_aux, asked, parameters, position,
                                  refused=grad_position is None,
                                  keywords_apart=any(is_tensor(leaf) for leaf in flatten(kwargs)[0]))


class StageGradFunction:
    """The backward of one forward pass, as ``hyper_parallel``'s stages use it.

    Attributes:
        grad_function: the :class:`~mindspore_zb.GradFunction` beneath. What it computes itself, such as the dw of
            single groups, is not summed into ``_grad``.
    """

    def __init__(self, grad_function: GradFunction, out: Any, has_aux: bool, asked: Sequence[Any],
                 parameters: Tuple[Any, ...], position: Any, *, refused: bool, keywords_apart: bool):
        self.grad_function = grad_function
        leaves, self._structure = flatten(out)
        self._outputs = [(leaf.shape, leaf.dtype) if is_tensor(leaf) else None for leaf in leaves]
        self._has_aux = has_aux
        self._inputs = flatten(list(asked))[0]
        self._parameters = parameters
        self._position = position
        self._refused = refused  # grad_position was None
        self._keywords_apart = keywords_apart

    @property
    def _saved_intermediates(self) -> bool:
        """Whether dx has run and dw has not."""
        return self.grad_function.state == "dx computed"

    def compute_input_grad(self, sens: Any = None) -> Any:
        """Run dx. Its gradients are also summed into ``_grad`` of the inputs.

        Raises:
            ArgumentValueError: ``grad_position`` is None, or ``sens`` does not fit.
            StateError: dx was computed already, or the graph was released.
        """
        if self._position is None and not self._refused:
            return ()
        dx = self.grad_function.compute_input_grad(self._nested(sens))
        self._sum_into(self._inputs, flatten(dx)[0])
        self._inputs = []
        return self._bare(dx)

    def compute_weight_grad(self, keep_graph: bool = False) -> Tuple[Any, ...]:
        """Run dw. Its gradients are also summed into ``_grad`` of the weights, at each call.

        Raises:
            StateError: dx was not computed yet, or the graph was released.
        """
        dw = _as_tuple(self.grad_function.compute_weight_grad(keep_graph))
        self._sum_into(self._parameters, dw)
        return dw

    def __call__(self, sens: Any = None, keep_graph: bool = False) -> Any:
        """Run the unsplit backward: dx, dw, or both in one tuple. All gradients are also summed into ``_grad``.

        Raises:
            ArgumentValueError, StateError: ``sens`` does not fit, or the split has begun.
        """
        dx, dw = self._whole(sens, keep_graph)
        if self._position is None:
            return dw
        if not self._parameters:
            return self._bare(dx)
        if self._position != -1:
            return (dx if isinstance(dx, tuple) else (dx,)), dw
        return (*dx, dw) if self._keywords_apart else (dx, dw)

    def accumulate_grad(self, sens: Any = None) -> Any:
        """Run what is left of the backward for its sums in ``_grad``: all of it, or dw if dx has run.

        Returns:
            dx as of :meth:`compute_input_grad`; ``()`` if no input was asked for or dx had run.

        Raises:
            ArgumentValueError, StateError: ``sens`` does not fit, or the graph was released.
        """
        if self._saved_intermediates:
            if sens is not None:
                raise StateError("dx was computed already, from a sens of its own: call accumulate_grad without one")
            self.compute_weight_grad()
            return ()
        dx, _ = self._whole(sens, keep_graph=False)
        return () if self._position is None else self._bare(dx)

    def release(self) -> None:
        """Let go of the graph at once."""
        self.grad_function.release()

    def _whole(self, sens: Any, keep_graph: bool) -> Tuple[Any, Tuple[Any, ...]]:
        found = self.grad_function(self._nested(sens), keep_graph)
        if self._position is None:
            dx, dw = (), found
        else:
            dx, dw = found if self._parameters else (found, ())
        dw = _as_tuple(dw)
        self._sum_into(self._inputs, flatten(dx)[0])
        self._sum_into(self._parameters, dw)
        if not keep_graph:
            self._inputs = []
        return dx, dw

    def _nested(self, sens: Any) -> Any:
        """``sens`` nested like the outputs."""
        if sens is None:
            return None
        if self._has_aux and isinstance(sens, (tuple, list)):
            sens = sens[:1]
        given = [leaf for leaf in flatten(sens)[0] if leaf is None or is_tensor(leaf)]
        wanted = sum(meta is not None for meta in self._outputs)
        if len(given) != wanted:
            raise ArgumentValueError(f"sens has {len(given)} tensors, but the outputs are {wanted}")
        waiting = iter(given)
        return self._structure.unflatten([None if meta is None else next(waiting) for meta in self._outputs])

    def _bare(self, dx: Any) -> Any:
        return dx[0] if isinstance(self._position, tuple) and len(dx) == 1 else dx

    @staticmethod
    def _sum_into(tensors: Sequence[Any], grads: Sequence[Any]) -> None:
        for tensor, grad in zip(tensors, grads):
            if grad is None or not is_differentiable(tensor):
                continue
            before = stored_grad(tensor)
            if before is None:
                store_grad(tensor, copied(grad))
            else:
                add_in_place(before, grad)


def _as_tuple(dw: Any) -> Tuple[Any, ...]:
    return dw if isinstance(dw, tuple) else (dw,)


def _is_place(position: Any, inputs: tuple) -> bool:
    return isinstance(position, int) and not isinstance(position, bool) and 0 <= position < len(inputs)
