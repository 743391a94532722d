"""Pipelines of any number of stages, of every kind, and their losses and gradients without a pipeline.

Used in one process by the tests beside this, and in several by the system tests.
"""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Tuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindspore_zb.pipeline import Pipeline, Stage, split_batch
from mindspore_zb.schedule import Costs, generate

WIDTH, ROWS, VOCABULARY = 8, 3, 11
SCHEDULES = ("1f1b", "zb-h1", "zb-h2", "zb-v", "auto")
TOLERANCE = 2e-5
"""Largest difference of gradients, relative to the largest entry: sums of micro-batches in another order."""


@dataclass(frozen=True)
class Case:
    """The stages of a model and a batch."""

    stages: Tuple[Stage, ...]
    inputs: tuple
    targets: tuple
    extras: Dict[int, tuple] = field(default_factory=dict)
    seed: Any = None

    def rank_stages(self, schedule, rank):
        """Those of one rank."""
        return {number: self.stages[number] for number in schedule.stages_of(rank)}

    def pipeline(self, schedule, rank, end, **options):
        """The rank."""
        return Pipeline(schedule, self.rank_stages(schedule, rank), end, seed=self.seed, **options)

    @property
    def batch(self):
        """The arguments of ``step``."""
        return {"inputs": self.inputs, "targets": self.targets, "extras": self.extras}


def make_schedule(name, ranks, microbatches, weight_parts=1):
    """A schedule; the search is given even costs."""
    options = {"costs": Costs()} if name == "auto" else {}
    return generate(name, stages=ranks, microbatches=microbatches, weight_parts=weight_parts, **options)


def without_pipeline(case: Case, microbatches: int):
    """``(losses, {id of weight: gradient of the mean loss})`` by MindSpore's own ``value_and_grad``."""
    last = len(case.stages) - 1
    weights = list({id(weight): weight for stage in case.stages for weight in stage.weights}.values())
    given = {number: () for number in range(len(case.stages))}
    given.update(case.extras)
    given[0] = given[0] + case.inputs
    given[last] = given[last] + case.targets
    pieces = {number: split_batch(value, microbatches) for number, value in given.items()}

    def whole(microbatch):
        value: Tuple[Any, ...] = ()
        for number, stage in enumerate(case.stages):
            value = (stage.fn(*value, *pieces[number][microbatch]),)
        return value[0]

    losses, sums = [], [0.0] * len(weights)
    for microbatch in range(microbatches):
        loss, grads = ms.value_and_grad(lambda: whole(microbatch), None, ms.ParameterTuple(weights))()
        losses.append(float(loss.asnumpy()))
        sums = [total + grad.asnumpy().astype(np.float64) / microbatches for total, grad in zip(sums, grads)]
    return losses, {id(weight): total for weight, total in zip(weights, sums)}


def assert_equal_gradients(weights, grads, expected, what, tolerance=TOLERANCE):
    """Equal, relative to the size of each gradient."""
    assert len(weights) == len(grads)
    for weight, grad in zip(weights, grads):
        wanted = expected[id(weight)]
        size = max(float(np.abs(wanted).max()), 1e-6)
        off = float(np.abs(grad.asnumpy().astype(np.float64) - wanted).max()) / size
        assert off <= tolerance, f"{what}: gradient of {weight.name} is off by {off:.1e} of its size"


class Numbers:
    """Deterministic values."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)
        self._cells = 0

    def floats(self, *shape, scale=1.0):
        return Tensor((self._rng.standard_normal(shape) * scale).astype(np.float32))

    def ints(self, *shape, below=VOCABULARY):
        return Tensor(self._rng.integers(0, below, shape).astype(np.int32))

    def fill(self, cell):
        """Give all weights values, and names that tell the stages apart."""
        self._cells += 1
        for parameter in cell.get_parameters():
            parameter.name = f"cell{self._cells}.{parameter.name}"
            parameter.set_data(self.floats(*parameter.shape, scale=0.5).astype(parameter.dtype))
        return cell


class Middle(nn.Cell):
    """Two layers with a residual."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, x):
        return x + self.down(ops.silu(self.up(x)))


class Reader(nn.Cell):
    """Token ids to activations."""

    def __init__(self):
        super().__init__()
        self.tokens, self.layer = nn.Embedding(VOCABULARY, WIDTH), nn.Dense(WIDTH, WIDTH)

    def construct(self, ids):
        return ops.tanh(self.layer(self.tokens(ids)))


class Loss(nn.Cell):
    """Activations and token ids to the mean loss."""

    def __init__(self):
        super().__init__()
        self.head = nn.Dense(WIDTH, VOCABULARY)

    def construct(self, x, ids):
        return ops.cross_entropy(self.head(x), ids)


class Tied(nn.Cell):
    """One weight used twice, and its transpose."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((WIDTH, WIDTH), np.float32)), name="tied")
        self.gain = Parameter(Tensor(np.zeros((WIDTH,), np.float32)), name="gain")

    def construct(self, x):
        return ops.matmul(ops.tanh(ops.matmul(x, self.weight)) * self.gain, self.weight.T)


class WithDropout(nn.Cell):
    """Random masks that follow the global seed."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(WIDTH, WIDTH)

    def construct(self, x):
        return ops.dropout(self.layer(x), 0.4, True)


