"""MindSpore's private names that computing a block again needs, each behind a function of ours."""

import contextlib
from typing import Any, Callable, ContextManager, Iterator, Sequence, Tuple

import mindspore as ms
from mindspore import Tensor
from mindspore._c_expression import MixedPrecisionType
from mindspore._c_expression.amp import get_curr_amp_strategy
from mindspore.common._grad_function import _Function
from mindspore.ops.operations._grad_ops import DropoutGrad as _DropoutGrad
from mindspore.train.amp import AmpDecorator

from mindspore_zb.engines.pynative.native import _pynative_executor, grad_edge, new_leaf
from mindspore_zb.errors import UnsupportedVersionError


class _Keep(_Function):
    """Saves its arguments as any operation does: through the hooks for saved tensors that are active."""

    @staticmethod
    def forward(ctx, leaf, *tensors):
        ctx.save_for_backward(*tensors)
        return leaf.data

    @staticmethod
    def backward(ctx, *grads):
        raise UnsupportedVersionError("nothing leads to this node, so no backward should run it")


def keep_tensors(tensors: Sequence[Tensor]) -> Callable[[], Tuple[Tensor, ...]]:
    """Keep tensors the way operations save theirs, so that hooks for saved tensors see them; the result gives them
    back, without history."""
    if not tensors:
        return tuple
    output = _Keep.apply(new_leaf(ms.float32)[0], *(tensor.data for tensor in tensors))
    return lambda: tuple(output._grad_node.saved_tensors)


def is_reshaped(tensor: Tensor, given: Tensor) -> bool:
    """Whether ``tensor`` has the numbers of ``given`` in the same order, perhaps in another shape."""
    if tensor.dtype != given.dtype or tensor.nbytes != given.nbytes:
        return False
    edge, target = grad_edge(tensor), grad_edge(given)
    if edge is None or target is None:
        return tensor.data_ptr() == given.data_ptr() and tensor.is_contiguous() and given.is_contiguous()
    node, slot = edge
    while (node._unique_id(), slot) != (target[0]._unique_id(), target[1]):
        if node.name() not in _ORDER_STAYS or not node.next_functions or node.next_functions[0][0] is None:
            return False
        node, slot = node.next_functions[0]
    return True


_ORDER_STAYS = frozenset(("Contiguous", "ExpandDims", "ExpandDimsView", "Reshape", "Squeeze", "View"))


def casting_as_now() -> Callable[[], ContextManager[Any]]:
    """Makes contexts with the automatic mixed precision that holds here and now."""
    strategy = get_curr_amp_strategy()
    if strategy is None:
        return contextlib.nullcontext
    return lambda: AmpDecorator(strategy.get_amp_level(), strategy.get_amp_dtype(), strategy.get_white_list(),
                                strategy.get_black_list())


def dropout_again(tensor: Tensor, mask: Tensor, keep_probability: float) -> Tensor:
    """What a dropout of ``tensor`` gave that drew this mask. It is the kernel of the dropout's backward, which does
    the same and, unlike products of our own, rounds in the same way."""
    return _DropoutGrad(keep_probability)(tensor, mask)


@contextlib.contextmanager
def precision_of(cell: Any) -> Iterator[None]:
    """Operations inside run in the precision that ``Cell.to_float`` set, as in a call of the Cell."""
    if cell.mixed_precision_type is None:
        yield
        return
    _pynative_executor.set_mixed_precision_type(cell.mixed_precision_type)
    try:
        yield
    finally:
        _pynative_executor.set_mixed_precision_type(MixedPrecisionType.NOTSET, False)
