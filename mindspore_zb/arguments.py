"""Check and normalise what a caller asks for, and put the results into the shape that was asked for."""

from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.structure import Structure, flatten
from mindspore_zb.tensors import is_differentiable, is_parameter, is_tensor

ALL_INPUTS = -1


@dataclass(frozen=True)
class Weights:
    """The weights of a request, in the caller's order.

    Attributes:
        parameters: the Parameters.
        single: whether the caller gave one bare Parameter and so gets one bare gradient.
    """

    parameters: Tuple[Any, ...]
    single: bool

    def shape_grads(self, grads: Sequence[Any]) -> Any:
        """One bare gradient for one bare Parameter, else a tuple."""
        return grads[0] if self.single else tuple(grads)


def check_weights(weights: Any) -> Weights:
    """``weights`` as given to ``forward_and_gradfn``.

    Raises:
        ArgumentTypeError: something in it is no Parameter.
        ArgumentValueError: a Parameter comes twice.
    """
    if weights is None:
        return Weights((), False)
    if is_parameter(weights):
        return Weights((weights,), True)
    if is_tensor(weights) or isinstance(weights, (str, bytes)) or not hasattr(weights, "__iter__"):
        hint = "; pass its trainable_params()" if hasattr(weights, "trainable_params") else ""
        raise ArgumentTypeError(
            f"weights must be a Parameter or an iterable of Parameters, not a {type(weights).__name__}{hint}")
    parameters = tuple(weights)
    first_place = {}
    for place, parameter in enumerate(parameters):
        if not is_parameter(parameter):
            raise ArgumentTypeError(f"weights[{place}] must be a Parameter, not a {type(parameter).__name__}")
        if id(parameter) in first_place:
            raise ArgumentValueError(f"weights[{place}] ({parameter.name}) is the same Parameter as "
                                     f"weights[{first_place[id(parameter)]}]: give each weight once")
        first_place[id(parameter)] = place
    return Weights(parameters, False)


def check_grad_position(grad_position: Any, count: int) -> Union[None, int, Tuple[int, ...]]:
    """``grad_position`` for a call with ``count`` positional inputs; lists become tuples.

    Raises:
        ArgumentTypeError: it is neither None, an int nor a tuple or list of ints.
        ArgumentValueError: out of range, repeated or empty.
    """
    if grad_position is None or (_is_int(grad_position) and grad_position == ALL_INPUTS):
        return grad_position
    if _is_int(grad_position):
        _check_position("grad_position", grad_position, count)
        return grad_position
    if not isinstance(grad_position, (tuple, list)):
        raise ArgumentTypeError("grad_position must be None, an int or a tuple of ints, not "
                                f"{grad_position!r} of type {type(grad_position).__name__}")
    if not grad_position:
        raise ArgumentValueError("grad_position is empty: use None to ask for no input gradient")
    for place, position in enumerate(grad_position):
        if not _is_int(position):
            raise ArgumentTypeError(f"grad_position[{place}] must be an int, not {position!r}")
        _check_position(f"grad_position[{place}]", position, count)
        if position in grad_position[:place]:
            raise ArgumentValueError(f"grad_position[{place}]: input {position} is asked for twice")
    return tuple(grad_position)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_position(name: str, position: int, count: int) -> None:
    if not 0 <= position < count:
        hint = "; use grad_position=None if no input gradient is wanted" if not count else ""
        raise ArgumentValueError(f"{name} is {position}, but fn got {count} positional inputs{hint}")


