"""Sums of gradients over the micro-batches of a step, in place."""

import threading
from typing import Any, Dict, Iterable, Sequence, Tuple, Union

import mindspore as ms

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, StateError
from mindspore_zb.grad_function import GradFunction
from mindspore_zb.tensors import add_in_place, copied, is_parameter, is_tensor, zeros
from mindspore_zb.weight_group import WeightGroup

_HALF_PRECISION = (ms.float16, ms.bfloat16)


class GradientAccumulator:
    """One buffer for each weight, to which the gradients of the micro-batches are added in place.

    The first gradient of a step is copied into the buffer, not added to what was there, and never becomes the buffer:
    gradients may share memory with each other and with what dw still reads. Buffers are never handed to dw, so a group
    may be added while others wait.

    Args:
        weights: Parameters, in the order of :meth:`gradients`; repeated ones count once.
        float32: sum the gradients of float16 and bfloat16 weights in float32. (On some devices MindSpore cannot sum
            bfloat16 in any other way, and says so.)

    Raises:
        ArgumentTypeError: one of them is no Parameter.

    Example:
        >>> from mindspore import nn, ops
        >>> from mindspore_zb import GradientAccumulator, forward_and_gradfn
        >>> net = nn.Dense(4, 3)
        >>> weights = net.trainable_params()
        >>> accumulator, optimizer = GradientAccumulator(weights), nn.SGD(weights, learning_rate=0.1)
        >>> for micro_batch in (ops.ones((2, 4)), ops.zeros((2, 4))):
        ...     out, grad_fn = forward_and_gradfn(net, micro_batch, weights=weights)
        ...     dx = grad_fn.compute_input_grad()
        ...     accumulator.accumulate(grad_fn.weight_groups[0])   # one group, in some gap
        ...     accumulator.accumulate(grad_fn)                    # all that is left
        >>> [grad.asnumpy().tolist() for grad in accumulator.gradients()][1]
        [4.0, 4.0, 4.0]
        >>> _ = accumulator.step(optimizer)
    """

    def __init__(self, weights: Iterable[Any], float32: bool = False):
        weights = tuple(_check_parameters(weights))
        self.weights: Tuple[Any, ...] = tuple({id(weight): weight for weight in weights}.values())
        self._dtypes = {id(weight): ms.float32 if float32 and weight.dtype in _HALF_PRECISION else weight.dtype
                        for weight in self.weights}
        self._buffers: Dict[int, Any] = {}
        self._filled: set = set()
        self._torn = False
        self._lock = threading.RLock()

    def accumulate(self, source: Union[GradFunction, WeightGroup]) -> None:
        """Run dw of one group, or of all groups of a micro-batch that are left, one after the other, and add it.

        Each group frees what it held, and its gradients, before the next one runs.

        Raises:
            StateError: dx was not computed yet, or there is nothing left to compute.
            ArgumentTypeError: ``source`` is neither a WeightGroup nor a GradFunction.
            ArgumentValueError: it has a weight that is none of :attr:`weights`; the message names it. Nothing was
                computed then. If dw itself raises, the sum lacks a part of this micro-batch and can only be cleared.
        """
        if isinstance(source, GradFunction):
            if source.state != "dx computed":
                source.compute_weight_grad()  # raises what is wrong
            groups = [group for group in source.weight_groups if not group.done]
        elif isinstance(source, WeightGroup):
            groups = [source]
        else:
            raise ArgumentTypeError("accumulate takes a WeightGroup or a GradFunction after dx, not a "
                                    f"{type(source).__name__}; add takes gradients")
        self._check_known(weight for group in groups for weight in group.weights)
        if not groups:
            source.compute_weight_grad()  # it has no weights; its graph goes
        for group in groups:
            was_done = group.done
            try:
                grads = group.compute()
            except BaseException:
                self._torn = self._torn or group.done and not was_done  # else nothing ran
                raise
            self._add(group.weights, grads)

    def add(self, weights: Sequence[Any], grads: Sequence[Any]) -> None:
        """Add gradients from elsewhere; None stands for none. They are not kept and not changed.

        Raises:
            ArgumentValueError: a weight is none of :attr:`weights`, or a gradient has another shape than its weight.
            ArgumentTypeError: a gradient is no tensor, or has a dtype that is neither the weight's nor the sum's.
        """
        weights, grads = tuple(weights), tuple(grads)
        if len(weights) != len(grads):
            raise ArgumentValueError(f"there are {len(weights)} weights, but {len(grads)} gradients")
        self._check_known(weights)
        for weight, grad in zip(weights, grads):
            if grad is not None and not is_tensor(grad):
                raise ArgumentTypeError(f"the gradient of {weight.name!r} must be a tensor, not a "
                                        f"{type(grad).__name__}")
            if grad is not None and grad.shape != weight.shape:
                raise ArgumentValueError(f"the gradient of {weight.name!r} has shape {grad.shape}, but the weight "
                                         f"{weight.shape}")
            if grad is not None and grad.dtype not in (weight.dtype, self._dtypes[id(weight)]):
                raise ArgumentTypeError(f"the gradient of {weight.name!r} has dtype {grad.dtype}, but the weight "
                                        f"{weight.dtype}: cast it first")
        self._add(weights, grads)

    def gradients(self) -> Tuple[Any, ...]:
        """The sums, in the order of :attr:`weights`; zeros where nothing was added. The next step overwrites them.

        Raises:
            StateError: the dw of a micro-batch raised halfway.
        """
        return self.gradients_of(self.weights)

    def gradients_of(self, weights: Iterable[Any]) -> Tuple[Any, ...]:
        """The sums of these weights, in this order.

        Raises:
            ArgumentValueError: one of them is none of :attr:`weights`; the message names it.
            StateError: the dw of a micro-batch raised halfway.
        """
        with self._lock:  # what another thread adds just now is whole
            torn = self._torn
        if torn:
            raise StateError("the dw of a micro-batch raised halfway, so the sums lack a part of it: clear them")
        weights = tuple(weights)
        self._check_known(weights)
        with self._lock:
            return tuple(self._sum(weight) for weight in weights)

    def step(self, optimizer: Any, set_to_none: bool = False) -> Any:
        """Call the optimizer with the sums of its weights, in its order, then :meth:`clear`.

        Returns:
            What the optimizer returns.

        Raises:
            ArgumentValueError, StateError: see :meth:`gradients_of`.
        """
        result = optimizer(self.gradients_of(optimizer.parameters))
        self.clear(set_to_none)
        return result

    def clear(self, set_to_none: bool = False) -> None:
        """Begin a new sum.

        Args:
            set_to_none: give up the buffers, so that their memory is free until the next gradient comes. Else the
                tensors stay the same ones.
        """
        with self._lock:
            self._filled.clear()
            self._torn = False
            if set_to_none:
                self._buffers.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def _add(self, weights: Sequence[Any], grads: Sequence[Any]) -> None:
        with self._lock:
            torn, self._torn = self._torn, True  # unless all of it is added
            for weight, grad in zip(weights, grads):
                if grad is not None:
                    self._add_one(id(weight), grad)
            self._torn = torn

    def _add_one(self, key: int, grad: Any) -> None:
        if key in self._filled:
            add_in_place(self._buffers[key], grad)
        elif key in self._buffers:
            self._buffers[key].copy_(grad)
        else:
            dtype = self._dtypes[key]
            self._buffers[key] = copied(grad) if grad.dtype == dtype else grad.astype(dtype)
        self._filled.add(key)

    def _sum(self, weight: Any) -> Any:
        key = id(weight)
        if key not in self._filled:
            blank = zeros(weight.shape, self._dtypes[key])
            if key in self._buffers:
                self._buffers[key].copy_(blank)
            else:
                self._buffers[key] = blank
            self._filled.add(key)
        return self._buffers[key]

    def _check_known(self, weights: Iterable[Any]) -> None:
        for weight in weights:
            if id(weight) not in self._dtypes:
                raise ArgumentValueError(f"{getattr(weight, 'name', weight)!r} is none of the weights whose gradients "
                                         "are summed here")


def _check_parameters(weights: Any) -> Iterable[Any]:
    if is_parameter(weights):
        return (weights,)
    if is_tensor(weights) or isinstance(weights, (str, bytes)) or not hasattr(weights, "__iter__"):
        raise ArgumentTypeError(f"weights must be Parameters, not a {type(weights).__name__}")
    weights = tuple(weights)
    for place, weight in enumerate(weights):
        if not is_parameter(weight):
            raise ArgumentTypeError(f"weights[{place}] must be a Parameter, not a {type(weight).__name__}")
    return weights
