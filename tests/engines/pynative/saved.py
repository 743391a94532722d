"""See which tensors a forward saved and are still alive."""

import weakref

import mindspore as ms
from mindspore import ops

from mindspore_zb import forward_and_gradfn
from mindspore_zb.engines.pynative.native import sync

from ...helpers import weight


class Box:
    """Stands for one saved tensor, and lives as long as it is saved."""

    __slots__ = ("tensor", "__weakref__")

    def __init__(self, saved):
        self.tensor = saved.data


class Saved:
    """The tensors that forwards inside ``with saved:`` save, as long as they are alive."""

    def __init__(self, *ignored):
        self._ignored = {one.data_ptr() for one in ignored}
        self._boxes = []
        self._hooks = ms.saved_tensors_hooks(self._pack, lambda box: box.tensor)

    def __enter__(self):
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)

    def _pack(self, saved):
        box = Box(saved)
        if saved.data_ptr() not in self._ignored:
            self._boxes.append(weakref.ref(box))
        return box

    def pointers(self):
        """Addresses of what is alive; the weights are not counted."""
        sync()  # frees lag one operation behind
        return {box().tensor.data_ptr() for box in self._boxes if box() is not None}

    def count(self):
        """How many saved tensors are alive."""
        sync()
        return sum(box() is not None for box in self._boxes)


class Layers:
    """Three matmuls with an activation between; remembers where what it saves lies."""

    def __init__(self, activation=ops.silu):
        self.activation = activation
        self.weights = [weight(4, 4, seed=seed, name=f"w{seed}") for seed in range(3)]
        self.before = []  # what an activation saves: its own input. Only dx needs it.
        self.inputs = []  # what a matmul saves: its input. dw needs it.
        self.storages = []

    def __call__(self, x):
        self.before, self.inputs, self.storages = [], [], []
        for w in self.weights:
            self.inputs.append(self.address(x))
            x = x @ w
            self.before.append(self.address(x))
            x = self.activation(x)
        return x

    def address(self, value):
        """Where a tensor lies; no other may lie there as long as addresses are compared."""
        self.storages.append(value.data)
        return value.data_ptr()


def forward(fn, x, weights, **kwargs):
    """``(saved, grad_fn)`` of a watched forward."""
    saved = Saved(*weights)
    with saved:
        grad_fn = forward_and_gradfn(fn, x, weights=weights, **kwargs)[1]
    return saved, grad_fn
