"""Train a small language model twice, side by side: with its backward split into dx and dw, and with it whole.

    pip install -e .[viz]                          # once, in the repository; without viz there are plain lines
    python examples/01_train_language_model.py

The net is cut into two stages, as pipeline parallelism would put them on two devices:

    token ids -> [ stage 1: embedding, blocks ] -> activations -> [ stage 2: blocks, head, loss ] -> loss

Each training step has several micro-batches. In the split training, stage 2 hands the gradient of its input (dx) to
stage 1 at once, and the gradients of all weights (dw) wait until the end of the step: in a pipeline they would fill
the time in which a stage has nothing else to do (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241).
Both trainings start from the same weights and see the same text, so their losses must be equal: the program checks
it, and ends with exit code 1 if they are not. At the end stand the times of the parts, and the memory that a
micro-batch holds after its forward, after dx and after dw of each group of weights.
"""

import argparse
import functools
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

import mindspore as ms
from language_model import LanguageModel, MicroBatch, copy_weights, endless_steps, read_text
from language_model_report import show_losses, show_memory, show_times
from mindspore import nn
from terminal import progress

from mindspore_zb import forward_and_gradfn
from mindspore_zb.memory import SavedTensorLedger, synchronize

MICRO_BATCHES, BATCH, LENGTH, HEADS = 2, 8, 64, 4
LEARNING_RATE = 2e-3
TOLERANCE = 1e-4  # largest relative difference of two losses that count as equal
UNTIMED_STEPS = 2  # MindSpore sets itself up in the first steps
TEXT_BYTES = 2_000_000


class Stopwatch:
    """Adds up seconds under names. MindSpore issues work ahead, so each reading waits for it first."""

    def __init__(self) -> None:
        self.seconds: Dict[str, float] = {}
        synchronize()
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since the start or the last lap to ``name``."""
        synchronize()
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


class SplitTraining:
    """Forward, dx at once, dw at the end of the step."""

    def __init__(self, model: LanguageModel):
        self.first, self.last = model.first, model.last
        self.first_weights, self.last_weights = model.first.trainable_params(), model.last.trainable_params()
        self.optimizer = new_optimizer(model)

    def step(self, micro_batches: Sequence[MicroBatch]) -> Tuple[float, Dict[str, float]]:
        """Train one step: the mean loss, and the seconds of the parts."""
        watch = Stopwatch()
        losses, postponed, grads = [], [], ()
        for ids, targets in micro_batches:
            hidden, first_grad_fn = forward_and_gradfn(self.first, ids, weights=self.first_weights)
            watch.lap("stage 1 forward")
            loss, last_grad_fn = forward_and_gradfn(self.last, hidden, targets, weights=self.last_weights)
            watch.lap("stage 2 forward")
            hidden_grad = last_grad_fn.compute_input_grad()  # dx: this is what stage 1 waits for
            watch.lap("stage 2 dx")
            first_grad_fn.compute_input_grad(hidden_grad)  # None: token ids have no gradient
            watch.lap("stage 1 dx")
            losses.append(loss)
            postponed.append((first_grad_fn, last_grad_fn))
        for first_grad_fn, last_grad_fn in postponed:  # dw: nobody waits for these before the optimizer does
            last_grads = last_grad_fn.compute_weight_grad()
            watch.lap("stage 2 dw")
            first_grads = first_grad_fn.compute_weight_grad()
            watch.lap("stage 1 dw")
            grads = add(grads, (*first_grads, *last_grads))
            watch.lap("sums")
        self.optimizer(mean(grads))
        return mean_loss(losses), watch.seconds


class UnsplitTraining:
    """The same with MindSpore's own ``value_and_grad`` of both stages in a row."""

    def __init__(self, model: LanguageModel):
        self.model = model
        self.optimizer = new_optimizer(model)
        self.watch = Stopwatch()
        self.value_and_grad = ms.value_and_grad(self.forward, None, model.trainable_params())

    def forward(self, ids: ms.Tensor, targets: ms.Tensor) -> ms.Tensor:
        """The loss; reads the clock before the backward begins."""
        loss = self.model(ids, targets)
        self.watch.lap("forward")
        return loss

    def step(self, micro_batches: Sequence[MicroBatch]) -> Tuple[float, Dict[str, float]]:
        """Train one step: the mean loss, and the seconds of the parts."""
        self.watch = Stopwatch()
        losses, grads = [], ()
        for ids, targets in micro_batches:
            loss, new_grads = self.value_and_grad(ids, targets)
            self.watch.lap("backward")
            losses.append(loss)
            grads = add(grads, new_grads)
            self.watch.lap("sums")
        self.optimizer(mean(grads))
        return mean_loss(losses), self.watch.seconds


def new_optimizer(model: LanguageModel) -> nn.Optimizer:
    """Adam for all weights; those of stage 1 come first."""
    return nn.AdamWeightDecay(model.trainable_params(), learning_rate=LEARNING_RATE, beta2=0.95)


def add(total: Sequence[ms.Tensor], grads: Sequence[ms.Tensor]) -> Tuple[ms.Tensor, ...]:
    """The sums of the gradients so far, none at first, and new ones."""
    return tuple(one + other for one, other in zip(total, grads)) if total else tuple(grads)


def mean(grads: Sequence[ms.Tensor]) -> Tuple[ms.Tensor, ...]:
    """The gradients of the mean loss from the sums over the micro-batches."""
    return tuple(grad / MICRO_BATCHES for grad in grads)