class InputLayout:
    """Which leaves of the inputs are asked for, and how their gradients go back into the inputs' shape.

    Args:
        inputs, kwargs: the arguments of ``fn``.
        grad_position: from :func:`check_grad_position`.

    Raises:
        ArgumentValueError: a tensor was never filled with data.
    """

    def __init__(self, inputs: tuple, kwargs: dict, grad_position: Union[None, int, Tuple[int, ...]]):
        self._position = grad_position
        self._inputs = [_Value.of(value) for value in inputs]
        self._kwargs = _Value.of(kwargs)
        self._check_data()
        if grad_position is None:
            self._asked: List[_Value] = []
        elif grad_position == ALL_INPUTS:
            self._asked = [*self._inputs, self._kwargs]
        else:
            places = (grad_position,) if isinstance(grad_position, int) else grad_position
            self._asked = [self._inputs[place] for place in places]

    def _check_data(self) -> None:
        for value, root in zip((*self._inputs, self._kwargs), [*map("inputs[{}]".format, range(len(self._inputs))),
                                                               "kwargs"]):
            if any(is_tensor(leaf) and leaf.has_init for leaf in value.leaves):
                name = next(name for name, leaf in zip(value.structure.paths(root), value.leaves)
                            if is_tensor(leaf) and leaf.has_init)
                raise ArgumentValueError(f"{name} has no data yet: call its init_data() first")

    def names(self) -> List[str]:
        """The name of each leaf that gets a gradient, in order: ``inputs[0]``, ``inputs[1]['mask']``, ``kwargs['y']``.
        Known once :meth:`rebind` was called."""
        roots = {id(value): f"inputs[{place}]" for place, value in enumerate(self._inputs)}
        roots[id(self._kwargs)] = "kwargs"
        return [name for value in self._asked
                for name, asked in zip(value.structure.paths(roots[id(value)]), value.leaves) if asked]

    def rebind(self, alias: Callable[[Any], Any], detach: Callable[[Any], Any]) -> Tuple[tuple, dict, List[Any]]:
        """The arguments with a fresh leaf in place of each tensor asked for, and without history elsewhere.

        Parameters that are not asked for stay themselves: they may be weights.

        Returns:
            ``(args, kwargs, leaves)``, the leaves in the order that :meth:`shape_grads` expects.
        """
        leaves: List[Any] = []
        rebound = {}
        for value in self._asked:
            fresh = [alias(leaf) if is_differentiable(leaf) else leaf for leaf in value.leaves]
            leaves += [new for new, leaf in zip(fresh, value.leaves) if is_differentiable(leaf)]
            rebound[id(value)] = [detach(new) if is_tensor(new) and not is_differentiable(new) else new
                                  for new in fresh]
        for value in (*self._inputs, self._kwargs):
            if id(value) not in rebound:
                rebound[id(value)] = [detach(leaf) if is_tensor(leaf) and not is_parameter(leaf) else leaf
                                      for leaf in value.leaves]
        args = tuple(value.structure.unflatten(rebound[id(value)]) for value in self._inputs)
        kwargs = self._kwargs.structure.unflatten(rebound[id(self._kwargs)])
        self._forget_values()
        return args, kwargs, leaves

    def _forget_values(self) -> None:
        """Keep of each leaf only whether it gets a gradient: the caller's tensors are not ours to hold."""
        for value in (*self._inputs, self._kwargs):
            value.leaves = [is_differentiable(leaf) for leaf in value.leaves]

    def shape_grads(self, grads: Sequence[Any]) -> Any:
        """The gradients of the leaves in the shape that ``grad_position`` asks for."""
        waiting = iter(grads)
        shaped = [value.structure.unflatten([next(waiting) if asked else None for asked in value.leaves])
                  for value in self._asked]
        if self._position == ALL_INPUTS:
            return (tuple(shaped[:-1]), shaped[-1]) if self._kwargs.had_tensors else tuple(shaped[:-1])
        return shaped[0] if isinstance(self._position, int) else tuple(shaped)


class _Value:
    """One argument, flattened. ``leaves`` are its values first, later whether each gets a gradient."""

    __slots__ = ("leaves", "structure", "had_tensors")

    def __init__(self, leaves: List[Any], structure: Structure):
        self.leaves = leaves
        self.structure = structure
        self.had_tensors = any(is_tensor(leaf) for leaf in leaves)

    @staticmethod
    def of(value: Any) -> "_Value":
        return _Value(*flatten(value))


