"""What a memory timeline is made of: each storage that was saved for the backward, by whom, and from when to when."""

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class SavedStorage:
    """A storage that the forward saved for the backward. A storage that several operations save counts once.

    Attributes:
        nbytes: its whole size, also where only a part of it was saved.
        shape, dtype: of the first tensor saved in it.
        layer: the innermost Cell that ran when it was first saved, by its name in the net, such as
            ``blocks.0.attention.query``; "" in the net itself, or outside of all Cells.
        made_by: the operation whose result it is, or the name of the input; "" where MindSpore does not tell.
        operations: the operations that saved it, in the order of their backward, each once; empty if none ran.
        where: ``file.py:12``, the line of the caller's code that was running when it was first saved.
        saved: the place in the order of all saves and frees.
        freed: likewise; None if it outlived the step.
        saved_in, freed_in: the step, such as ``"dx"``.
    """

    nbytes: int
    shape: Tuple[int, ...]
    dtype: str
    layer: str
    made_by: str
    operations: Tuple[str, ...]
    where: str
    saved: int
    freed: Optional[int]
    saved_in: str
    freed_in: Optional[str]

    @property
    def saved_by(self) -> str:
        """The operations that saved it in one word: ``Softmax+MatMul``; ``"?"`` if none is known.

        >>> one = SavedStorage(8, (2,), "Float32", "", "Tanh", ("MatMul", "Tanh"), "net.py:3", 0, 1, "forward", "dx")
        >>> one.saved_by
        'MatMul+Tanh'
        """
        return "+".join(self.operations) or "?"
