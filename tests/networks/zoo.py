"""A registry of named networks. Each factory builds the same network, weights and inputs every time it is called.

``build("lstm")`` gives a :class:`NetCase`; ``NAMES`` lists all names. Cells have simple constructs whose first argument
is ``self``, so that graph mode can compile them; where it cannot, ``compiles`` is False.
"""

import importlib
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
from mindspore import Tensor, nn

from tests.networks.compare import random_sens

_FACTORIES: Dict[str, Callable[[], "NetCase"]] = {}


@dataclass(frozen=True)
class NetCase:
    """A network and what to ask of it.

    Attributes:
        fn: the Cell or function.
        make_inputs: the inputs of a micro-batch, by its number.
        weights: whose gradients are asked for.
        name: the name of its factory.
        kwargs: keyword arguments.
        has_aux, grad_position: as for ``forward_and_gradfn``.
        state: parameters that the forward itself changes (moving statistics).
        make_sens: fitting gradients for an output, by the number of the micro-batch.
        tolerance: for gradients, where that of the dtype does not do; None else.
        shares: whether a value with a history is used more than once, so that the order of additions may matter.
        compiles: whether ``fn`` compiles in graph mode.
    """

    fn: Any
    make_inputs: Callable[[int], tuple]
    weights: Tuple[Any, ...]
    name: str = ""
    kwargs: Dict[str, Any] = field(default_factory=dict)
    has_aux: bool = False
    grad_position: Any = 0
    state: Tuple[Any, ...] = ()
    make_sens: Callable[[Any, int], Any] = random_sens
    tolerance: Optional[float] = None
    shares: bool = False
    compiles: bool = True

    @property
    def inputs(self) -> tuple:
        """The inputs of the first micro-batch."""
        return self.make_inputs(0)


def register(factory: Callable[[], NetCase]) -> Callable[[], NetCase]:
    """Register a factory under its function's name."""
    _FACTORIES[factory.__name__] = factory
    return factory


def build(name: str) -> NetCase:
    """A fresh instance."""
    return replace(_FACTORIES[name](), name=name)


def of_cell(cell: nn.Cell, *shapes: Tuple[int, ...], **changes: Any) -> NetCase:
    """The case of a Cell: its trainable weights, initialised anew, and normal inputs of these shapes."""
    initialise(cell)
    return NetCase(cell, normal_inputs(*shapes), tuple(cell.trainable_params()), **changes)


def initialise(cell: nn.Cell, seed: int = 5) -> None:
    """Reproducible values for all trainable weights: matrices that keep magnitudes, vectors near their start."""
    rng = np.random.default_rng(seed)
    for place, parameter in enumerate(cell.trainable_params()):
        value = rng.standard_normal(parameter.shape)
        if len(parameter.shape) > 1:
            value /= np.sqrt(np.prod(parameter.shape[1:]))
        else:
            is_bias = any(word in parameter.name for word in ("bias", "b_ih", "b_hh"))  # MindSpore draws some at random
            value = 0.1 * value + (0 if is_bias else parameter.asnumpy())
        parameter.set_data(Tensor(value.astype(np.float32)).astype(parameter.dtype))
        parameter.name = f"{place}.{parameter.name}"


def normal(shape: Tuple[int, ...], seed: Any = 0, dtype: Any = np.float32) -> Tensor:
    """Normal values."""
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def integers(shape: Tuple[int, ...], below: int, seed: Any = 0) -> Tensor:
    """Integers from zero on."""
    return Tensor(np.random.default_rng(seed).integers(0, below, shape).astype(np.int32))


def normal_inputs(*shapes: Tuple[int, ...]) -> Callable[[int], tuple]:
    """Normal values of these shapes, other ones for each micro-batch."""
    return lambda batch: tuple(normal(shape, (batch, place)) for place, shape in enumerate(shapes))


for _module in ("dense", "vision", "sequence", "weights", "outputs", "precision"):
    importlib.import_module(f"tests.networks.zoo_{_module}")

NAMES: List[str] = sorted(_FACTORIES)
