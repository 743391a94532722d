"""Sums of gradients over the micro-batches of a step."""

from typing import Any, Dict, Iterable, Sequence, Tuple

from mindspore import ops

from mindspore_zb.errors import ArgumentValueError
from mindspore_zb.tensors import is_differentiable, zeros


class GradientBuffers:
    """One tensor for each weight, made once, to which the gradients of the micro-batches are added in place.

    A weight that several stages of a rank share has one buffer.

    Args:
        weights: Parameters; repeated ones count once.
        float32: sum in float32, whatever the dtype of the weight.
    """

    def __init__(self, weights: Iterable[Any], float32: bool = False):
        self.weights: Tuple[Any, ...] = tuple({id(weight): weight for weight in weights}.values())
        self._float32 = float32
        self._buffers: Dict[int, Any] = {}
        self._empty = {id(weight) for weight in self.weights}

    def clear(self) -> None:
        """Begin a new sum. The tensors stay the same ones."""
        self._empty = {id(weight) for weight in self.weights}

    def add(self, weights: Sequence[Any], grads: Sequence[Any]) -> None:
        """Add the gradients of these weights. They are copied, as a gradient may share memory with others."""
        for weight, grad in zip(weights, grads):
            key = id(weight)
            if key not in self._buffers:
                self._buffers[key] = self._new(weight)
            if key in self._empty:
                self._empty.discard(key)
                self._buffers[key].copy_(grad)
            else:
                ops.assign_add(self._buffers[key], grad)

    def sums(self) -> Tuple[Any, ...]:
        """The sums, in the order of :attr:`weights`; zeros where nothing was added. The next step overwrites them."""
        for weight in self.weights:
            key = id(weight)
            if key in self._empty:
                self._buffers[key] = self._new(weight)
        return tuple(self._buffers[id(weight)] for weight in self.weights)

    def sums_of(self, weights: Iterable[Any]) -> Tuple[Any, ...]:
        """The sums of these weights, in this order.

        Raises:
            ArgumentValueError: one of them is no weight of this rank; the message names it.
        """
        known = {id(weight): grad for weight, grad in zip(self.weights, self.sums())}
        weights = tuple(weights)
        check_weights_known(weights, self.weights)
        return tuple(known[id(weight)] for weight in weights)

    def _new(self, weight: Any) -> Any:
        import mindspore as ms

        return zeros(weight.shape, ms.float32 if self._float32 and is_differentiable(weight) else weight.dtype)


def check_weights_known(weights: Iterable[Any], known: Iterable[Any]) -> None:
    """Raise ArgumentValueError unless all ``weights`` are among ``known``."""
    keys = {id(weight) for weight in known}
    for weight in weights:
        if id(weight) not in keys:
            raise ArgumentValueError(f"the optimizer has the weight {weight.name!r}, which no stage of this rank has")
