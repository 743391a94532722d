"""The recording of an eager net with compiled blocks: the net's own recording, and those of the blocks' calls."""

import contextlib
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mindspore_zb.engines.base import BoundaryInfo, Description, GroupInfo, Recording
from mindspore_zb.engines.mixed.block import BlockCall
from mindspore_zb.engines.mixed.description import describe_mixed
from mindspore_zb.engines.mixed.grouping import MergedGroup, Source, merge_sources
from mindspore_zb.engines.pynative.native import without_pipeline
from mindspore_zb.engines.pynative.planner import Plan
from mindspore_zb.engines.pynative.recording import PynativeRecording


@dataclass(frozen=True)
class _Arrangement:
    """What is decided once the net's graph is known.

    Attributes:
        groups: the groups that are offered.
        idle: the net's groups that give no gradient of a weight and make no block run.
        late: the calls that dw runs rather than dx.
    """

    groups: Tuple[MergedGroup, ...]
    idle: Tuple[int, ...]
    late: Tuple[int, ...]


class MixedRecording(Recording):
    """One forward pass of an eager net, some of whose Cells ran compiled.

    Args:
        net: the net's recording, whose last weights are the blocks' anchors.
        calls: the calls of the blocks, in the order of the anchors.
        count: how many weights the request has.
    """

    def __init__(self, net: PynativeRecording, calls: Sequence[BlockCall], count: int):
        self._net = net
        self._calls = list(calls)
        self._count = count
        self._arranged: Optional[_Arrangement] = None

    def _arrangement(self) -> _Arrangement:
        if self._arranged is None:
            self._arranged = _arrangement_of(self._net.plan(), [call.groups for call in self._calls], self._count)
        return self._arranged

    def groups(self) -> Tuple[GroupInfo, ...]:
        arrangement, infos = self._arrangement(), self._net.groups()

        def boundaries_of(source: Source) -> Tuple[BoundaryInfo, ...]:
            if source.call is not None:
                return (BoundaryInfo(self._calls[source.call].name, ()),)
            return infos[source.group].boundaries

        return tuple(GroupInfo(group.weights, tuple(dict.fromkeys(
            boundary for source in group.sources for boundary in boundaries_of(source))))
            for group in arrangement.groups)

    def input_grads(self, sens: Sequence[Any]) -> List[Optional[Any]]:
        arrangement = self._arrangement()
        with without_pipeline():
            grads = self._net.input_grads(sens)
        self._net.drop(arrangement.idle)
        for number, call in enumerate(self._calls):
            if number in arrangement.late:
                call.waits = True
            else:
                call.forget_forward()  # dx has run it, or no gradient came
        if not arrangement.groups:
            self.release()
        return grads

    def weight_grads(self, groups: Sequence[int], keep_graph: bool) -> List[Tuple[int, Optional[Any]]]:
        arrangement = self._arrangement()
        chosen = [arrangement.groups[number] for number in groups]
        pieces: Dict[int, List[int]] = {}
        for group in chosen:
            for number, some in group.pieces().items():
                pieces.setdefault(number, []).extend(some)
        for number in pieces:
            self._calls[number].keep = keep_graph
        net_groups = [number for group in chosen for number in group.net_groups]
        found = _Sums(self._count)
        if net_groups:
            # Where dw may run blocks; elsewhere it is the eager net's own, and stays as MindSpore runs it.
            with without_pipeline() if arrangement.late else contextlib.nullcontext():
                found.add(self._net.weight_grads(net_groups, keep_graph))
        for number, some in pieces.items():
            found.add(self._calls[number].weight_grads(some, keep_graph))
            if not keep_graph:
                self._calls[number].forget_forward()
                self._calls[number].waits = False
        return [(weight, found.grads.get(weight)) for group in chosen for weight in group.weights]

    def all_grads(self, sens: Sequence[Any],
                  keep_graph: bool) -> Tuple[List[Optional[Any]], List[Optional[Any]]]:
        for call in self._calls:
            call.keep, call.whole = keep_graph, True
        try:
            with without_pipeline():
                input_grads, weight_grads = self._net.all_grads(sens, keep_graph)
        finally:
            for call in self._calls:
                call.keep = call.whole = False
        found = _Sums(self._count)
        found.add(enumerate(weight_grads))
        for call in self._calls:
            found.add(call.take_grads())
        if not keep_graph:
            self.release()
        return input_grads, [found.grads.get(weight) for weight in range(self._count)]

    def held_bytes(self, groups: Sequence[int]) -> int:
        chosen = [self._arrangement().groups[number] for number in groups]
        held: Dict[int, int] = {}
        for group in chosen:
            for number, pieces in group.pieces().items():
                held.update(self._calls[number].held(pieces))
        return sum(held.values()) + self._net.held_bytes([number for group in chosen for number in group.net_groups])

    def held_storages(self) -> Dict[int, int]:
        storages = self._net.held_storages()
        for call in self._calls:
            storages.update(call.held_storages())
        return storages

    def watch_nodes(self, tell: Callable[[str], None]) -> None:
        self._net.watch_nodes(tell)

    def describe(self) -> Description:
        return describe_mixed(self._net.describe(), self._calls, self._arrangement().groups, self._count)

    def release(self) -> None:
        self._net.release()
        for call in self._calls:
            call.release()


