"""What code reads, and how its places are named: for compiled code and custom backwards, which no hook sees into."""

from typing import Any, List

from mindspore_zb.engines.graph.reached import reach


def parameters_of(owner: Any) -> List[Any]:
    """Every Parameter that a Cell, function or bound method may read, each once.

    >>> from mindspore import nn
    >>> [parameter.name for parameter in parameters_of(nn.Dense(2, 3))]
    ['weight', 'bias']
    """
    found = reach(owner)
    parameters = {id(parameter): parameter for _, parameter in found.parameters.values()}
    for _, cell in found.cells.values():
        parameters.update((id(parameter), parameter) for parameter in cell.get_parameters())
    return list(parameters.values())


def compiled_origin(scope: str) -> str:
    """The Cell and the operation that the scope of a node of compiled code names.

    >>> compiled_origin("Gradients/Default/fn-Net/a-Stage/up-Dense/Grad_MatMul/MatMul-op0")
    'Net.a.up (Dense), MatMul (compiled)'
    >>> compiled_origin("Default/Add-op3")
    'Add (compiled)'
    """
    parts = [part for part in scope.split("/") if part not in ("Gradients", "Default", "")]
    cells = [part.split("-", 1) for part in parts[:-1] if "-" in part and not part.startswith("Grad_")]
    grads = [part[len("Grad_"):] for part in parts if part.startswith("Grad_")]
    operation = grads[-1] if grads else parts[-1].split("-op")[0] if parts else "an operation"
    if not cells:
        return f"{operation} (compiled)"
    path = ".".join([cells[0][1], *(name for name, _ in cells[1:])])
    kind = f" ({cells[-1][1]})" if len(cells) > 1 else ""
    return f"{path}{kind}, {operation} (compiled)"