class OutputLayout:
    """The outputs of ``fn``: what is differentiated, and what a fitting ``sens`` looks like.

    Args:
        out: the differentiated output, any nesting.

    Raises:
        ArgumentTypeError: there is no tensor in it.
    """

    def __init__(self, out: Any):
        self.leaves, self.structure = flatten(out)
        if not any(is_tensor(leaf) for leaf in self.leaves):
            raise ArgumentTypeError(f"fn must return at least one tensor, but returned {_describe(out)}")
        self._names = tuple(self.structure.paths("out"))
        self._meta = tuple((leaf.shape, leaf.dtype) if is_differentiable(leaf) else None for leaf in self.leaves)

    @property
    def differentiable(self) -> List[Any]:
        """The output tensors that can have a gradient, in order."""
        return [leaf for leaf, meta in zip(self.leaves, self._meta) if meta is not None]

    def replace_leaves(self, detach: Callable[[Any], Any]) -> Any:
        """The outputs without history; afterwards this layout holds no tensor."""
        out = self.structure.unflatten([detach(leaf) if is_tensor(leaf) else leaf for leaf in self.leaves])
        self.leaves = []
        return out

    def check_sens(self, sens: Any, ones: Callable[[tuple, Any], Any]) -> List[Optional[Any]]:
        """The gradient of each differentiable output.

        Raises:
            ArgumentTypeError: an entry is no tensor, or has another dtype than its output.
            ArgumentValueError: an entry has another shape than its output, or ``sens`` nests differently.
        """
        if sens is None:
            return [ones(*meta) for meta in self._meta if meta is not None]
        entries: List[Any] = []
        self._collect(self.structure, sens, "sens", entries)
        for name, meta, entry in zip(self._names, self._meta, entries):
            if meta is not None and entry is not None:
                _check_entry(name, meta, entry)
        return [entry for meta, entry in zip(self._meta, entries) if meta is not None]

    def _collect(self, structure: Structure, sens: Any, name: str, entries: List[Any]) -> None:
        """Go down ``sens`` along the outputs' structure; None anywhere stands for all below it."""
        if structure.is_leaf:
            entries.append(sens)
        elif sens is None:
            entries.extend([None] * structure.size)
        elif structure.keys is not None:
            if not isinstance(sens, dict) or set(sens) != set(structure.keys):
                self._refuse(name, sens)
            for key, child in zip(structure.keys, structure.children()):
                self._collect(child, sens[key], f"{name}[{key!r}]", entries)
        else:
            if not isinstance(sens, (tuple, list)) or len(sens) != len(structure.children()):
                self._refuse(name, sens)
            for place, (child, item) in enumerate(zip(structure.children(), sens)):
                self._collect(child, item, f"{name}[{place}]", entries)

    def _refuse(self, name: str, sens: Any) -> None:
        raise ArgumentValueError(f"{name} must nest like the outputs, {self.structure.describe()}, "
                                 f"but is {_describe(sens)}")


def _check_entry(name: str, meta: Tuple[tuple, Any], entry: Any) -> None:
    shape, dtype = meta
    if isinstance(entry, (tuple, list, dict)):
        raise ArgumentValueError(f"sens for {name} must be one tensor, but is {_describe(entry)}")
    if not is_tensor(entry):
        raise ArgumentTypeError(f"sens for {name} must be a tensor or None, not a {type(entry).__name__}")
    if tuple(entry.shape) != tuple(shape):
        raise ArgumentValueError(f"sens for {name} has shape {tuple(entry.shape)}, but {name} has {tuple(shape)}")
    if entry.dtype != dtype:
        raise ArgumentTypeError(f"sens for {name} is {entry.dtype}, but {name} is {dtype}")


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
