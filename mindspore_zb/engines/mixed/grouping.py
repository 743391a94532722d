"""Which of an eager net's groups and of its blocks' pieces must be computed together: those that share a weight, and
those of which one makes the other possible."""

from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple


@dataclass(frozen=True)
class Source:
    """Something that gives gradients of weights: a group of the eager net, or a piece of a block.

    Attributes:
        weights: positions of the weights in the request.
        group: the number of the net's group; for a piece, of the group whose dw runs its block, None if dx does.
        call: of a piece: which call of a block it belongs to; None for a group of the net.
        piece: which of the block's pieces it is.
    """

    weights: Tuple[int, ...]
    group: Optional[int] = None
    call: Optional[int] = None
    piece: Optional[int] = None


@dataclass(frozen=True)
class MergedGroup:
    """What is offered as one group.

    Attributes:
        weights: positions in the request, ascending.
        sources: what computes them, in order.
    """

    weights: Tuple[int, ...]
    sources: Tuple[Source, ...]

    @property
    def net_groups(self) -> Tuple[int, ...]:
        """The eager net's groups that are to be run, each once."""
        return tuple(dict.fromkeys(source.group for source in self.sources if source.group is not None))

    def pieces(self) -> Dict[int, List[int]]:
        """For each call of a block the pieces that are to be run."""
        found: Dict[int, List[int]] = {}
        for source in self.sources:
            if source.call is not None:
                found.setdefault(source.call, []).append(source.piece)
        return found


def merge_sources(sources: Sequence[Source]) -> Tuple[MergedGroup, ...]:
    """Gather sources so that every weight is in one group, in the order in which they come first.

    >>> [group.weights for group in merge_sources([Source((0, 1)), Source((2,)), Source((1, 3))])]
    [(0, 1, 3), (2,)]
    >>> [group.weights for group in merge_sources([Source((0,), group=5), Source((1,)), Source((2,), group=5, call=0)])]
    [(0, 2), (1,)]
    """
    leader = list(range(len(sources)))

    def find(place: int) -> int:
        while leader[place] != place:
            leader[place] = leader[leader[place]]
            place = leader[place]
        return place

    first: Dict[Tuple[str, int], int] = {}
    for place, source in enumerate(sources):
        marks = [("weight", weight) for weight in source.weights]
        if source.group is not None:
            marks.append(("group", source.group))
        for mark in marks:
            one, two = find(first.setdefault(mark, place)), find(place)
            leader[max(one, two)] = min(one, two)
    gathered: Dict[int, List[Source]] = {}
    for place, source in enumerate(sources):
        gathered.setdefault(find(place), []).append(source)
    return tuple(MergedGroup(tuple(sorted({weight for source in group for weight in source.weights})), tuple(group))
                 for group in gathered.values())