class NestedMiddle(nn.Cell):
    """Takes and gives a dict with activations, an integer mask and a pair."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(WIDTH, WIDTH)

    def construct(self, message):
        first, second = message["pair"]
        hidden = ops.tanh(self.layer(message["hidden"])) * message["mask"].astype(ms.float32)
        return {"hidden": hidden, "mask": message["mask"], "pair": (first + hidden, second * 0.9)}


def plain_ends(numbers, count):
    """Token ids first, a loss last, two layers each between them."""
    return [numbers.fill(Reader()), *(numbers.fill(Middle()) for _ in range(count - 2)), numbers.fill(Loss())]


def integers(count, rows, numbers):
    """Integer inputs of the first stage, integer targets of the last one."""
    return Case(tuple(map(Stage, plain_ends(numbers, count))), (numbers.ints(rows),), (numbers.ints(rows),))


def weightless(count, rows, numbers):
    """A first stage and a middle one without weights, and a last one that is the loss alone."""
    def double(x):
        return ops.tanh(2.0 * x)

    def loss(x, y):
        return ops.mean((x - y) ** 2)

    cells = [double, *(double if place % 2 else numbers.fill(Middle()) for place in range(count - 2)), loss]
    if count == 2:
        cells[0] = numbers.fill(Middle())
    return Case(tuple(map(Stage, cells)), (numbers.floats(rows, WIDTH),), (numbers.floats(rows, WIDTH),))


def weightless_first(count, rows, numbers):
    """A first stage without weights that reads integers."""
    table = numbers.floats(VOCABULARY, WIDTH)
    cells = [lambda ids: table[ids], *plain_ends(numbers, count)[1:]]
    return Case(tuple(map(Stage, cells)), (numbers.ints(rows),), (numbers.ints(rows),))


def tied(count, rows, numbers):
    """Weights used twice inside each stage but the last; float inputs."""
    cells = [*(numbers.fill(Tied()) for _ in range(count - 1)), numbers.fill(Loss())]
    return Case(tuple(map(Stage, cells)), (numbers.floats(rows, WIDTH),), (numbers.ints(rows),))


def dropout(count, rows, numbers):
    """Random masks in every stage but the last."""
    cells = [*(numbers.fill(WithDropout()) for _ in range(count - 1)), numbers.fill(Loss())]
    return Case(tuple(map(Stage, cells)), (numbers.floats(rows, WIDTH),), (numbers.ints(rows),), seed=7)


def nested(count, rows, numbers):
    """Nested inputs, nested messages with integers among them, constants."""
    reader = numbers.fill(Reader())
    head = numbers.fill(Loss())

    def first(batch, flag):
        hidden = reader(batch["ids"]) * batch["scale"][0] if flag else reader(batch["ids"])
        return {"hidden": hidden, "mask": (batch["ids"] > 3).astype(ms.int32).reshape(-1, 1),
                "pair": (hidden, hidden * 2)}

    def last(message, ids):
        return head(message["hidden"] + message["pair"][0] + message["pair"][1], ids)

    stages = [Stage(first, reader.trainable_params()), *(Stage(numbers.fill(NestedMiddle())) for _ in range(count - 2)),
              Stage(last, head.trainable_params())]
    inputs = ({"ids": numbers.ints(rows), "scale": [numbers.floats(rows, 1)]}, True)
    return Case(tuple(stages), inputs, (numbers.ints(rows),))


def extras(count, rows, numbers):
    """Arguments of stages in the middle, cut along the batch too."""
    def scaled(cell):
        return Stage(lambda x, factor: cell(x) * factor, cell.trainable_params())

    cells = plain_ends(numbers, count)
    stages = [Stage(cells[0]), *(scaled(cell) for cell in cells[1:-1]), Stage(cells[-1])]
    return Case(tuple(stages), (numbers.ints(rows),), (numbers.ints(rows),),
                {number: (numbers.floats(rows, 1),) for number in range(1, count - 1)})


CASES: Dict[str, Callable[..., Case]] = {kind.__name__: kind for kind in (
    integers, weightless, weightless_first, tied, dropout, nested, extras)}


def build(kind: str, stages: int, microbatches: int, seed: int = 0) -> Case:
    """The same values every time, in every process."""
    return CASES[kind](stages, ROWS * microbatches, Numbers([seed, stages, list(CASES).index(kind)]))


def seeded_by_stage(case: Case, pipeline: Pipeline, microbatch: int) -> List[Stage]:
    """The stages, each setting the seed that the pipeline would set."""
    def seeded(number, stage):
        def fn(*args):
            ms.set_seed(pipeline._seed_of(number, microbatch))
            return stage.fn(*args)
        return Stage(fn, stage.weights)
    return [seeded(number, stage) for number, stage in enumerate(case.stages)]