def mean_loss(losses: Sequence[ms.Tensor]) -> float:
    """The mean over the micro-batches as a Python number."""
    return sum(float(loss.asnumpy()) for loss in losses) / len(losses)


def train(model: LanguageModel, text: bytes, steps: int, seed: int) -> Tuple[Dict[str, list], Dict[str, dict]]:
    """Both trainings, in turn step by step: the losses of each, and for each part its seconds in the timed steps."""
    twin = LanguageModel(*model.size)
    copy_weights(model, twin)
    trainings = {"split": SplitTraining(model), "unsplit": UnsplitTraining(twin)}
    losses: Dict[str, List[float]] = {name: [] for name in trainings}
    seconds: Dict[str, Dict[str, List[float]]] = {name: {} for name in trainings}
    batches = endless_steps(text, MICRO_BATCHES, BATCH, LENGTH, seed)
    with progress(steps) as tell:
        for done, micro_batches in zip(range(1, steps + 1), batches):
            for name in sorted(trainings, reverse=done % 2 == 0):  # neither is always the first
                loss, parts = trainings[name].step(micro_batches)
                losses[name].append(loss)
                for part, length in parts.items():
                    seconds[name].setdefault(part, []).extend([length] if done > UNTIMED_STEPS else [])
            tell(done, f"loss {losses['split'][-1]:.4f} split, {losses['unsplit'][-1]:.4f} unsplit")
    return losses, seconds


def measure_memory(stage: nn.Cell, inputs: Sequence[Any], sens: Any = None) -> Tuple[List[Tuple[str, int, int]], Any]:
    """Run one micro-batch, each weight group alone. Not timed: watching makes MindSpore wait after each operation.

    Returns:
        Rows ``(what has run, bytes of saved activations that are alive, bytes of gradients that wait for dw)``, and dx.
    """
    ledger = SavedTensorLedger(ignore=stage.trainable_params())
    with ledger.watch():
        _, grad_fn = forward_and_gradfn(stage, *inputs, weights=stage.trainable_params())
    rows = [("forward", ledger.alive_bytes(), 0)]
    dx = grad_fn.compute_input_grad(sens)
    groups = grad_fn.weight_groups
    rows.append(("dx", ledger.alive_bytes(), grad_fn.nbytes - ledger.alive_bytes()))
    for group in groups:  # what waits for dw is activations and gradients
        group.compute()
        layers = list(dict.fromkeys(weight.name.rpartition(".")[0] for weight in group.weights))
        name = layers[0] if len(layers) == 1 else f"all {len(layers)} layers"
        rows.append((f"dw of {name}", ledger.alive_bytes(), max(0, grad_fn.nbytes - ledger.alive_bytes())))
    return rows, dx


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; a wrong one ends the program with one line and exit code 2."""
    parser = argparse.ArgumentParser(
        description="Train a small language model with its backward split into dx and dw, beside the unsplit training.",
        epilog="example: python examples/01_train_language_model.py --steps 20 --width 64 --blocks 2")
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: error: {message}\n")
    option = functools.partial(parser.add_argument, metavar="N")
    option("--steps", type=whole_number(UNTIMED_STEPS + 1, 10_000), default=30,
           help="training steps (default: %(default)s)")
    option("--width", type=whole_number(HEADS, 4096), default=128,
           help=f"size of the activations, a multiple of {HEADS} (default: %(default)s)")
    option("--blocks", type=whole_number(2, 64), default=3, help="transformer blocks (default: %(default)s)")
    option("--seed", type=whole_number(0, 2 ** 31 - 1), default=1, help="of weights and text (default: %(default)s)")
    option("--text", type=Path, default=Path(sysconfig.get_paths()["stdlib"]), metavar="FOLDER",
           help="where the text is (default: the sources of Python's standard library)")
    options = parser.parse_args(arguments)
    if options.width % HEADS:
        parser.error(f"argument --width: must be a multiple of {HEADS}, not {options.width}")
    return options


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """What reads such a number from the command line."""
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)
    return read


def main(arguments: Sequence[str]) -> int:
    """Train, print what came out; 0 if the losses are equal."""
    options = parse_arguments(arguments)
    try:
        text = read_text(options.text, TEXT_BYTES)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    ms.set_seed(options.seed)
    model = LanguageModel(options.blocks, options.width, HEADS, LENGTH)
    numbers = sum(weight.size for weight in model.trainable_params())
    print(f"MindSpore {ms.__version__}: {options.blocks} blocks of width {options.width}, {numbers / 1e6:.2f} million "
          f"weights; each step {MICRO_BATCHES} x {BATCH} x {LENGTH} bytes\nof text from {options.text}")
    losses, seconds = train(model, text, options.steps, options.seed)
    equal = show_losses(losses["split"], losses["unsplit"], TOLERANCE)
    show_times(seconds["split"], seconds["unsplit"], MICRO_BATCHES)

    ids, targets = next(endless_steps(text, MICRO_BATCHES, BATCH, LENGTH, options.seed))[0]
    last_rows, hidden_grad = measure_memory(model.last, (model.first(ids), targets))
    first_rows, _ = measure_memory(model.first, (ids,), hidden_grad)
    show_memory("stage 1", first_rows, "stage 1 reads token ids: it has no dx, and its whole backward waits until dw")
    show_memory("stage 2", last_rows, "activations: saved by the forward and alive (weights are not counted)\n"
                "gradients: where dw starts, kept by dx for it")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
