"""Hunt two faults of memory that MindSpore does not tell of: graphs that never die, and weights changed too early.

    python examples/04_memory_hunt.py

First a training that appends its losses to a list, history and all: each step's activations stay alive. The leak finder
says how many bytes, and in whose hands. Then a pipeline of two micro-batches that steps the optimizer while the second
one is still in flight: its gradients come out wrong, in silence, and the guard makes an error of it that names the
layer. Both faults are mended, and the tools are silent. The program asserts all it says.
"""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from mindspore_zb import forward_and_gradfn
from mindspore_zb.errors import ChangedTensorError
from mindspore_zb.memory import LeakFinder, LeakReport, guard

STEPS, BATCH, WIDTH = 5, 64, 256


class Stage(nn.Cell):
    """A residual block."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, x):
        return x + self.down(ops.tanh(self.up(x)))


class Trainer:
    """Trains on random numbers.

    Args:
        forgets: whether it releases the forwards that it only looks at.
    """

    def __init__(self, forgets: bool):
        self.stage = Stage()
        self.forgets = forgets
        self.history = []

    def train(self) -> LeakReport:
        """Some steps under the leak finder."""
        finder = LeakFinder()
        for seed in range(STEPS):
            with finder.step():
                out, grad_fn = forward_and_gradfn(self.stage, normal(seed), weights=self.stage.trainable_params())
                if self.forgets:
                    grad_fn.release()
                self.history.append((out, grad_fn))  # for a look at the gradients some day
        return finder.report()


def normal(seed: int) -> ms.Tensor:
    """A micro-batch."""
    return ms.Tensor(np.random.default_rng(seed).standard_normal((BATCH, WIDTH)).astype(np.float32))


def two_micro_batches(stage: Stage, too_early: bool) -> np.ndarray:
    """The gradient of the second micro-batch's input; ``too_early``: the optimizer steps before it is computed."""
    weights = stage.trainable_params()
    optimizer = nn.SGD(weights, learning_rate=1e-3)
    first, second = (forward_and_gradfn(stage, normal(seed), weights=weights)[1] for seed in range(2))
    first.compute_input_grad()
    grads = first.compute_weight_grad()
    if too_early:
        optimizer(grads)
    dx = second.compute_input_grad()
    more = second.compute_weight_grad()
    if not too_early:
        optimizer(tuple(one + other for one, other in zip(grads, more)))
    return dx.asnumpy()


def hunt_a_leak() -> None:
    """Find who keeps the graphs, mend it, and find nobody."""
    report = Trainer(forgets=False).train()
    print(f"A leak. {report}\n")
    leak, = report.leaks
    assert "Trainer.history" in leak.holder and leak.steps == tuple(range(STEPS))
    assert leak.nbytes == STEPS * 4 * BATCH * (WIDTH + 2 * WIDTH)  # of each step the input and the output of tanh
    mended = Trainer(forgets=True).train()
    print(f"Mended. {mended}\n")
    assert not mended.leaks and mended.alive_bytes[-1] == 0


def hunt_a_change() -> None:
    """Catch the optimizer that steps too early, which gives wrong gradients else."""
    ms.set_seed(1)
    stage = Stage()
    before = [weight.asnumpy().copy() for weight in stage.trainable_params()]

    def restored() -> Stage:
        for weight, value in zip(stage.trainable_params(), before):
            weight.set_data(ms.Tensor(value))
        return stage

    right, wrong = two_micro_batches(restored(), too_early=False), two_micro_batches(restored(), too_early=True)
    difference = np.abs(wrong - right).max()
    print(f"A change. Without the guard dx is wrong by up to {difference:.2g}, and nobody says so. With it:")
    assert difference > 1e-2
    try:
        with guard():
            two_micro_batches(restored(), too_early=True)
    except ChangedTensorError as error:
        print(f"    ChangedTensorError: {error}\n")
        assert "the weight down.weight" in str(error) and "Stage.down (Dense), MatMul" in str(error)
    else:
        raise AssertionError("the guard did not notice")
    with guard() as watch:
        guarded = two_micro_batches(restored(), too_early=False)
    print(f"Mended. The guard compared {watch.checked} saved tensors, found none changed, and dx is the same to the bit.")
    assert guarded.tobytes() == right.tobytes()


if __name__ == "__main__":
    hunt_a_leak()
    hunt_a_change()
