"""A random program as source code, for MindSpore's compiler, which cannot interpret one."""

import importlib.util
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping

from mindspore import Tensor

from tests.networks.operations import OPERATIONS
from tests.networks.program import Program


def function_of(program: Program, weights: Mapping[int, Any], directory: Path) -> Callable[..., Any]:
    """``fn(*inputs)``, straight-line code in a file in this directory, with the weights and operations as globals."""
    names: Dict[str, Any] = {f"v{number}": weight for number, weight in weights.items()}
    lines: List[str] = []
    for place, step in enumerate(program.steps):
        names[step.op] = OPERATIONS[step.op]
        arguments = [f"v{number}" for number in step.args]
        for key, value in step.attributes.items():
            if isinstance(value, Tensor):
                names[f"constant{place}"], value = value, _Name(f"constant{place}")
            arguments.append(f"{key}={value!r}")
        call = f"{step.op}({', '.join(arguments)})"
        lines.append(f"    {', '.join(f'v{number}' for number in step.outs)}"
                     f"{',' if len(step.outs) == 1 and step.op in MANY else ''} = {call}")
    outs = [f"v{number}" for number in program.outputs]
    result = f"{{'first': {outs[0]}, 'rest': [{', '.join(outs[1:])}]}}" if program.nested else ", ".join(outs)
    source = "\n".join([f"def fn({', '.join(f'v{number}' for number in program.inputs)}):", *lines,
                        f"    return {result}", ""])
    path = directory / f"program{program.seed}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"random_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where MindSpore's parser looks for it
    spec.loader.exec_module(module)
    vars(module).update(names)
    return module.fn


MANY = ("split", "unbind", "chunk", "topk")
"""Operations that return a tuple, of one entry too."""


class _Name:
    """Prints as a name."""

    def __init__(self, name: str):
        self._name = name

    def __repr__(self) -> str:
        return self._name
