"""The graph engine's recording of one forward pass: the values of one micro-batch between its pieces."""

import copy
from collections import Counter
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from mindspore_zb.engines.base import Description, GroupInfo, Recording
from mindspore_zb.engines.graph.description import describe_layout
from mindspore_zb.engines.graph.native import contiguous
from mindspore_zb.engines.graph.program import CompiledPiece, Program, Values, group_infos
from mindspore_zb.engines.lock import SERIAL
from mindspore_zb.engines.watch import current_watcher
from mindspore_zb.tensors import copied, detached, zeros


class GraphRecording(Recording):
    """One forward pass of a compiled call; see :class:`~mindspore_zb.engines.base.Recording`.

    Args:
        program: the compiled call.
        values: what its forward computed, and what it was given.
        wanted_inputs: for each input that a gradient is asked for its place among ``program.layout.dxs``.
        wanted_weights: the same for the weights, None for one that asks for no gradient.
    """

    def __init__(self, program: Program, values: Values, wanted_inputs: Sequence[Optional[int]],
                 wanted_weights: Sequence[Optional[int]]):
        self._program: Optional[Program] = program
        self._wanted_inputs = wanted_inputs
        self._positions = {place: position for position, place in enumerate(wanted_weights) if place is not None}
        self._wanted_weights = wanted_weights
        self._remaining: Set[int] = set(range(len(program.layout.groups)))
        self._readers = program.dw_readers.copy()
        kept = program.read_by_backward
        self._values = {name: value for name, value in values.items() if name in kept}
        watcher = current_watcher()
        self._check = None if watcher is None else watcher.compiled(self)

    @property
    def program(self) -> Program:
        """The compiled call."""
        return self._program

    @property
    def values(self) -> Values:
        """What it holds, by the names of the values; Parameters are among it."""
        return self._values

    def _run(self, piece: CompiledPiece, values: Values) -> None:
        """Run a piece of the backward."""
        if self._check is not None:
            self._check(piece, values)
        with SERIAL:
            piece.run(values)

    def groups(self) -> Tuple[GroupInfo, ...]:
        return group_infos(self._program.layout, self._positions)

    def input_grads(self, sens: Sequence[Any], copies: bool = True) -> List[Optional[Any]]:
        """Run dx. ``copies``: take copies of ``sens`` for dw, which the caller may change before it runs."""
        program, values = self._program, self._values
        self._start(sens, copy_for={*program.dw_readers, *program.layout.dxs} if copies else ())
        self._run(program.dx, values)
        grads = self._input_results()
        if program.layout.groups:
            self._keep_for_dw()
        else:
            self.release()
        return grads

    def weight_grads(self, groups: Sequence[int], keep_graph: bool) -> List[Tuple[int, Optional[Any]]]:
        found: List[Tuple[int, Optional[Any]]] = []
        for number in groups:
            found.extend(self._run_group(number))
            if not keep_graph:
                self._forget_group(number)
        if not self._remaining:
            self.release()
        return found

    def _run_group(self, number: int) -> List[Tuple[int, Optional[Any]]]:
        program = self._program
        group = program.layout.groups[number]
        values = {name: self._values[name] for name in group.needs if name in self._values}
        self._run(program.dw[number], values)
        own = frozenset(program.dw[number].gives)  # anything else may be a tensor of the caller's
        return [(self._positions[place], values[value] if value in own else detached(values[value]))
                for place, value in zip(group.weights, group.values)]

    def all_grads(self, sens: Sequence[Any],
                  keep_graph: bool) -> Tuple[List[Optional[Any]], List[Optional[Any]]]:
        program, before = self._program, dict(self._values) if keep_graph else {}
        self._start(sens, copy_for={*program.layout.dxs, *(value for group in program.layout.groups
                                                           for value in group.values)})
        self._run(program.dx, self._values)
        input_grads = self._input_results()
        weight_grads: List[Optional[Any]] = [None] * len(self._wanted_weights)
        if not keep_graph:
            self._keep_for_dw()
        for number in range(len(program.layout.groups)):
            for position, grad in self._run_group(number):
                weight_grads[position] = grad
            if not keep_graph:
                self._forget_group(number)
        if keep_graph:
            self._values = before
        else:
            self.release()
        return input_grads, weight_grads

    def _start(self, sens: Sequence[Any], copy_for: Iterable[str]) -> None:
        """Put the gradients of the outputs where the pieces read them; None counts as zeros."""
        program = self._program
        later = set(copy_for)  # dw reads it later, or it is a gradient itself, and callers reuse buffers
        given: Dict[int, Any] = dict(zip(program.layout.differentiable, sens))
        for place, (name, meta) in enumerate(zip(program.layout.sens, program.layout.out_metas)):
            grad = given.get(place)
            if grad is None:
                self._values[name] = zeros(*meta)
            else:
                self._values[name] = copied(grad) if name in later else contiguous(detached(grad))

    def _input_results(self) -> List[Optional[Any]]:
        program = self._program
        values = [None if place is None else program.layout.dxs[place] for place in self._wanted_inputs]
        # What comes from dx and is nowhere else needs no alias; MindSpore adds in place to a tensor that has none.
        own = program.own_dxs
        if len(set(values)) < len(values):
            own = own.difference(value for value, count in Counter(values).items() if count > 1)
        return [None if value is None else self._values[value] if value in own else detached(self._values[value])
                for value in values]

    def _needed(self, groups: Iterable[int]) -> Set[str]:
        return {value for number in groups for value in self._program.layout.groups[number].needs}

    def _keep_for_dw(self) -> None:
        """Let go of all values but those that dw needs."""
        self._values = {name: value for name, value in self._values.items() if name in self._readers}

    def _forget_group(self, number: int) -> None:
        """Let go of what no other piece of dw needs."""
        if number not in self._remaining:
            return
        self._remaining.discard(number)
        for name in self._program.layout.groups[number].needs:
            self._readers[name] -= 1
            if not self._readers[name]:
                self._values.pop(name, None)

    def branch(self) -> "GraphRecording":
        """The same forward once more: its backward leaves this one as it is."""
        other = copy.copy(self)
        other._values, other._remaining = dict(self._values), set(self._remaining)
        other._readers = self._readers.copy()
        return other

    def held_bytes(self, groups: Sequence[int]) -> int:
        return sum(self.held(groups).values())

    def held(self, groups: Sequence[int]) -> Dict[int, int]:
        """Bytes of what waits for these groups, by the address of the storage."""
        held: Dict[int, int] = {}
        for name in self._needed(number for number in groups if number in self._remaining):
            if name not in self._program.parameters and name in self._values:
                tensor = self._values[name]
                held[tensor.data_ptr()] = tensor.nbytes
        return held

    def held_storages(self) -> Dict[int, int]:
        storages: Dict[int, int] = {}
        for name, tensor in self._values.items():
            if name not in self._program.parameters:
                storages[tensor.data_ptr()] = max(tensor.nbytes, storages.get(tensor.data_ptr(), 0))
        return storages

    def crossing_bytes(self) -> Tuple[int, int]:
        """Bytes that cross from the forward to the backward, and those that would if nothing were computed again."""
        return self._program.layout.saved_bytes, self._program.layout.unsaved_bytes

    def describe(self) -> Description:
        held = [self.held_bytes([number]) for number in range(len(self._program.layout.groups))]
        return describe_layout(self._program.layout, self._wanted_inputs, self._wanted_weights, held,
                               self.held_bytes(range(len(held))))

    def release(self) -> None:
        self._values = {}
        self._remaining = set()
        self._check = None