class _Sums:
    """Gradients by position of the weight; those of one weight are added.

    Args:
        count: positions from here on are anchors, and do not count.
    """

    def __init__(self, count: int):
        self._count = count
        self.grads: Dict[int, Any] = {}

    def add(self, found: Any) -> None:
        """Add ``(position, gradient or None)``."""
        for position, grad in found:
            if grad is not None and position < self._count:
                known = self.grads.get(position)
                self.grads[position] = grad if known is None else known + grad


def _arrangement_of(plan: Plan, pieces: Sequence[Tuple[GroupInfo, ...]], count: int) -> _Arrangement:
    """The same for each micro-batch of a net: plans and groups are the same objects then."""
    known = _ARRANGED.setdefault(plan, {})
    key = (count, *map(id, pieces))
    found = known.get(key)
    if found is None:
        found = pieces, _arrange(plan, pieces, count)  # with the pieces, so that no others have their identity
        if len(known) >= _MOST_ARRANGED:
            known.clear()
        known[key] = found
    return found[1]


_ARRANGED: "weakref.WeakKeyDictionary[Plan, Dict[tuple, tuple]]" = weakref.WeakKeyDictionary()
_MOST_ARRANGED = 16


def _arrange(plan: Plan, pieces: Sequence[Sequence[GroupInfo]], count: int) -> _Arrangement:
    """Offer the net's groups in their order, and in the place of each anchor the pieces of its block."""
    sources: List[Source] = []
    idle, late = [], []
    for number, entry in enumerate(plan.groups):
        weights = tuple(weight for weight in entry.group.weights if weight < count)
        calls = [weight - count for weight in entry.group.weights if weight >= count]
        in_dw = [call for call in calls if not _is_run_by_dx(plan, number, count + call)]
        late += in_dw
        if weights:
            sources.append(Source(weights, group=number))
        elif not any(pieces[call] for call in in_dw):
            idle.append(number)
        for call in calls:
            sources += [Source(info.weights, group=number if call in in_dw else None, call=call, piece=place)
                        for place, info in enumerate(pieces[call])]
    return _Arrangement(merge_sources(sources), tuple(idle), tuple(late))


def _is_run_by_dx(plan: Plan, number: int, anchor: int) -> bool:
    """Whether the block of an anchor is a node that dx runs: then dw of the anchor starts right there."""
    entry = plan.groups[number]
    if entry.ready:
        return True
    leaf = plan.graph.weights[anchor]
    return any(plan.graph.edges[boundary.node][index][0] == leaf
               for boundary in entry.group.boundaries for index in boundary.weight_edges)
