"""A random program as data: run it, print it, and tell what occurs in it."""

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

import numpy as np
from mindspore import Parameter, Tensor

from tests.networks.operations import OPERATIONS

MAKES_PIECES = ("split", "unbind", "chunk", "topk")


@dataclass(frozen=True)
class Step:
    """``outs = op(*args, **attributes)``; values are numbered."""

    op: str
    args: Tuple[int, ...]
    outs: Tuple[int, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """A function of inputs and weights.

    Attributes:
        seed: where it came from.
        shapes: shape of every value.
        inputs, weights: the numbers of these values.
        frozen: weights that ask for no gradient.
        integers: values without a gradient because they are integers.
        steps: what to do.
        outputs: values that are returned, repetitions allowed.
        nested: return the outputs as a dict of a list instead of a tuple.
    """

    seed: int
    shapes: Mapping[int, Tuple[int, ...]]
    inputs: Tuple[int, ...]
    weights: Tuple[int, ...]
    frozen: Tuple[int, ...]
    integers: Tuple[int, ...]
    steps: Tuple[Step, ...]
    outputs: Tuple[int, ...]
    nested: bool

    def make_weights(self) -> Dict[int, Parameter]:
        """Fresh Parameters, the same values each time."""
        rng = np.random.default_rng(self.seed)
        return {number: Parameter(Tensor(_weight_value(rng, self.shapes[number])), name=f"weight{number}",
                                  requires_grad=number not in self.frozen) for number in self.weights}

    def make_inputs(self, batch: int = 0) -> Tuple[Tensor, ...]:
        """The inputs of a micro-batch."""
        rng = np.random.default_rng((self.seed, batch))
        return tuple(Tensor(rng.standard_normal(self.shapes[number]).astype(np.float32)) for number in self.inputs)

    def run(self, weights: Mapping[int, Any], inputs: Sequence[Any]) -> Any:
        """Interpret the steps."""
        values = dict(zip(self.inputs, inputs))
        values.update(weights)
        for step in self.steps:
            found = OPERATIONS[step.op](*(values[number] for number in step.args), **step.attributes)
            values.update(zip(step.outs, found if isinstance(found, (tuple, list)) else (found,)))
        out = tuple(values[number] for number in self.outputs)
        if self.nested:
            return {"first": out[0], "rest": list(out[1:])}
        return out[0] if len(out) == 1 else out

    def __str__(self) -> str:
        lines = [f"program of seed {self.seed}"]
        lines += [f"  v{number} = input {place} {self.shapes[number]}" for place, number in enumerate(self.inputs)]
        lines += [f"  v{number} = {'frozen ' if number in self.frozen else ''}weight {place} {self.shapes[number]}"
                  for place, number in enumerate(self.weights)]
        for step in self.steps:
            named = ", ".join([*(f"v{number}" for number in step.args),
                               *(f"{key}={_short(value)}" for key, value in step.attributes.items())])
            lines.append(f"  {', '.join(f'v{number}' for number in step.outs)} = {step.op}({named})    "
                         f"# {', '.join(str(self.shapes[number]) for number in step.outs)}")
        lines.append(f"  return {', '.join(f'v{number}' for number in self.outputs)}"
                     f"{' (nested)' if self.nested else ''}")
        return "\n".join(lines)


def _weight_value(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    """Matrices that keep magnitudes, and factors around one."""
    value = rng.standard_normal(shape)
    return (value / np.sqrt(shape[0]) if len(shape) == 2 else 1 + 0.3 * value).astype(np.float32)


def _short(value: Any) -> str:
    return str(value.asnumpy().tolist()) if isinstance(value, Tensor) else str(value)


def features(program: Program) -> Set[str]:
    """What occurs in the live part of a program, by name; operations by their own names."""
    uses = _live_uses(program)
    live = set(uses) | set(program.outputs)
    by_weights = _reached(program, program.weights)
    by_inputs = _reached(program, program.inputs)
    live_steps = [step for step in program.steps if live & set(step.outs)]
    floats = [number for number in program.outputs if number not in program.integers]
    found = {step.op for step in live_steps}
    found |= {name for name, holds in {
        "unused weight": set(program.weights) - live,
        "unused input": set(program.inputs) - live,
        "unused piece": any(set(step.outs) - live for step in live_steps if step.op in MAKES_PIECES),
        "pieces on different paths": any(len(set(step.outs) & live) > 1 for step in live_steps
                                         if step.op in MAKES_PIECES),
        "dead step": len(live_steps) < len(program.steps),
        "frozen weight": set(program.frozen) & live,
        "shared weight": any(uses.get(weight, 0) > 1 for weight in program.weights),
        "weight-only branch": any(set(step.outs) & (by_weights - by_inputs) for step in live_steps),
        "weight-only output": any(number in by_weights - by_inputs for number in floats),
        "one value twice": any(len(set(step.args)) < len(step.args) for step in live_steps),
        "several outputs": len(program.outputs) > 1,
        "repeated output": len(set(floats)) < len(floats),
        "integer output": len(floats) < len(program.outputs),
        "output inside another's graph": any(uses.get(number) for number in floats),
        "input returned": set(program.inputs) & set(floats),
        "weight returned": set(program.weights) & set(floats),
        "nested outputs": program.nested,
        "several inputs": len(program.inputs) > 1,
        "input not reached": not any(number in by_inputs for number in floats),
    }.items() if holds}
    return found


def _live_uses(program: Program) -> Dict[int, int]:
    """How often each value is an argument of a step that an output depends on."""
    wanted = set(program.outputs)
    uses: Dict[int, int] = {}
    for step in reversed(program.steps):
        if wanted & set(step.outs):
            for number in step.args:
                uses[number] = uses.get(number, 0) + 1
                wanted.add(number)
    return uses


def _reached(program: Program, start: Sequence[int]) -> Set[int]:
    """The values through which a gradient could flow to ``start``."""
    reached = set(start)
    for step in program.steps:
        if step.op != "stop_gradient" and reached & set(step.args):
            reached |= set(step.outs) - set(program.integers)
    return reached


def unused(program: Program) -> List[int]:
    """Inputs and weights that no output depends on."""
    live = set(_live_uses(program)) | set(program.outputs)
    return [number for number in (*program.inputs, *program.weights) if number not in live]
