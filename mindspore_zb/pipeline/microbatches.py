"""A batch cut into micro-batches of equal size."""

from typing import Any, List, NamedTuple, Optional, Tuple

from mindspore_zb.checks import check_count, check_text
from mindspore_zb.counted import counted
from mindspore_zb.errors import ArgumentValueError
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import is_tensor


MOST_PIECES = 1_000_000
"""The most micro-batches of a batch."""


class Batch(NamedTuple):
    """The size of a batch.

    Attributes:
        rows: the size.
        path: the tensor that has it, for messages.
    """

    rows: int
    path: str


def same_batch(known: Optional[Batch], found: Optional[Batch]) -> Optional[Batch]:
    """The size that two parts of a batch have in common; None where there is no tensor to tell it.

    Raises:
        ArgumentValueError: the sizes differ.

    >>> same_batch(Batch(8, "inputs[0]"), Batch(4, "targets[0]"))
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.ArgumentValueError: targets[0] has a batch of 4, but inputs[0] has 8: give all of them one size
    """
    if known is not None and found is not None and known.rows != found.rows:
        raise ArgumentValueError(f"{found.path} has a batch of {found.rows}, but {known.path} has {known.rows}: give "
                                 "all of them one size")
    return found if known is None else known


def split_batch(value: Any, count: int, axis: int = 0, name: str = "inputs") -> List[Any]:
    """Cut every tensor in ``value`` into ``count`` equal pieces along ``axis``.

    Args:
        value: any nesting of tensors and other values. Other values, and tensors without any axis, go to every
            micro-batch as they are.
        count: m, the number of micro-batches.
        axis: of the batch, counted from the front.
        name: of the value, for messages.

    Returns:
        A value for each micro-batch, nested as ``value`` is.

    Raises:
        ArgumentTypeError: ``count`` or ``axis`` is no integer, or ``name`` no text.
        ArgumentValueError: ``axis`` is negative or a tensor does not have it, a size cannot be cut into equal pieces,
            or tensors have different batch sizes: gradients of a mean would not be the mean of gradients. The message
            names the tensor.

    >>> import mindspore as ms
    >>> [piece["x"].shape for piece in split_batch({"x": ms.ops.zeros((6, 2)), "flag": True}, 3)]
    [(2, 2), (2, 2), (2, 2)]
    """
    count = check_count("count", count, most=MOST_PIECES)
    axis = check_count("axis", axis, least=0)
    check_text("name", name)
    return cut_batch(value, count, axis, name)[0]


def cut_batch(value: Any, count: int, axis: int, name: str) -> Tuple[List[Any], Optional[Batch]]:
    """What :func:`split_batch` gives, and the size of the batch: None if no tensor is cut."""
    leaves, structure = flatten(value)
    size: Optional[Batch] = None
    pieces: List[List[Any]] = [[] for _ in range(count)]
    for leaf, path in zip(leaves, structure.paths(name)):
        if is_tensor(leaf) and 0 < leaf.ndim <= axis:
            raise ArgumentValueError(f"{path} has shape {tuple(leaf.shape)}, and so no axis {axis} along which the "
                                     "batch could be cut")
        if not is_tensor(leaf) or not leaf.ndim:
            for piece in pieces:
                piece.append(leaf)
            continue
        rows = leaf.shape[axis]
        if size is not None and rows != size.rows:
            raise ArgumentValueError(f"{path} has a batch of {rows} along axis {axis}, but {size.path} has {size.rows}")
        size = Batch(rows, path)
        if rows == 0 or rows % count:
            raise ArgumentValueError(f"{path} has a batch of {rows} along axis {axis}, which cannot be cut into "
                                     f"{counted(count, 'equal micro-batch')}")
        for number, piece in enumerate(pieces):
            part = slice(number * rows // count, (number + 1) * rows // count)
            piece.append(leaf[(slice(None),) * axis + (part,)])
    return [structure.unflatten(piece) for piece in pieces], size
