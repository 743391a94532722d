"""Random programs: ``generate(seed)``; ``python -m tests.networks.generator SEED`` prints one.

A program grows step by step. Each step is a *recipe* (see ``recipes.py``) that takes values that are there, most
likely recent ones, and adds operations. Magnitudes are tracked and kept small, so that relative differences of
gradients mean something.
"""

import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from tests.networks.program import Program, Step, features

ROWS = (2, 3)
WIDTHS = (4, 6)
"""Few lengths: MindSpore compiles many an operation anew for every shape, which takes longer than all else here."""

LARGEST = 4.0
"""Values that may be larger go through ``tanh`` before they are used."""


class Builder:
    """A program in the making.

    Attributes:
        rng: the source of all choices.
        activations: float values of two or three axes that recipes may use.
        matrices: weights of two axes, and what was computed from weights alone.
        vectors: weights of one axis.
        integers: integer values.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.shapes: Dict[int, Tuple[int, ...]] = {}
        self.magnitude: Dict[int, float] = {}
        self.steps: List[Step] = []
        self.weights: List[int] = []
        self.activations: List[int] = []
        self.matrices: List[int] = []
        self.vectors: List[int] = []
        self.integers: List[int] = []
        self.inputs = self._make_inputs()

    def _make_inputs(self) -> List[int]:
        rows, length = ROWS
        inputs = []
        for place in range(self.rng.integers(1, 4)):
            prefix = (rows,) if self.chance(0.5) else (rows, length)
            inputs.append(self.new_value((*prefix, self.width()), 2.0))
            if place == 0 or self.chance(0.8):  # else the input stays unused
                self.activations.append(inputs[-1])
        return inputs

    def chance(self, probability: float) -> bool:
        """True so often."""
        return bool(self.rng.random() < probability)

    def width(self) -> int:
        """A small length."""
        return int(self.rng.choice(WIDTHS))

    def new_value(self, shape: Sequence[int], magnitude: float) -> int:
        """A number for a value of this shape."""
        number = len(self.shapes)
        self.shapes[number] = tuple(int(length) for length in shape)
        self.magnitude[number] = magnitude
        return number

    def new_weight(self, shape: Sequence[int]) -> int:
        """A weight; it may be used again later."""
        number = self.new_value(shape, 1.5)
        self.weights.append(number)
        if len(shape) < 3:
            (self.matrices if len(shape) == 2 else self.vectors).append(number)
        return number

    def matrix(self, rows: int, columns: Optional[int] = None) -> int:
        """A matrix made of weights alone, often one that was used before."""
        fitting = [number for number in self.matrices if self.shapes[number][0] == rows
                   and columns in (None, self.shapes[number][1])]
        if fitting and self.chance(0.45):
            return int(self.rng.choice(fitting))
        return self.new_weight((rows, columns or self.width()))

    def vector(self, length: int) -> int:
        """A vector weight, sometimes one that was used before."""
        fitting = [number for number in self.vectors if self.shapes[number] == (length,)]
        if fitting and self.chance(0.35):
            return int(self.rng.choice(fitting))
        return self.new_weight((length,))

    def pick(self, axes: Optional[int] = None) -> Optional[int]:
        """A bounded activation with so many axes, most likely a recent one; None if there is none."""
        fitting = [number for number in self.activations if axes in (None, len(self.shapes[number]))]
        if not fitting:
            return None
        return self.bounded(fitting[-1 - min(int(self.rng.geometric(0.4)) - 1, len(fitting) - 1)])

    def partner(self, number: int) -> int:
        """An activation of the same shape: another one, or the same once more."""
        fitting = [other for other in self.activations if self.shapes[other] == self.shapes[number]]
        others = [other for other in fitting if other != number]
        if others and self.chance(0.9):
            return self.bounded(int(self.rng.choice(others)))
        return number if self.chance(0.5) else self.step("sin", number, magnitude=1.0)

    def bounded(self, number: int) -> int:
        """The value, or its ``tanh`` if it may be large."""
        return number if self.magnitude[number] <= LARGEST else self.step("tanh", number, magnitude=1.0)

    def step(self, op: str, *args: int, shape: Optional[Sequence[int]] = None, magnitude: Optional[float] = None,
             keep: bool = True, **attributes: Any) -> int:
        """Add an operation with one result, of the shape of its first argument unless told otherwise."""
        return self.steps_out(op, args, [self.shapes[args[0]] if shape is None else shape], magnitude, keep,
                              attributes)[0]

    def steps_out(self, op: str, args: Sequence[int], shapes: Sequence[Sequence[int]],
                  magnitude: Optional[float], keep: bool, attributes: Dict[str, Any]) -> List[int]:
        """Add an operation; unless ``keep``, its results are no activations that later steps may pick."""
        largest = max(self.magnitude[number] for number in args) if magnitude is None else magnitude
        outs = [self.new_value(shape, largest) for shape in shapes]
        self.steps.append(Step(op, tuple(args), tuple(outs), attributes))
        if keep:
            self.activations += [number for number in outs if len(self.shapes[number]) in (2, 3)]
        return outs

    def grow(self) -> None:
        """Add one recipe."""
        from tests.networks.recipes import RECIPES  # they build on this class
        recipes, weights = zip(*RECIPES)
        recipes[self.rng.choice(len(recipes), p=np.array(weights) / sum(weights))](self)

    def finish(self) -> Program:
        """Choose the outputs."""
        if self.chance(0.2):
            self.new_weight((self.width(), self.width()))  # never used
        outputs = self._outputs()
        frozen = tuple(weight for weight in self.weights if self.chance(0.06))
        return Program(self.seed, dict(self.shapes), tuple(self.inputs), tuple(self.weights), frozen,
                       tuple(self.integers), tuple(self.steps), outputs, nested=self.chance(0.15))

    def _outputs(self) -> Tuple[int, ...]:
        """The newest value and, now and then, others of every kind."""
        used = {number for step in self.steps for number in step.args}
        computed = [number for step in self.steps for number in step.outs if number not in self.integers]
        loose = [number for number in computed if number not in used]
        if self.chance(0.7):
            computed.append(self._total(loose[-6:]))
        if self.chance(0.04):
            return (self.step("stop_gradient", computed[-1], keep=False),)
        outputs = [computed[-1]]
        for _ in range(self.rng.choice((0, 1, 2, 3), p=(0.35, 0.3, 0.2, 0.15))):
            pools = [loose, computed, outputs, self.integers, self.inputs, self.weights]
            pool = pools[self.rng.choice(len(pools), p=(0.4, 0.25, 0.1, 0.15, 0.06, 0.04))]
            if pool:
                outputs.append(int(self.rng.choice(pool)))
        order = self.rng.permutation(len(outputs))
        return tuple(outputs[place] for place in order)


    def _total(self, values: Sequence[int]) -> int:
        """The sum of the means of some values: a loss that depends on all of them."""
        means = [self.step("mean_all", self.bounded(number), shape=(), keep=False) for number in values]
        total = means[0]
        for mean in means[1:]:
            total = self.step("add", total, mean, shape=(), magnitude=self.magnitude[total] + 1, keep=False)
        return total


def generate(seed: int) -> Program:
    """The program of a seed, always the same one."""
    builder = Builder(seed)
    for _ in range(builder.rng.integers(4, 13)):
        builder.grow()
    while not builder.steps:
        builder.grow()
    return builder.finish()


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(generate(int(argument)))
        print("  has", ", ".join(sorted(features(generate(int(argument))))))
