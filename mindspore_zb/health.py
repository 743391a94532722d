"""What this package needs, whether it is there, and how to mend it; imports MindSpore only once it is known to fit."""

import importlib
import importlib.metadata
import itertools
import sys
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Optional, Tuple

from mindspore_zb._version import __version__
from mindspore_zb.factories import describe

OLDEST_PYTHON, NEWEST_PYTHON = (3, 9), (3, 12)
OLDEST_MINDSPORE, NEWEST_MINDSPORE = (2, 9), (2, 10)

GOOD, OPTIONAL, BAD = "ok", "optional", "BAD"


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Attributes:
        what: the thing.
        state: ``"ok"``; ``"optional"``: not there, and only what ``mend`` says needs it; ``"BAD"``.
        found: what was found.
        mend: how to mend it, or what does not work without it.
    """

    what: str
    state: str
    found: str
    mend: str = ""


def examine() -> Tuple[Finding, ...]:
    """Look at everything. Where MindSpore cannot be used there is one finding, which says why.

    Example:
        >>> findings = examine()
        >>> [finding.what for finding in findings][:3]
        ['mindspore_zb', 'python', 'mindspore']
    """
    try:
        mindspore_version = importlib.metadata.version("mindspore")
    except importlib.metadata.PackageNotFoundError:
        mindspore_version = None
    obstacle = _obstacle(sys.version_info[:2], mindspore_version, _version("numpy"))
    if obstacle is not None:
        return (obstacle,)
    try:
        import mindspore as ms
    except Exception as error:  # libraries that do not load raise whatever they like
        return (Finding("mindspore", BAD, f"{mindspore_version} cannot be imported: {describe(error)}",
                        "install it anew: pip install --force-reinstall mindspore==" + str(mindspore_version)),)
    return (Finding("mindspore_zb", GOOD, __version__), Finding("python", GOOD, _spelt(sys.version_info[:3])),
            Finding("mindspore", GOOD, ms.__version__), Finding("numpy", GOOD, str(_version("numpy"))),
            Finding("device", GOOD, str(ms.get_context("device_target"))),
            _engine("PyNative engine", "pynative", "mindspore_zb.engines.pynative.native"),
            _engine("graph engine", "graph", "mindspore_zb.engines.graph.native"), *_rest(ms))


def _obstacle(python: Tuple[int, ...], mindspore: Optional[str], numpy: Optional[str]) -> Optional[Finding]:
    """Why MindSpore need not be imported; None if it may be."""
    if not OLDEST_PYTHON <= python <= NEWEST_PYTHON:
        return Finding("python", BAD, ".".join(map(str, python)), f"use Python {_spelt(OLDEST_PYTHON)} to "
                       f"{_spelt(NEWEST_PYTHON)}")
    wanted = "2.10.0" if python >= (3, 10) else "2.9.0"
    if mindspore is None:
        return Finding("mindspore", BAD, "not installed", f"pip install mindspore=={wanted} 'numpy<2'")
    if not OLDEST_MINDSPORE <= _numbers(mindspore) <= NEWEST_MINDSPORE:
        return Finding("mindspore", BAD, f"{mindspore}, not {_spelt(OLDEST_MINDSPORE)} or {_spelt(NEWEST_MINDSPORE)}",
                       f"pip install mindspore=={wanted}")
    if numpy is None or _numbers(numpy) >= (2, 0):
        return Finding("numpy", BAD, numpy or "not installed", "pip install 'numpy<2': MindSpore's extensions need it")
    return None


def _engine(what: str, mode: str, native: str) -> Finding:
    """Whether all that an engine needs is there, and whether it computes the right gradients of ``x @ w``."""
    try:
        missing = importlib.import_module(native).missing_features()
    except Exception as error:  # what the import of an engine raises says what is missing
        return Finding(what, BAD, describe(error), "install mindspore 2.9.0 or 2.10.0")
    if missing:
        return Finding(what, BAD, f"MindSpore lacks {', '.join(missing)}", "install mindspore 2.9.0 or 2.10.0")
    try:
        right = _splits_rightly(mode)
    except Exception as error:  # whatever the device or the compiler raises
        return Finding(what, BAD, f"all primitives present, but a first split failed: {describe(error)}",
                       "see whether MindSpore itself runs: python -c 'import mindspore; mindspore.run_check()'")
    if not right:
        return Finding(what, BAD, "all primitives present, but the gradients of x @ w are wrong",
                       "do not use it on this device; please report it with this output")
    return Finding(what, GOOD, "all primitives present, splits x @ w rightly")


def _splits_rightly(mode: str) -> bool:
    import numpy as np
    from mindspore import Parameter, Tensor, nn, ops

    from mindspore_zb.api import run_forward

    class Product(nn.Cell):
        """Small integers: right to the last bit on any device."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(Tensor([[1.0, 2.0], [3.0, 4.0]]), name="weight")

        def construct(self, x):
            return ops.matmul(x, self.weight)

    cell, x = Product(), Tensor([[1.0, 2.0]])
    _, grad_fn = run_forward(cell, (x,), {}, cell.weight, False, 0, mode)
    dx, dw = grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()
    return np.array_equal(dx.asnumpy(), [[3.0, 7.0]]) and np.array_equal(dw.asnumpy(), [[1.0, 1.0], [2.0, 2.0]])


def _rest(ms: Any) -> Iterator[Finding]:
    held = ms.Tensor([1.0]) + 1.0
    reported = _quietly(lambda: ms.runtime.memory_allocated())
    yield Finding("memory figures", GOOD, "reported by the device" if reported else
                  "the device reports none: bytes are counted from the saved tensors")
    del held
    for name, use in (("matplotlib", "pictures need it"), ("rich", "tables on a terminal are plain without it")):
        version = _version(name)
        yield Finding(name, GOOD, version) if version else \
            Finding(name, OPTIONAL, "not installed", f"{use}: pip install {name}")


def _quietly(read: Callable[[], int]) -> int:
    try:
        return read()
    except Exception:  # a device without such figures may raise anything
        return 0


def _version(package: str) -> Optional[str]:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> Tuple[int, ...]:
    """Major and minor.

    >>> _numbers("2.10.0rc1")
    (2, 10)
    """
    numbers: List[int] = []
    for word in version.split(".")[:2]:
        digits = "".join(itertools.takewhile(str.isdigit, word))
        numbers.append(int(digits or 0))
    return tuple(numbers)


def _spelt(version: Tuple[int, ...]) -> str:
    return ".".join(map(str, version))
