"""Random operations draw the same numbers when a block is computed again.

Setting the state of MindSpore's generator back is not enough: on CPU most random operations have states of their own,
which nothing can set back, so their results are kept. Of a dropout that is the mask; its output follows from it. What
``@jit`` functions draw cannot be seen, so their results are kept too.
"""

import contextlib
import random
import threading
from typing import Any, Callable, Iterator, Optional, Protocol, Tuple

import mindspore as ms
import numpy as np
from mindspore.ops import operations

from mindspore_zb.engines.pynative.observe import catching_compiled
from mindspore_zb.engines.pynative.stand_ins import StandIns

_OWN_STATE = ("Bernoulli", "Dropout", "Dropout2D", "Dropout3D", "DropoutGenMask", "Gamma", "LogNormalReverse",
              "LogUniformCandidateSampler", "Multinomial", "MultinomialWithReplacement", "NonDeterministicInts",
              "ParameterizedTruncatedNormal", "Poisson", "RandomCategorical", "RandomChoiceWithMask", "RandomGamma",
              "RandomPoisson", "RandomShuffle", "RandpermV2", "StandardLaplace", "StandardNormal", "TruncatedNormal",
              "UniformCandidateSampler", "UniformInt", "UniformReal")
"""Operations that take no generator; the others follow the states of :func:`generator_states`."""


class Tape(Protocol):
    """What decides over the random operations of a thread while a block runs."""

    def random(self, operation: Any, run: Callable[[], Any], args: tuple) -> Any:
        """The result of a random operation, or of a ``@jit`` function (None): ``run()`` or an earlier result."""


@contextlib.contextmanager
def using_tape(tape: Optional[Tape]) -> Iterator[Optional[Tape]]:
    """Random operations inside go to ``tape``; to none with None. Yields the tape that held before."""
    outer = current_tape()
    _RUNNING.tape = tape
    _STAND_INS.enter()
    try:
        with catching_compiled(None if tape is None else lambda run: tape.random(None, run, ())):
            yield outer
    finally:
        _STAND_INS.leave()
        _RUNNING.tape = outer


def current_tape() -> Optional[Tape]:
    """The tape of this thread."""
    return getattr(_RUNNING, "tape", None)


def generator_states() -> Tuple[Any, ...]:
    """The states of the generators of MindSpore, numpy and Python."""
    return ms.get_rng_state(), np.random.get_state(), random.getstate()


@contextlib.contextmanager
def generators_at(states: Tuple[Any, ...]) -> Iterator[None]:
    """The generators have these states inside, and go on afterwards as if nothing had been drawn."""
    before = generator_states()
    _set_states(states)
    try:
        yield
    finally:
        _set_states(before)


def _set_states(states: Tuple[Any, ...]) -> None:
    ms.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


def _taped(original: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self, *args, **kwargs):
        tape = current_tape()
        if tape is None:
            return original(self, *args, **kwargs)
        return tape.random(self, lambda: original(self, *args, **kwargs), args)

    return __call__


_RUNNING = threading.local()
_STAND_INS = StandIns(lambda: ((getattr(operations, name), "__call__", _taped) for name in _OWN_STATE
                               if hasattr(operations, name)))
