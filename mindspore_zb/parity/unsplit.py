"""The unsplit backward by MindSpore alone: ``mindspore.value_and_grad``, or ``GradOperation`` where sens is given."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import mindspore as ms
from mindspore import ParameterTuple, ops

from mindspore_zb.arguments import ALL_INPUTS
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import is_differentiable, is_tensor, zeros


def asked_of(inputs: tuple, kwargs: Dict[str, Any], grad_position: Any) -> Any:
    """The arguments that gradients are asked for, nested as these gradients will be."""
    if grad_position is None:
        return ()
    if grad_position == ALL_INPUTS:
        has_tensors = any(is_tensor(leaf) for leaf in flatten(kwargs)[0])
        return (tuple(inputs), kwargs) if has_tensors else tuple(inputs)
    return inputs[grad_position] if isinstance(grad_position, int) else tuple(inputs[place] for place in grad_position)


def unsplit_backward(fn: Callable[..., Any], inputs: tuple, kwargs: Dict[str, Any], weights: Sequence[Any],
                     has_aux: bool, grad_position: Any, sens: Any, starts: Sequence[Any]) -> Tuple[Any, Any, List[Any]]:
    """Run ``fn`` once and its whole backward.

    Args:
        fn, inputs, kwargs, weights, has_aux, grad_position: as for :func:`~mindspore_zb.forward_and_gradfn`, checked;
            every tensor of ``inputs`` and ``kwargs`` is an object of its own.
        sens: as for ``compute_input_grad``.
        starts: the tensors of ``sens``, in the order of the outputs; not used if it is None.

    Returns:
        The result of ``fn``, dx nested like the arguments asked for, and dw as a list.
    """
    asked, structure = flatten(asked_of(inputs, kwargs, grad_position))
    tensors = [leaf for leaf in asked if is_differentiable(leaf)]
    live = [weight for weight in weights if weight.requires_grad]
    results: List[Any] = []

    def flat(*traced: Any) -> Tuple[Any, ...]:
        place = {id(tensor): new for tensor, new in zip(tensors, traced)}
        results.append(fn(*_replaced(inputs, place), **_replaced(kwargs, place)))
        return tuple(tensor for tensor, _ in pairs_of(results[-1][0] if has_aux else results[-1], sens))

    if (sens is None or starts) and (tensors or live):
        dx, dw = _gradients(flat, tensors, live, None if sens is None else tuple(starts))
    else:
        flat(*tensors)
        dx, dw = map(_zeros, (tensors, live))
    waiting = iter(dx)
    found = {id(weight): grad for weight, grad in zip(live, dw)}
    return (results[-1], structure.unflatten([next(waiting) if is_differentiable(leaf) else None for leaf in asked]),
            [found[id(weight)] if id(weight) in found else _zeros([weight])[0] for weight in weights])


def pairs_of(out: Any, sens: Any) -> List[Tuple[Any, Optional[Any]]]:
    """Each output that gets a gradient, with this gradient; None for ones."""
    pairs: List[Tuple[Any, Optional[Any]]] = []

    def collect(value: Any, entry: Any) -> None:
        if isinstance(value, (tuple, list, dict)):
            for key in value if isinstance(value, dict) else range(len(value)):
                collect(value[key], None if entry is None else entry[key])
        elif is_differentiable(value) and (sens is None or entry is not None):
            pairs.append((value, entry))

    collect(out, sens)
    return pairs


def _gradients(flat: Callable[..., Any], tensors: Sequence[Any], weights: Sequence[Any],
               starts: Optional[tuple]) -> Tuple[Sequence[Any], Sequence[Any]]:
    # the constructor of ParameterTuple refuses equal names, which Cells give their parameters at their first call
    chosen = tuple.__new__(ParameterTuple, weights) if weights else None
    if starts is None:
        places = tuple(range(len(tensors))) if tensors else None
        _, grads = ms.value_and_grad(flat, places, chosen)(*tensors)
    else:
        operation = ops.GradOperation(get_all=bool(tensors), get_by_list=bool(weights), sens_param=True)
        call = operation(flat, chosen) if weights else operation(flat)
        grads = call(*tensors, starts)
    dx, dw = grads if tensors and weights else (grads, ()) if tensors else ((), grads)
    return tuple([dx] if is_tensor(dx) else dx), tuple([dw] if is_tensor(dw) else dw)  # one alone may come bare


def _replaced(value: Any, place: Dict[int, Any]) -> Any:
    leaves, structure = flatten(value)
    return structure.unflatten([place.get(id(leaf), leaf) for leaf in leaves])


def _zeros(tensors: Sequence[Any]) -> List[Any]:
    return [zeros(tensor.shape, tensor.dtype) for tensor in tensors]
