"""Run a computation unsplit, split by the PyNative engine and split by the graph engine, and compare the gradients."""

import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from mindspore_zb.api import run_forward
from mindspore_zb.errors import UnsupportedError, ZeroBubbleError
from mindspore_zb.memory import synchronize
from mindspore_zb.parity.report import BEYOND, FAILED, RANDOM, WITHIN, EngineRun, ParityReport
from mindspore_zb.parity.state import disturbed_inputs, fresh, without_jit
from mindspore_zb.parity.task import Task, prepare
from mindspore_zb.parity.unsplit import unsplit_backward
from mindspore_zb.parity.values import Distance, Key, Value, distances, judge, value_of, values_of, worst_of

REPEATS = 2
"""How often the unsplit run is repeated to see whether it is random; as often again if something differs."""

SMALLEST_PART = 2.0 ** -52
"""The last bit of a double."""

_WAYS = (("split pynative", "pynative"), ("split graph", "graph"))
_NOT_COMPILED = "cannot be compiled and split: "


@dataclass(frozen=True)
class _Results:
    """What one way computed: the values of each micro-batch, the written parameters at the end, and seconds."""

    batches: List[List[Value]]
    state: List[Value]
    seconds: List[float]
    engine: str = "mindspore"
    reason: Optional[str] = None


_Step = Callable[[tuple, Dict[str, Any]], Tuple[Any, Any, Sequence[Any]]]


def compare_engines(fn: Callable[..., Any], inputs: Sequence[Any], weights: Any = None, *,
                    kwargs: Optional[Dict[str, Any]] = None, grad_position: Any = 0, has_aux: bool = False,
                    sens: Any = "random", micro_batches: int = 3, tolerance: Optional[float] = None) -> ParityReport:
    """Compare both engines with MindSpore's own unsplit backward in PyNative, ``@jit`` switched off.

    Every way starts from the same parameters, random generator and inputs, and runs ``micro_batches`` times; outputs
    and gradients of every time are compared, and what the forward wrote into parameters. Afterwards all parameters are
    as before. A call that the graph engine cannot compile is run by the PyNative engine, with the reason in the report.

    Args:
        fn, inputs, weights, kwargs, grad_position, has_aux: as for :func:`~mindspore_zb.forward_and_gradfn`.
        sens: the gradients of the outputs, as for ``compute_input_grad``; ``"random"`` stands for normal values, which
            test more than ones do.
        micro_batches: how often each way runs.
        tolerance: the largest difference of a tensor over its largest magnitude; None: by dtype, 1e-5 for float32.

    Returns:
        The report. A difference that the unsplit run itself shows when its inputs and weights change by far less than
        the tolerance is called rounding and does not fail. If ``fn`` draws random numbers that cannot be drawn again,
        nothing is compared, and the report says so.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument cannot be used. What ``fn`` raises in the unsplit run passes
            through; what only an engine raises is in the report.

    Example:
        >>> from mindspore import nn, ops
        >>> net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 3))
        >>> report = compare_engines(net, (ops.ones((2, 4)),), net.trainable_params(), micro_batches=1)
        >>> report.passed, [run.engine for run in report.runs]
        (True, ['mindspore', 'pynative', 'graph'])
    """
    task = prepare(fn, inputs, weights, kwargs, grad_position, has_aux, sens, micro_batches, tolerance)
    try:
        return _compare(task)
    finally:
        task.state.restore()


def _compare(task: Task) -> ParityReport:
    reference = _run_unsplit(task, task.micro_batches)
    varies, repeatable = _randomness(task, reference)
    found: Dict[str, Dict[Key, Distance]] = {}
    runs = [_engine_run(task, way, mode, reference, found) for way, mode in _WAYS]
    if any(run.verdict == BEYOND for run in runs):
        sensitivity = _sensitivity(task, reference, found)
        runs = [_excuse_rounding(task, run, found, sensitivity) for run in runs]
    if not varies and any(run.verdict == BEYOND for run in runs):
        varies, repeatable = _randomness(task, reference)  # a rare draw may have been missed
    if varies:
        runs = [_mark_random(run, repeatable) for run in runs]
    return ParityReport((_timed("unsplit", reference, WITHIN), *runs), varies, tuple(_notes(varies, runs, reference)))


def _run(task: Task, step: _Step, micro_batches: int) -> _Results:
    """Run a step some times, and measure it; the state goes on from one micro-batch to the next."""
    batches, seconds = [], []
    for _ in range(micro_batches):
        inputs, kwargs = fresh(task.inputs), fresh(task.kwargs)
        synchronize()
        start = time.perf_counter()
        result, dx, dw = step(inputs, kwargs)
        synchronize()
        seconds.append(time.perf_counter() - start)
        batches.append(_named(task, result, dx, dw))
    return _Results(batches, task.state.written(), seconds)


def _named(task: Task, result: Any, dx: Any, dw: Sequence[Any]) -> List[Value]:
    values = values_of("out", "out", result[0] if task.has_aux else result)
    if task.has_aux:
        values += values_of("out", "aux", tuple(result[1:]))
    if task.grad_position is not None:
        values += values_of("dx", "dx", dx)
    return values + [value_of("dw", name, grad) for name, grad in zip(task.state.weight_names, dw)]


def _run_unsplit(task: Task, micro_batches: int, change: Optional[Callable[[Any], Any]] = None) -> _Results:
    """From the state as it is; ``change`` changes the inputs."""
    def step(inputs: tuple, kwargs: Dict[str, Any]) -> Tuple[Any, Any, Sequence[Any]]:
        if change is not None:
            inputs, kwargs = change(inputs), change(kwargs)
        return unsplit_backward(task.fn, inputs, kwargs, task.weights, task.has_aux, task.grad_position, task.sens,
                                task.starts)

    with without_jit():
        return _run(task, step, micro_batches)


