"""The memory of a training step as plain data: its course, its peak, and what holds it."""

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mindspore_zb.memory.storages import SavedStorage


@dataclass(frozen=True)
class MemoryStep:
    """One step of the training step.

    Attributes:
        name: ``"forward"``, ``"dx"``, ``"dw 0"``, ..., ``"optimizer"``.
        weights: the names of the weights whose gradients it computes.
        first, last: its part of the order of saves and frees: from ``first`` to right before ``last``.
        saved_bytes: saved storages that are alive at its end.
        held_bytes: what else waits for dw at its end: captured gradients, and values between compiled pieces.
        grad_bytes: gradients of weights that are there at its end.
        device_bytes, device_peak: what the device's allocator reports, everything included: at the end, and at most
            during the step; None where it reports nothing.
    """

    name: str
    weights: Tuple[str, ...]
    first: int
    last: int
    saved_bytes: int
    held_bytes: int
    grad_bytes: int
    device_bytes: Optional[int] = None
    device_peak: Optional[int] = None

    @property
    def total(self) -> int:
        """All that is counted at its end."""
        return self.saved_bytes + self.held_bytes + self.grad_bytes


@dataclass(frozen=True)
class LayerWeights:
    """The weights of a layer; their gradients have as many bytes."""

    layer: str
    names: Tuple[str, ...]
    nbytes: int


@dataclass(frozen=True)
class Peak:
    """The moment at which most is held.

    Attributes:
        nbytes: how much: ``saved_bytes`` of storages, ``held_bytes`` and ``grad_bytes``.
        step: the name of the step.
        event: the peak comes right before this place in the order of saves and frees.
    """

    nbytes: int
    step: str
    event: int
    saved_bytes: int
    held_bytes: int
    grad_bytes: int


@dataclass(frozen=True)
class Holder:
    """Saved storages of a layer that one set of operations needs: how many, and their bytes."""

    layer: str
    saved_by: str
    count: int
    nbytes: int


@dataclass(frozen=True)
class LayerMemory:
    """A layer: the bytes it saves in the forward, those of them that are left after dx, and those of its gradients."""

    layer: str
    saved_bytes: int
    after_dx_bytes: int
    grad_bytes: int


@dataclass(frozen=True)
class MemoryTimeline:
    """What :func:`~mindspore_zb.memory.memory_timeline` returns: plain data, which keeps no tensor alive.

    Attributes:
        engine, fallback_reason: as of the ``GradFunction``.
        steps: the steps in order.
        storages: everything that was saved, in order.
        layers: the weights by layer.
        weight_bytes: of all weights; they live anyway, and count nowhere else.
        notes: what to know of these figures.
    """

    engine: str
    fallback_reason: Optional[str]
    steps: Tuple[MemoryStep, ...]
    storages: Tuple[SavedStorage, ...]
    layers: Tuple[LayerWeights, ...]
    weight_bytes: int
    notes: Tuple[str, ...]

    def curve(self) -> List[int]:
        """Bytes of the saved storages that are alive after each save and free, in their order."""
        changes: Dict[int, int] = {}
        for storage in self.storages:
            changes[storage.saved] = storage.nbytes
            if storage.freed is not None:
                changes[storage.freed] = -storage.nbytes
        alive, curve = 0, []
        for event in range(len(changes)):
            alive += changes[event]
            curve.append(alive)
        return curve

    def step_peaks(self) -> List[Peak]:
        """The peak of each step. What is counted at the end of a step only, counts for the next step up to its end."""
        curve, peaks = self.curve(), []
        held = grads = 0
        for step in self.steps:
            found = Peak(step.total, step.name, step.last, step.saved_bytes, step.held_bytes, step.grad_bytes)
            if step.last > step.first:
                event = max(range(step.first, step.last), key=curve.__getitem__)
                within = Peak(curve[event] + held + grads, step.name, event + 1, curve[event], held, grads)
            else:
                saved = curve[step.first - 1] if step.first else 0
                within = Peak(saved + held + grads, step.name, step.first, saved, held, grads)
            peaks.append(within if within.nbytes > found.nbytes else found)
            held, grads = step.held_bytes, step.grad_bytes
        return peaks

    @property
    def peak(self) -> Peak:
        """The moment at which most is held, the first of equals."""
        return max(self.step_peaks(), key=lambda peak: peak.nbytes)

    def alive_at(self, event: int) -> List[SavedStorage]:
        """The storages that are alive right before this place in the order of saves and frees."""
        return [storage for storage in self.storages
                if storage.saved < event and (storage.freed is None or storage.freed >= event)]

    def holders(self, depth: Optional[int] = None) -> List[Holder]:
        """What is saved at the peak, by layer and operation, the largest first.

        Args:
            depth: put layers together whose names agree in their first ``depth`` parts.
        """
        return _gathered(self.alive_at(self.peak.event), lambda storage: cut(storage.layer, depth))

    def operations(self) -> List[Holder]:
        """What is saved at the peak, by operation, the largest first; ``layer`` is empty."""
        return _gathered(self.alive_at(self.peak.event), lambda storage: "")

    def by_layer(self, depth: Optional[int] = None) -> List[LayerMemory]:
        """What each layer saves in the forward, keeps after dx and has of gradients, in the order of the forward."""
        after_dx = next((step.last for step in self.steps if step.name == "dx"), None)
        left = set() if after_dx is None else {storage.saved for storage in self.alive_at(after_dx)}
        sums: Dict[str, List[int]] = {}
        for storage in self.storages:
            if storage.saved_in == "forward":
                row = sums.setdefault(cut(storage.layer, depth), [0, 0, 0])
                row[0] += storage.nbytes
                row[1] += storage.nbytes if storage.saved in left else 0
        for layer in self.layers:
            sums.setdefault(cut(layer.layer, depth), [0, 0, 0])[2] += layer.nbytes
        return [LayerMemory(layer, *row) for layer, row in sums.items()]

    def to_dict(self) -> Dict[str, Any]:
        """The same as dicts, lists, strings and numbers, fit for ``json.dumps``; with the peak, layers and holders."""
        return {**asdict(self), "curve": self.curve(), "peak": asdict(self.peak),
                "holders": [asdict(holder) for holder in self.holders()],
                "operations": [asdict(holder) for holder in self.operations()],
                "layer_sums": [asdict(layer) for layer in self.by_layer()]}

    def draw(self, path: Any, depth: Optional[int] = None) -> None:
        """Draw what is held over the step, by layer; needs matplotlib.

        Args:
            path: the file to write; its suffix chooses PNG or SVG.
            depth: as for :meth:`holders`.

        Raises:
            ArgumentValueError: ``path`` has another suffix or cannot be written.
            ArgumentTypeError: ``path`` is no path.
            UnsupportedError: matplotlib is not installed.
        """
        from mindspore_zb.draw.memory import draw_memory
        draw_memory(self, path, depth)


def cut(layer: str, depth: Optional[int]) -> str:
    """The first parts of a layer's name.

    >>> cut("blocks.0.attention.query", 2), cut("blocks.0", None)
    ('blocks.0', 'blocks.0')
    """
    return layer if depth is None else ".".join(layer.split(".")[:depth])


def _gathered(storages: Sequence[SavedStorage], layer_of: Any) -> List[Holder]:
    sums: Dict[Tuple[str, str], List[int]] = {}
    for storage in storages:
        row = sums.setdefault((layer_of(storage), storage.saved_by), [0, 0])
        row[0] += 1
        row[1] += storage.nbytes
    holders = [Holder(layer, saved_by, *row) for (layer, saved_by), row in sums.items()]
    return sorted(holders, key=lambda holder: -holder.nbytes)
