"""Find graphs that stay alive from one step of a training to the next, and who holds them."""

import bisect
import contextlib
import gc
import weakref
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from mindspore import Tensor

from mindspore_zb.engines.pynative.native import grad_edge, node_id, node_number, sequence_number, sync
from mindspore_zb.engines.pynative.opaque import watching_saved_tensors
from mindspore_zb.engines.watch import Watcher
from mindspore_zb.errors import StateError
from mindspore_zb.grad_function import GradFunction
from mindspore_zb.memory.holders import held_in_python, holders_of
from mindspore_zb.memory.ledger import SavedTensor, _unpack
from mindspore_zb.tensors import is_parameter, is_tensor
from mindspore_zb.terminal import plain_table

UNKNOWN = "unknown: no tensor and no GradFunction in Python leads to it"


@dataclass(frozen=True)
class Leak:
    """What one holder keeps alive.

    Attributes:
        holder: who it is, in words; see :func:`~mindspore_zb.memory.holders.holders_of`.
        what: ``"tensor"`` for results that lead to their graphs, or ``"GradFunction"``.
        count: how many of these it holds.
        steps: the steps, from 0, whose graphs they lead to.
        nbytes: bytes of the saved tensors of these steps that are alive, each storage once; weights do not count.
            Several holders of one step are each told all its bytes.
    """

    holder: str
    what: str
    count: int
    steps: Tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class LeakReport:
    """What a :class:`LeakFinder` has found; plain data, which keeps nothing alive. ``str`` makes it legible.

    Attributes:
        steps: how many steps were watched.
        alive_bytes: after each step the bytes of all saved tensors alive, each storage once; weights do not count.
        leaks: who holds graphs of steps that were over before the last one began, most bytes first.
    """

    steps: int
    alive_bytes: Tuple[int, ...]
    leaks: Tuple[Leak, ...]

    def __str__(self) -> str:
        if not self.steps:
            return "no step was watched"
        bytes_alive = (f"{self.alive_bytes[0]} bytes of saved tensors alive after step 0, {self.alive_bytes[-1]} after "
                       f"step {self.steps - 1}")
        if not self.leaks:
            return f"{self.steps} steps, no graph outlives the step after its own; {bytes_alive}"
        rows = [(leak.holder, leak.what, leak.count, _ranges(leak.steps), leak.nbytes) for leak in self.leaks]
        return "\n".join([f"{self.steps} steps, graphs of earlier ones are alive; {bytes_alive}",
                          *plain_table(("held by", "as", "count", "steps", "bytes"), rows)])