def _run_split(task: Task, mode: str) -> _Results:
    """The split run; the one of the graph engine falls back to PyNative."""
    ran: Dict[str, Any] = {"engine": mode}

    def step(inputs: tuple, kwargs: Dict[str, Any]) -> Tuple[Any, Any, Sequence[Any]]:
        result, grad_fn = run_forward(task.fn, inputs, kwargs, task.weights, task.has_aux, task.grad_position, mode)
        ran["engine"] = grad_fn.engine
        if task.grad_position is None:
            return result, (), grad_fn(task.sens)
        return result, grad_fn.compute_input_grad(task.sens), grad_fn.compute_weight_grad()

    task.state.restore()
    results = _run(task, step, task.micro_batches)
    return replace(results, engine=ran["engine"])


def _engine_run(task: Task, way: str, mode: str, reference: _Results,
                found: Dict[str, Dict[Key, Distance]]) -> EngineRun:
    """Run an engine and compare it; its distances are put into ``found``."""
    reason = None
    try:
        try:
            results = _run_split(task, mode)
        except UnsupportedError as error:
            if mode != "graph" or _NOT_COMPILED not in str(error):
                raise
            reason = str(error).partition(_NOT_COMPILED)[2]
            results = _run_split(task, "pynative")
    except Exception as error:  # whatever an engine raises where the unsplit run raised nothing is what is looked for
        return EngineRun(way, mode if reason is None else "pynative", FAILED, fallback_reason=reason,
                         error=_one_line(error))
    found[way] = worst_of([distances(*pair) for pair in zip(results.batches, reference.batches)])
    found[way].update(distances(results.state, reference.state))
    differences = judge(found[way], task.tolerance)
    return _timed(way, replace(results, reason=reason), _verdict(differences), differences)


def _timed(way: str, results: _Results, verdict: str, differences: tuple = ()) -> EngineRun:
    later = results.seconds[1:]
    return EngineRun(way, results.engine, verdict, differences, results.reason, None, results.seconds[0],
                     statistics.median(later) if later else None)


def _verdict(differences: Sequence[Any]) -> str:
    return BEYOND if any(difference.verdict == BEYOND for difference in differences) else WITHIN


def _randomness(task: Task, reference: _Results) -> Tuple[bool, bool]:
    """``(varies, repeatable)``: whether the unsplit run differs from one time to the next, and whether it is the same
    again if the random generator starts alike."""
    def differs(random: bool) -> bool:
        task.state.restore(random)
        found = distances(_run_unsplit(task, 1).batches[0], reference.batches[0])
        return _verdict(judge(found, task.tolerance)) == BEYOND

    if not any(differs(random=False) for _ in range(REPEATS)):
        return False, True
    return True, not any(differs(random=True) for _ in range(REPEATS))


def _sensitivity(task: Task, reference: _Results, found: Dict[str, Dict[Key, Distance]]) -> Dict[Key, Distance]:
    """By how much the unsplit run changes if all that it is given changes a little: by a twentieth of what is allowed.

    A gradient that is zero but for rounding, such as that of a bias right before a BatchNorm, changes as a whole; one
    that says something changes by less than what is allowed. The last bit alone would not do for nets of mixed
    precision, which round it away.
    """
    judged = [difference for distances_of in found.values() for difference in judge(distances_of, task.tolerance)]
    part = max(SMALLEST_PART, max(difference.allowed for difference in judged) / 20)
    changes = []
    for seed in range(REPEATS):
        task.state.restore()
        task.state.disturb(seed, part)
        changed = _run_unsplit(task, 1, partial(disturbed_inputs, seed=seed, part=part))
        changes.append(distances(changed.batches[0], reference.batches[0]))
    return worst_of(changes)


def _excuse_rounding(task: Task, run: EngineRun, found: Dict[str, Any], sensitivity: Dict[Key, Distance]) -> EngineRun:
    if run.verdict != BEYOND:
        return run
    differences = judge(found[run.way], task.tolerance, sensitivity)
    return replace(run, differences=differences, verdict=_verdict(differences))


def _mark_random(run: EngineRun, repeatable: bool) -> EngineRun:
    """A run that drew other numbers than the unsplit one cannot be compared: neither passed nor failed."""
    drew_others = any(one.verdict == BEYOND for one in run.differences if one.kind == "out")
    if run.verdict == FAILED or (repeatable and not drew_others):
        return run
    return replace(run, verdict=RANDOM, differences=())


def _notes(varies: bool, runs: Sequence[EngineRun], reference: _Results) -> Iterator[str]:
    if any(run.verdict == RANDOM for run in runs):
        yield ("fn draws random numbers, and what drew other ones than the unsplit run cannot be compared: compare it "
               "without them (net.set_train(False)), or with masks given as inputs")
    elif varies:
        yield "fn draws random numbers; every way drew the same ones"
    arrays = [value.array for batch in reference.batches for value in batch if value.array is not None]
    if not all(np.isfinite(array).all() for array in arrays):
        yield "some values of the unsplit run are not finite: those say nothing about the others"
    grads = [value.array for batch in reference.batches for value in batch
             if value.kind != "out" and value.array is not None]
    if not any(array.any() for array in grads):
        yield "all gradients of the unsplit run are zero, so this compares nothing"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if not isinstance(error, ZeroBubbleError) else text
