"""A compiled call: its pieces, ready to run."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Dict, FrozenSet, Sequence, Tuple

from mindspore_zb.engines.base import BoundaryInfo, GroupInfo
from mindspore_zb.engines.graph.blueprint import Blueprint, Layout, PieceCode, parameter_name
from mindspore_zb.engines.graph.native import LoadedGraph
from mindspore_zb.tensors import zeros

Values = Dict[str, Any]
"""The tensors of one micro-batch by the names of their values."""


class CompiledPiece:
    """A piece that can be run.

    Args:
        code: the piece.
        parameters: all Parameters by the names of their values.

    Attributes:
        reads: the values that it is given; Parameters that some piece writes are bound to it and not among them.
        gives: the values that it computes for others.
        readers: for each of ``reads`` the scope of the first node that reads it, as MindSpore writes scopes.
        written: the Parameters that it writes.
    """

    def __init__(self, code: PieceCode, parameters: Dict[str, Any]):
        self.reads = code.reads
        self.gives = code.gives
        self.readers = dict(zip(code.reads, code.readers))
        self.written = code.writes
        written = {parameter_name(value): parameters[value] for value in code.writes}
        self._runs = [(run, LoadedGraph(run.data, [zeros(*meta) for meta in run.metas], written)) for run in code.runs]

    def run(self, values: Values) -> None:
        """Compute what it gives from ``values``, and add it there."""
        for code, graph in self._runs:
            values.update(zip(code.gives, graph(tuple([values[name] for name in code.reads]))))
            for name in code.last:
                del values[name]


def group_infos(layout: Layout, positions: Any) -> Tuple[GroupInfo, ...]:
    """The groups of dw, each weight by its position in a request: ``positions[place]``."""
    return tuple(GroupInfo(tuple(positions[place] for place in group.weights),
                           tuple(BoundaryInfo(name, ()) for name in group.boundaries)) for group in layout.groups)


@dataclass(frozen=True)
class Program:
    """A compiled call.

    Attributes:
        layout: what goes in and out of its pieces.
        parameters: the Parameters that the pieces read, by value.
        forward, dx, dw: the pieces.
    """

    layout: Layout
    parameters: Dict[str, Any]
    forward: CompiledPiece
    dx: CompiledPiece
    dw: Tuple[CompiledPiece, ...]

    @property
    def writes(self) -> bool:
        """Whether a piece writes Parameters: those are bound to it once and for all."""
        return any(piece.written for piece in (self.forward, self.dx, *self.dw))

    @cached_property
    def dw_readers(self) -> Dict[str, int]:
        """The values that pieces of dw read, or give as they are, and how many pieces do."""
        return dict(Counter(value for group in self.layout.groups for value in group.needs))

    @cached_property
    def own_dxs(self) -> FrozenSet[str]:
        """The gradients of inputs that dx computes and dw does not read: nothing of ours refers to them."""
        return frozenset(self.dx.gives).intersection(self.layout.dxs) - self.dw_readers.keys()

    @cached_property
    def read_by_backward(self) -> FrozenSet[str]:
        """The values that dx or dw read, or give as they are."""
        return frozenset((*self.dw_readers, *self.dx.reads, *self.layout.dxs))

    def groups_at(self, positions: Tuple[int, ...]) -> Tuple[GroupInfo, ...]:
        """The :func:`group_infos` for these positions, one for each weight.

        The same object for the same positions: a net with compiled blocks asks at every micro-batch, and knows by it
        that nothing has changed.
        """
        known = self._groups_at.get(positions)
        if known is None:
            known = self._groups_at[positions] = group_infos(self.layout, positions)
        return known

    @cached_property
    def _groups_at(self) -> Dict[Tuple[int, ...], Tuple[GroupInfo, ...]]:
        return {}

    def unbound(self) -> "Program":
        """The same without its Parameters, to serve every equal call with other ones."""
        return replace(self, parameters={})

    def bound(self, parameters: Sequence[Any]) -> "Program":
        """The same with these Parameters, in the order in which it was compiled."""
        return replace(self, parameters=_by_value(self.layout, parameters))


def load_program(blueprint: Blueprint, parameters: Sequence[Any]) -> Program:
    """Load the pieces of a call.

    Args:
        blueprint: what they are.
        parameters: every Parameter that ``fn`` may read, in the order in which it was compiled.

    Raises:
        Exception: whatever MindSpore raises if the device has no kernel for an operation.
    """
    named = _by_value(blueprint.layout, parameters)
    forward, dx, *dw = (CompiledPiece(code, named) for code in (blueprint.forward, blueprint.dx, *blueprint.dw))
    return Program(blueprint.layout, named, forward, dx, tuple(dw))


def _by_value(layout: Layout, parameters: Sequence[Any]) -> Dict[str, Any]:
    return {value: parameters[place] for value, place in layout.places.items()}
