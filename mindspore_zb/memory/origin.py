"""Which operation of which Cell runs right now: read off the Python stack, and put into words only when asked."""

import dis
import linecache
import os
import sys
import weakref
from types import CodeType, FrameType
from typing import Any, List, Optional, Tuple

from mindspore import nn
from mindspore.ops import Primitive

from mindspore_zb.memory.frames import frames_from, local_variable, local_variables

_CELL_CALL = nn.Cell.__call__.__code__
_OF_OTHERS = ("mindspore.", "mindspore_zb.")
_WRAPPERS = "mindspore.common."
"""Where the Cells are that MindSpore puts around others, to recompute them."""
_STATISTICS = ("mean", "variance", "running_mean", "running_var")
_TRAINING = ("training", "is_training")


class Origin:
    """The operation that runs, with its Cells from the inside out.

    Keeps no frame, no tensor and no Cell alive.
    """

    __slots__ = ("_operation", "_code", "_line", "_instruction", "_cells")

    def __init__(self, operation: Optional[str], user: Optional[FrameType], cells: List[Any]):
        self._operation = operation
        self._code: Optional[CodeType] = None if user is None else user.f_code
        self._line = 0 if user is None else user.f_lineno
        self._instruction = -1 if user is None else user.f_lasti
        self._cells: Tuple[Any, ...] = tuple((type(cell).__name__, weakref.ref(cell)) for cell in cells)

    def __str__(self) -> str:
        return f"{self.cell}, {self.operation}{self.place}"

    @property
    def cell(self) -> str:
        """``Stage.up (Dense)``: the path from the outermost Cell, and the class; without a Cell the function."""
        if not self._cells:
            return "function " + (getattr(self._code, "co_qualname", self._code.co_name) if self._code else "?")
        return cell_path([(name, reference()) for name, reference in reversed(self._cells)])

    @property
    def operation(self) -> str:
        """``MatMul``, or the part of the source that is an operator or a method, such as ``x * y``."""
        if self._operation is not None:
            return self._operation
        return _source(self._code, self._line, self._instruction) if self._code else "an operation"

    @property
    def place(self) -> str:
        """`` at file.py:12``, the user's own line."""
        return f" at {os.path.basename(self._code.co_filename)}:{self._line}" if self._code else ""


def here(cell: Any = None, operation: Optional[str] = None) -> Tuple[Origin, List[int]]:
    """The operation that MindSpore runs, seen from a hook, and the addresses of the statistics that it keeps itself.

    A BatchNorm in training saves its moving statistics with the rest, updates them in every forward and does not read
    them in its backward.

    Args:
        cell: the innermost Cell, if it is about to be called and no frame tells of it yet.
        operation: what runs, if it is no operation of MindSpore's.
    """
    user: Optional[FrameType] = None
    cells: List[Any] = [] if cell is None else [cell]
    statistics: List[int] = []
    for frame in frames_from(sys._getframe(1)):
        code = frame.f_code
        if code is _CELL_CALL or code.co_name == "construct":
            found = local_variable(frame, "self")
            if isinstance(found, nn.Cell) and not (cells and cells[-1] is found) and \
                    not type(found).__module__.startswith(_WRAPPERS):
                cells.append(found)
        elif operation is None and user is None and not cells and code.co_name in ("__call__", "apply"):
            operation = _operation_of(frame)
            if operation is not None and operation.startswith("BatchNorm"):
                statistics = _own_statistics(frame)
        if user is None and not frame.f_globals.get("__name__", "").startswith(_OF_OTHERS):
            user = frame
    return Origin(operation, user, cells), statistics


def _operation_of(frame: FrameType) -> Optional[str]:
    """The operation whose call a frame is; None if it is another call."""
    owner = local_variable(frame, "self")
    if isinstance(owner, Primitive):
        return owner.name
    owner = local_variable(frame, "cls")
    return owner.__name__ if isinstance(owner, type) and frame.f_code.co_name == "apply" else None


def _own_statistics(frame: FrameType) -> List[int]:
    with local_variables(frame) as values:
        if not any(getattr(values.get("self"), name, False) or values.get(name, False) for name in _TRAINING):
            return []
        given = [values[name] for name in _STATISTICS if name in values] + list(values.get("args", ()))[3:5]
        return [tensor.data_ptr() for tensor in given if hasattr(tensor, "data_ptr")]


def cell_path(cells: List[Tuple[str, Any]]) -> str:
    """The name of the innermost of these Cells, given from the outside in as ``(class, Cell or None)``.

    >>> from mindspore import nn
    >>> net = nn.SequentialCell(nn.Dense(2, 2))
    >>> cell_path([("SequentialCell", net), ("Dense", net[0])])
    'SequentialCell.0 (Dense)'
    """
    path = cells[0][0]
    for (_, outer), (name, inner) in zip(cells, cells[1:]):
        found = None
        if outer is not None and inner is not None:
            found = next((place for place, cell in outer.cells_and_names() if cell is inner and place), None)
        path += f".{found or name}"
    return path if len(cells) == 1 else f"{path} ({cells[-1][0]})"


def _source(code: CodeType, line: int, instruction: int) -> str:
    """The part of the source that an instruction comes from; older Pythons know its line only."""
    text = linecache.getline(code.co_filename, line).strip()
    if hasattr(code, "co_positions"):
        start, end, left, right = list(code.co_positions())[instruction // 2]
        if start == end and None not in (left, right):
            raw = linecache.getline(code.co_filename, line).encode("utf-8")[left:right].decode("utf-8", "replace")
            text = raw or text
    if not text:
        return next((entry.opname for entry in dis.get_instructions(code) if entry.offset == instruction),
                    "an operation")
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"
