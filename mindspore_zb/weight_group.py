"""``WeightGroup``: one group of weights of a :class:`~mindspore_zb.GradFunction`, to be computed alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Tuple

from mindspore_zb.engines.base import BoundaryInfo

if TYPE_CHECKING:
    from mindspore_zb.grad_function import GradFunction


@dataclass(frozen=True)
class GroupEntry:
    """What a ``GradFunction`` knows of a group: the positions of its weights, where its dw starts, and the engine's
    number of it, None for the group of zeros."""

    weights: Tuple[int, ...]
    boundaries: Tuple[BoundaryInfo, ...]
    native: Optional[int]


class WeightGroup:
    """Weights whose gradients are computed together, alone from all others.

    Attributes:
        index: place in :attr:`GradFunction.weight_groups`.
    """

    def __init__(self, grad_function: "GradFunction", index: int):
        self._grad_function = grad_function
        self.index = index

    @property
    def _group(self) -> GroupEntry:
        return self._grad_function._groups[self.index]

    @property
    def weights(self) -> Tuple[Any, ...]:
        """The group's Parameters, in the order of the request."""
        parameters = self._grad_function._request.weights.parameters
        return tuple(parameters[place] for place in self._group.weights)

    @property
    def positions(self) -> Tuple[int, ...]:
        """The places of :attr:`weights` in the request's ``weights``."""
        return self._group.weights

    @property
    def boundaries(self) -> Tuple[BoundaryInfo, ...]:
        """The nodes where dw of this group starts; empty for weights the outputs do not depend on."""
        return self._group.boundaries

    @property
    def nbytes(self) -> int:
        """Bytes that wait for this group's dw: captured gradients and saved activations. 0 before dx and once the
        group is done.

        Each storage counts once in a group. What several groups share (the gradient that a bias and its matmul
        receive, the input of q, k and v) counts in each of them, as the last of them frees it; so the sum over groups
        is an upper bound; :attr:`GradFunction.nbytes` is the total.

        Gradients are measured. Activations are computed from the shapes in the graph and from what is known of the
        operations, weights left out; masks, indices and constants, and what compiled, custom and recomputed pieces
        hold, are not seen. ``mindspore_zb.memory.SavedTensorLedger`` measures them all, at a price.
        """
        return self._grad_function._group_bytes(self.index)

    @property
    def done(self) -> bool:
        """Whether this group was computed and has freed what it held."""
        return self._grad_function._is_group_done(self.index)

    def compute(self, keep_graph: bool = False) -> Tuple[Any, ...]:
        """Run dw of this group: the gradients of :attr:`weights`, in that order.

        Args:
            keep_graph: keep what the group needs, so that it can be computed again.

        Raises:
            StateError: dx was not computed yet, the group was computed already or the graph was released.
        """
        return self._grad_function._compute_group(self.index, keep_graph)

    def __repr__(self) -> str:
        names = ", ".join(parameter.name for parameter in self.weights)
        starts = ", ".join(f"{boundary.name}{list(boundary.slots)}" for boundary in self.boundaries) or "unreached"
        return f"<WeightGroup {self.index}: {names} from {starts}{', done' if self.done else ''}>"
