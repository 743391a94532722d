"""Hold the split backward of both engines against MindSpore's own unsplit one: :func:`compare_engines`."""

from mindspore_zb.parity.compare import compare_engines
from mindspore_zb.parity.report import Difference, EngineRun, ParityReport

__all__ = ["Difference", "EngineRun", "ParityReport", "compare_engines"]
