"""``memory_timeline``: the memory of one training step, from the forward to the optimizer."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mindspore_zb.api import run_forward
from mindspore_zb.arguments import check_weights
from mindspore_zb.engines.pynative.node_kinds import JIT_GRAPH
from mindspore_zb.errors import ArgumentTypeError
from mindspore_zb.grad_function import GradFunction
from mindspore_zb.memory.device import DeviceMeter, device_meter
from mindspore_zb.memory.layers import Layers
from mindspore_zb.memory.log import SavedTensorLog
from mindspore_zb.memory.report import LayerWeights, MemoryStep, MemoryTimeline
from mindspore_zb.structure import flatten
from mindspore_zb.tensors import is_tensor


def memory_timeline(fn: Callable[..., Any], inputs: Sequence[Any], weights: Any = None, *,
                    kwargs: Optional[Dict[str, Any]] = None, grad_position: Any = 0, has_aux: bool = False,
                    sens: Any = None, mode: str = "auto",
                    optimizer: Optional[Callable[[tuple], Any]] = None) -> MemoryTimeline:
    """Run one training step, and tell what it holds, from when to when, and for whom: forward, dx, each group of dw,
    optimizer.

    What counts: the storages that the forward saved for the backward, each once and whole, to the byte and at every
    moment; the gradients that wait for dw, and the values between compiled pieces, at the end of every step; the
    gradients of the weights from their dw to the optimizer. What does not: weights and whatever else lives anyway, the
    output, ``sens`` and dx, and what an operation needs while it runs; where the device's allocator reports its bytes,
    these have it all.

    Under the watch MindSpore issues operations one by one, and compiled blocks inside of an eager net are single nodes,
    whose saved values are not seen, or run operation by operation; the result has a note then. A function that is
    compiled as a whole tells no layers. What ``recompute(..., use_reentrant=False)`` computes again is not seen.

    Args:
        fn, inputs, weights, kwargs, grad_position, has_aux: as for :func:`~mindspore_zb.forward_and_gradfn`.
        sens: as for ``compute_input_grad``.
        mode: ``"auto"``, ``"pynative"`` or ``"graph"``.
        optimizer: called with the tuple of all gradients, in the order of the weights; it may change the weights. None:
            there is no such step.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument cannot be used; what ``fn`` and the optimizer raise passes
            through. Nothing is left behind.

    Example:
        >>> from mindspore import nn, ops
        >>> net = nn.SequentialCell(nn.Dense(4, 8, has_bias=False), nn.Tanh(), nn.Dense(8, 3, has_bias=False))
        >>> timeline = memory_timeline(net, (ops.ones((2, 4)),), net.trainable_params())
        >>> [(step.name, step.saved_bytes, step.held_bytes, step.grad_bytes) for step in timeline.steps]
        [('forward', 96, 0, 0), ('dx', 96, 88, 0), ('dw 0', 32, 64, 96), ('dw 1', 0, 0, 224)]
        >>> [(storage.layer, storage.saved_by, storage.nbytes) for storage in timeline.storages]
        [('0', 'MatMul', 32), ('1', 'MatMul+Tanh', 64)]
    """
    _check(fn, inputs, kwargs, optimizer)
    parameters = check_weights(weights).parameters
    layers = Layers(fn)
    log = SavedTensorLog(layers, parameters, [*_named(tuple(inputs), "inputs"), *_named(kwargs or {}, "kwargs")])
    steps = _Steps(log, device_meter())
    with log.watch():
        with steps.of("forward"):
            _, grad_fn = run_forward(fn, tuple(inputs), dict(kwargs or {}), parameters, has_aux, grad_position, mode)
            steps.grad_fn = grad_fn
        notes = _notes(grad_fn, layers.blocks if mode == "auto" else 0, steps.device)
        grad_fn.watch_nodes(log.tell_operation)
        _backward(steps, parameters, sens, grad_position is not None)
        if optimizer is not None:
            with steps.of("optimizer"):
                optimizer(tuple(steps.grads))
                steps.grads = []
    return MemoryTimeline(grad_fn.engine, grad_fn.fallback_reason, tuple(steps.found), log.storages(),
                          _layer_weights(layers, parameters), sum(parameter.nbytes for parameter in parameters), notes)


def _check(fn: Any, inputs: Any, kwargs: Any, optimizer: Any) -> None:
    if not isinstance(inputs, (tuple, list)):
        raise ArgumentTypeError(f"inputs must be a tuple of the arguments of fn, not a {type(inputs).__name__}")
    if optimizer is not None and not callable(optimizer):
        raise ArgumentTypeError(f"optimizer must be callable, not a {type(optimizer).__name__}")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise ArgumentTypeError(f"kwargs must be a dict, not a {type(kwargs).__name__}")
    if not callable(fn):
        raise ArgumentTypeError(f"fn must be callable, not a {type(fn).__name__}")


def _backward(steps: "_Steps", parameters: Sequence[Any], sens: Any, splits: bool) -> None:
    grad_fn = steps.grad_fn
    steps.grads = [None] * len(parameters)
    if not splits:
        with steps.of("dw", [parameter.name for parameter in parameters]):
            steps.grads = list(flatten(grad_fn(sens))[0])
        return
    groups = grad_fn.weight_groups
    with steps.of("dx"):
        grad_fn.compute_input_grad(sens)
    for group in groups:
        with steps.of(f"dw {group.index}", [weight.name for weight in group.weights]):
            for place, grad in zip(group.positions, group.compute()):
                steps.grads[place] = grad


class _Steps:
    """Measures at the end of each step.

    Attributes:
        found: the steps so far.
        grad_fn: what may hold more; None at first.
        grads: the gradients of the weights that are there.
        device: a meter, where there is one.
    """

    def __init__(self, log: SavedTensorLog, device: Optional[DeviceMeter]):
        self._log = log
        self.device = device
        self.found: List[MemoryStep] = []
        self.grad_fn: Optional[GradFunction] = None
        self.grads: List[Any] = []

    def of(self, name: str, weights: Sequence[str] = ()) -> "_Step":
        """A step; it is over, and measured, when the block is."""
        return _Step(self, self._log, name, tuple(weights))


class _Step:
    """See :meth:`_Steps.of`."""

    def __init__(self, steps: _Steps, log: SavedTensorLog, name: str, weights: Tuple[str, ...]):
        self._steps, self._log, self._name, self._weights = steps, log, name, weights
        self._first = 0

    def __enter__(self) -> None:
        self._first, self._log.step = self._log.events(), self._name
        if self._steps.device is not None:
            self._steps.device.start()

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        if kind is not None:
            return
        steps = self._steps
        saved = self._log.alive()
        held = {} if steps.grad_fn is None else steps.grad_fn.held_storages()
        held = {address: nbytes for address, nbytes in held.items() if address not in saved}
        grads = {grad.data_ptr(): grad.nbytes for grad in steps.grads if grad is not None}
        grads = {address: nbytes for address, nbytes in grads.items() if address not in saved and address not in held}
        device = None if steps.device is None else steps.device.read()
        steps.found.append(MemoryStep(
            self._name, self._weights, self._first, self._log.events(), sum(saved.values()), sum(held.values()),
            sum(grads.values()), *((None, None) if device is None else (device.allocated, device.peak))))


def _named(value: Any, name: str) -> List[Tuple[str, Any]]:
    leaves, structure = flatten(value)
    return [(path, leaf) for path, leaf in zip(structure.paths(name), leaves) if is_tensor(leaf)]


def _notes(grad_fn: GradFunction, blocks: int, device: Optional[DeviceMeter]) -> Tuple[str, ...]:
    notes = []
    if grad_fn.engine == "graph":
        notes.append("compiled code tells neither layers nor operations: what waits between its pieces is counted as "
                     "held, at the end of each step")
    else:
        compiled = sum(JIT_GRAPH in node.name for node in grad_fn.describe()[0].nodes)
        if compiled:
            notes.append(f"{compiled} compiled block(s) are single nodes under the watch: what they save is not seen")
        if blocks:
            notes.append(f"{blocks} block(s) of the graph engine ran operation by operation under the watch: compiled "
                         "they save other values")
    if device is None:
        notes.append("MindSpore reports no memory of this device: bytes are counted from the tensors themselves")
    return tuple(notes)


def _layer_weights(layers: Layers, parameters: Sequence[Any]) -> Tuple[LayerWeights, ...]:
    """The weights of each layer, in the order of the weights."""
    found: Dict[str, List[Any]] = {}
    for parameter in parameters:
        found.setdefault(layers.of_parameter(parameter), []).append(parameter)
    return tuple(LayerWeights(layer, tuple(parameter.name for parameter in some),
                              sum(parameter.nbytes for parameter in some)) for layer, some in found.items())
