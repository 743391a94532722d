"""What is asked for of a random program: whose gradients, with which sens, and dw in which order and portions."""

from dataclasses import dataclass
from typing import Any, List, Optional, Set, Tuple

import numpy as np

from tests.networks.compare import map_leaves, random_sens
from tests.networks.program import Program

WAYS_OF_DW = ("at once", "at once, twice", "groups in order", "groups reversed", "groups shuffled", "some groups first")


@dataclass(frozen=True)
class Request:
    """One way to ask for the gradients of a program.

    Attributes:
        grad_position: as for ``forward_and_gradfn``.
        weights: numbers of the weights asked for, in the order asked for.
        single: ask for one bare Parameter.
        sens_pattern: None for no sens at all; else for each output whether it gets a gradient.
        way_of_dw: one of :data:`WAYS_OF_DW`.
        free_early: the setting of that name.
        same_input: give the first input's tensor for every input of its shape.
        seed: for shuffling.
    """

    grad_position: Any
    weights: Tuple[int, ...]
    single: bool
    sens_pattern: Optional[Tuple[bool, ...]]
    way_of_dw: str
    free_early: bool
    same_input: bool
    seed: int

    def sens(self, out: Any) -> Any:
        """The gradients of the outputs."""
        if self.sens_pattern is None:
            return None
        given = iter(self.sens_pattern)
        return map_leaves(lambda entry: entry if next(given) else None, random_sens(out, self.seed))

    def inputs(self, program: Program) -> Tuple[Any, ...]:
        """The inputs, some of them one and the same tensor if asked for."""
        inputs = program.make_inputs()
        if not self.same_input:
            return inputs
        return tuple(inputs[0] if value.shape == inputs[0].shape else value for value in inputs)

    def features(self) -> Set[str]:
        """What is particular about it, by name."""
        position = "tuple" if isinstance(self.grad_position, tuple) else \
            {None: "None", -1: "-1"}.get(self.grad_position, "an int")
        found = {f"grad_position is {position}", f"dw {self.way_of_dw}"}
        found |= {name for name, holds in {
            "sens is None": self.sens_pattern is None,
            "sens with None": self.sens_pattern and not all(self.sens_pattern) and any(self.sens_pattern),
            "sens of None only": self.sens_pattern and not any(self.sens_pattern),
            "one bare weight": self.single,
            "weights out of order": list(self.weights) != sorted(self.weights),
            "no weights": not self.weights,
            "one tensor for two inputs": self.same_input,
            "kept until dw": not self.free_early,
        }.items() if holds}
        return found


def make_request(program: Program) -> Request:
    """The request of a program's seed, always the same one."""
    rng = np.random.default_rng((program.seed, 77))
    weights = [int(number) for number in rng.permutation(program.weights)] if program.weights else []
    if len(weights) > 1 and rng.random() < 0.2:
        weights.pop()
    if rng.random() < 0.06:
        weights = []
    single = bool(weights) and rng.random() < 0.08
    position = _grad_position(rng, len(program.inputs), bool(weights))
    shapes = [program.shapes[number] for number in program.inputs]
    return Request(position, tuple(weights[:1] if single else weights), single,
                   _sens_pattern(rng, len(program.outputs)), str(rng.choice(WAYS_OF_DW)), bool(rng.random() < 0.75),
                   shapes.count(shapes[0]) > 1 and bool(rng.random() < 0.5), program.seed)


def _grad_position(rng: np.random.Generator, count: int, may_be_none: bool) -> Any:
    kind = rng.choice(("int", "tuple", "all", "none"), p=(0.3, 0.35, 0.29, 0.06))
    if kind == "none" and may_be_none:
        return None
    if kind == "int":
        return int(rng.integers(count))
    if kind == "tuple":
        return tuple(int(place) for place in rng.permutation(count)[:rng.integers(1, count + 1)])
    return -1


def _sens_pattern(rng: np.random.Generator, count: int) -> Optional[Tuple[bool, ...]]:
    if rng.random() < 0.25:
        return None
    if rng.random() < 0.05:
        return (False,) * count
    pattern: List[bool] = [True] * count
    if count > 1 and rng.random() < 0.5:
        pattern = [bool(rng.random() < 0.6) for _ in range(count)]
        pattern[rng.integers(count)] = True
    return tuple(pattern)
