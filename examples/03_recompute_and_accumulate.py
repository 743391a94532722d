"""Save memory with recompute, and sum gradients over micro-batches, both with the split backward.

    python examples/03_recompute_and_accumulate.py

1. A stage of transformer blocks runs forward, dx and dw without recompute and under three policies. What is kept after
   the forward is compared with the formula, and all gradients with those without recompute: they are equal to the bit.
2. Four micro-batches are in flight; their dw is added group by group, in another order than that of dx, into one
   buffer for each weight. The sums are those of MindSpore's value_and_grad on the whole batch.

The program ends with exit code 1 if anything is not as promised.
"""

import contextlib
import sys
from typing import Any, List, Tuple

import mindspore as ms
import numpy as np
from language_model import Block
from mindspore import Tensor, nn
from terminal import show_table

from mindspore_zb import GradientAccumulator, forward_and_gradfn
from mindspore_zb.memory import SavedTensorLedger, apply_recompute

BLOCKS, WIDTH, HEADS, LENGTH, BATCH, MICRO_BATCHES = 4, 32, 4, 32, 4, 4
TOLERANCE = 1e-5  # largest error of a sum, as a part of its largest entry
BYTES_OF_FLOAT32 = 4


class Stage(nn.Cell):
    """Blocks with dropout behind each."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.SequentialCell([nn.SequentialCell(Block(WIDTH, HEADS, LENGTH), nn.Dropout(p=0.1))
                                         for _ in range(BLOCKS)])

    def construct(self, x):
        return self.blocks(x)


def new_stage(train: bool) -> Stage:
    """A stage whose weights and dropout masks are the same each time; without dropout unless it is to ``train``."""
    ms.set_seed(0)
    stage = Stage()
    stage.set_train(train)
    return stage


def numbers(batch: int, seed: int) -> Tensor:
    """Standard normal activations of a batch."""
    return Tensor(np.random.RandomState(seed).standard_normal((batch, LENGTH, WIDTH)).astype(np.float32))


def one_pass(policy: str) -> Tuple[int, int, List[Any]]:
    """Bytes kept after the forward and after dx, and all results of one micro-batch."""
    stage = new_stage(train=True)
    weights = stage.trainable_params()
    ledger = SavedTensorLedger(ignore=weights)
    recompute = contextlib.nullcontext() if policy == "none" else apply_recompute(stage.blocks, policy)
    with recompute, ledger.watch():  # recompute is needed for the forward only
        out, grad_fn = forward_and_gradfn(stage, numbers(BATCH, seed=1), weights=weights)
    after_forward = ledger.alive_bytes()
    dx = grad_fn.compute_input_grad(numbers(BATCH, seed=2))
    after_dx = ledger.alive_bytes()
    return after_forward, after_dx, [out, dx, *grad_fn.compute_weight_grad()]


def formula(policy: str) -> int:
    """Bytes kept after the forward: block inputs and dropout masks; for "selective" also what the layers gave."""
    activation = BATCH * LENGTH * WIDTH * BYTES_OF_FLOAT32
    mask_length = BLOCKS  # one mask of an activation's size behind each block
    kept = {"full": BLOCKS, "every": BLOCKS // 2, "selective": BLOCKS * (1 + 3 + 1 + 4 + 1)}[policy]
    return (kept + mask_length) * activation


def show_recompute() -> bool:
    """The first part; whether all is as promised."""
    bytes_without, _, expected = one_pass("none")
    rows, fine = [["none", f"{bytes_without:,}", "", "1.000", ""]], True
    for policy in ("full", "every", "selective"):
        after_forward, _, found = one_pass(policy)
        equal = all(one.asnumpy().tobytes() == other.asnumpy().tobytes() for one, other in zip(found, expected))
        near = abs(after_forward - formula(policy)) <= 0.05 * formula(policy)
        fine = fine and equal and near and len(found) == len(expected)
        rows.append([policy, f"{after_forward:,}", f"{formula(policy):,}", f"{after_forward / bytes_without:.3f}",
                     "equal to the bit" if equal else "NOT EQUAL"])
    show_table(f"1. {BLOCKS} blocks, width {WIDTH}, batch {BATCH}, length {LENGTH}, dropout: bytes after the forward",
               ["recompute", "bytes", "formula", "of none", "gradients"], rows)
    return fine


def show_accumulation() -> bool:
    """The second part; whether the sums are right."""
    stage = new_stage(train=False)
    weights = stage.trainable_params()
    batches, sens = [[numbers(BATCH, seed=seed + number) for number in range(MICRO_BATCHES)] for seed in (10, 20)]
    accumulator = GradientAccumulator(weights)
    with apply_recompute(stage.blocks, "every"):
        flights = [forward_and_gradfn(stage, batch, weights=weights)[1] for batch in batches]
    for grad_fn, given in zip(flights, sens):
        grad_fn.compute_input_grad(given)          # send it to the stage before, at once
    for grad_fn in reversed(flights):              # the gaps: each takes a group of some micro-batch
        for group in grad_fn.weight_groups:
            accumulator.accumulate(group)

    def whole_batch(x: Tensor) -> Tensor:
        return (stage(x) * ms.ops.cat(sens)).sum()

    _, expected = ms.value_and_grad(whole_batch, None, weights)(ms.ops.cat(batches))
    errors = [np.abs(one.asnumpy() - other.asnumpy()).max() / np.abs(other.asnumpy()).max()
              for one, other in zip(accumulator.gradients(), expected)]
    accumulator.step(nn.SGD(weights, learning_rate=0.01))
    fine = len(errors) == len(weights) and max(errors) <= TOLERANCE
    print(f"\n2. {MICRO_BATCHES} micro-batches, {len(weights)} weights, {accumulator.nbytes:,} bytes of sums: "
          f"{'equal within' if fine else 'NOT EQUAL within'} {TOLERANCE} of the whole batch by value_and_grad")
    return fine


def main() -> int:
    """Run both parts."""
    results = [show_recompute(), show_accumulation()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