class LeakFinder:
    """Watches the steps of a training for graphs that outlive them.

    Looks at results with a history, as ``losses.append(loss)`` keeps, and at forgotten
    :class:`~mindspore_zb.GradFunction` objects. The graph of the last step may be alive still, as a variable like
    ``loss`` holds it until it is given the next one. Nothing is kept alive by the finder, and it does not need Python's
    garbage collector. What was in a step that is called by several threads is not told apart; forwards of other threads
    do not count.

    Watching turns MindSpore's asynchronous issue of operations off, and the end of each step looks through all Python
    objects: use it for some steps, not for a whole training.

    Example:
        >>> from mindspore import nn, ops
        >>> from mindspore_zb import forward_and_gradfn
        >>> from mindspore_zb.memory import LeakFinder
        >>> net, x, finder, forgotten = nn.Dense(4, 3), ops.ones((2, 4)), LeakFinder(), {}
        >>> for step in range(3):
        ...     with finder.step():
        ...         out, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
        ...         forgotten[step] = grad_fn
        >>> leak = finder.report().leaks[0]
        >>> leak.what, leak.count, leak.steps
        ('GradFunction', 3, (0, 1, 2))
        >>> leak.holder
        'forgotten[...] (a dict; forgotten is a variable of module ...)'
    """

    def __init__(self) -> None:
        self._begins: List[int] = []
        self._ends: List[int] = []
        self._alive_bytes: List[int] = []
        self._boxes: List[List["weakref.ref[Any]"]] = []
        self._grad_functions: List[List["weakref.ref[GradFunction]"]] = []
        self._inside = False

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Watch one step.

        Raises:
            StateError: a step is being watched already, or hooks for saved tensors are active.
            UnsupportedError: such hooks begin inside.
        """
        if self._inside:
            raise StateError("a step is being watched already: leave it before the next one begins")
        boxes: List["weakref.ref[Any]"] = []
        made: List["weakref.ref[GradFunction]"] = []

        def pack(tensor: Any) -> Any:
            box = SavedTensor(tensor)
            if getattr(tensor, "param_info", None) is None:
                boxes.append(weakref.ref(box))
            return box

        begin = sequence_number()
        with watching_saved_tensors(_Watcher(boxes, made), pack, _unpack):
            self._inside = True
            try:
                yield
            finally:
                self._inside = False
                self._begins.append(begin)
                self._ends.append(sequence_number())
                self._boxes.append(boxes)
                self._grad_functions.append(made)
                self._alive_bytes.append(sum(self._storages(range(len(self._ends))).values()))

    def report(self) -> LeakReport:
        """What is alive now."""
        return LeakReport(len(self._ends), tuple(self._alive_bytes), tuple(self._leaks()))

    def _storages(self, steps: Sequence[int]) -> Dict[int, int]:
        """Address and bytes of each storage saved in these steps that is alive."""
        sync()  # frees lag an operation behind
        storages: Dict[int, int] = {}
        for step in steps:
            self._boxes[step] = [reference for reference in self._boxes[step] if reference() is not None]
            for box in (reference() for reference in self._boxes[step]):
                for address, nbytes in ([] if box is None else _bytes_of(box)):
                    storages[address] = max(nbytes, storages.get(address, 0))
        return storages

    def _leaks(self) -> List[Leak]:
        last, found = len(self._ends) - 1, []
        for what, things in (("tensor", self._results()), ("GradFunction", self._forgotten())):
            by_holder: Dict[str, List[Any]] = {}
            for thing, ways in zip(things, holders_of(things)) if things else ():
                for way in ways:
                    by_holder.setdefault(way, []).append(thing)
            for holder, held in by_holder.items():
                steps = self._steps_of(held)
                if any(step < last for step in steps):
                    found.append(Leak(holder, what, len(held), steps, sum(self._storages(steps).values())))
        explained = {step for leak in found for step in leak.steps}
        unknown = tuple(step for step in range(last) if step not in explained and self._storages([step]))
        if unknown:
            found.append(Leak(UNKNOWN, "graph", len(unknown), unknown, sum(self._storages(unknown).values())))
        return sorted(found, key=lambda leak: (-leak.nbytes, -leak.count, leak.holder))

    def _results(self) -> List[Any]:
        """Every tensor with a history that has a node of a watched step.

        One that only MindSpore holds is not asked: the result of an operation that was broken off, as recompute does
        when it has what it needs, never comes, and asking for its history waits for ever.
        """
        sync()  # to ask for a node waits with Python's lock in hand, and what is freed meanwhile would wait for that
        found = [thing for thing in gc.get_objects()  # by the type: a weak proxy raises when asked what it is
                 if Tensor in type(thing).__mro__ and not is_parameter(thing)]
        return [tensor for tensor in held_in_python(found) if self._steps_of([tensor])]

    def _forgotten(self) -> List[GradFunction]:
        alive = [reference() for made in self._grad_functions for reference in made]
        return [grad_fn for grad_fn in alive if grad_fn is not None and grad_fn.state != "released"]

    def _steps_of(self, things: Sequence[Any]) -> Tuple[int, ...]:
        """The watched steps that these tensors or GradFunctions lead to."""
        wanted = frozenset(map(id, things))
        found: Set[int] = {step for step, made in enumerate(self._grad_functions)
                           if any(id(reference()) in wanted for reference in made)}
        nodes = [edge[0] for edge in (grad_edge(thing) for thing in things if is_tensor(thing)) if edge is not None]
        seen = {node_id(node) for node in nodes}
        for node in nodes:
            step = self._step_at(node)
            if step is not None:
                found.add(step)
            for child, _ in node.next_functions:
                if child is not None and node_id(child) not in seen:
                    seen.add(node_id(child))
                    nodes.append(child)
        return tuple(sorted(found))

    def _step_at(self, node: Any) -> Optional[int]:
        """The step that recorded a node; None for a leaf, and outside of the steps."""
        if not node.next_functions:
            return None
        number = node_number(node)
        step = bisect.bisect_left(self._begins, number) - 1
        return step if step >= 0 and number <= self._ends[step] else None


class _Watcher(Watcher):
    """Writes down what compiled forwards hold, and which GradFunctions are made."""

    def __init__(self, boxes: List["weakref.ref[Any]"], made: List["weakref.ref[GradFunction]"]):
        self._boxes = boxes
        self._made = made

    def compiled(self, recording: Any) -> None:
        self._boxes.append(weakref.ref(recording))

    def made(self, grad_fn: GradFunction) -> None:
        self._made.append(weakref.ref(grad_fn))


def _bytes_of(held: Any) -> List[Tuple[int, int]]:
    """Address and bytes of what a saved tensor, or a compiled forward, holds."""
    if isinstance(held, SavedTensor):
        return [(held.address, held.nbytes)]
    return [(tensor.data_ptr(), tensor.nbytes) for tensor in held.values.values() if not is_parameter(tensor)]


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in short.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    parts: List[List[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
