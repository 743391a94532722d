"""Parts that are all transposed alike are transposed as a whole, before they are taken apart or after they are joined.

The queries, keys and values of attention often come from one product, which is split; each part gets its heads and is
transposed, and the backward does the reverse. Each of these operations copies, and to start one costs more than to copy
something small.
"""

from itertools import accumulate
from math import prod
from operator import mul
from typing import Optional, Sequence

from mindspore_zb.engines.graph.mindir import dtype_of
from mindspore_zb.engines.graph.rewriting import RESHAPES, TUPLES, Rewriting, Shape
from mindspore_zb.engines.graph.stacking import Stacking, stacking


def move_parts_together(graph: Rewriting) -> None:
    """Transpose once where all parts of a tensor are transposed, and where a tensor is joined of transposed ones."""
    reshape = graph.any_reshape()
    for node in graph.nodes():
        if graph.kind(node) == "Split":
            _split(graph, node, reshape)
        elif graph.kind(node) == "Concat":
            _join(graph, node, reshape)


def _split(graph: Rewriting, split: str, reshape: Optional[str]) -> None:
    """Let what splits a tensor take a stack of transposed parts apart instead."""
    source, parts = graph.inputs(split)[0], [entry for entry in graph.entries(split) if graph.readers(entry)]
    transposes = [_transpose_after(graph, part) for part in parts]
    like = _like(graph, split, parts, transposes)
    if like is None or len(parts) != len(graph.types(split)) or graph.readers(split) != graph.entries(split) or \
            graph.is_old_state(source) or any(transpose in graph.results for transpose in transposes):
        return
    shape, forward = graph.shape(graph.inputs(transposes[0])[0]), graph.runs_forward(split)
    place = _place_of_parts(graph, split, parts[0], shape)
    if place is None:
        return
    whole = (*shape[:place], len(parts), *shape[place:])
    if graph.shape(source) != whole:
        if reshape is None:
            return
        source = graph.reshape(reshape, source, whole, forward)
    axes = (place, *(axis + (axis >= place) for axis in graph.axes(transposes[0])))
    stack = graph.transpose(transposes[0], source, axes, forward)
    for transpose, part in zip(transposes, parts):
        graph.replace(transpose, part)
    graph.take_apart(split, like, stack)


def _join(graph: Rewriting, concat: str, reshape: Optional[str]) -> None:
    """Let what joins transposed tensors transpose a stack of them instead."""
    gathered = graph.inputs(concat)[0]
    if graph.kind(gathered) not in TUPLES or graph.only_reader(gathered) != concat:
        return
    parts = graph.inputs(gathered)
    transposes = [_transpose_before(graph, part) for part in parts]
    like = _like(graph, concat, parts, transposes)
    if like is None or any(map(graph.is_old_state, transposes)):
        return
    shape, forward = graph.shape(transposes[0]), graph.runs_forward(concat)
    place = _place_of_parts(graph, concat, parts[0], shape)
    whole = () if place is None else (*shape[:place], len(parts), *shape[place:])
    if place is None or (graph.shape(concat) != whole and reshape is None):
        return
    axes = [axis + 1 for axis in graph.axes(transposes[0])]
    axes.insert(place, 0)
    sources = {part: graph.inputs(transpose)[0] for part, transpose in zip(parts, transposes)}
    for part, source in sources.items():
        graph.read(gathered, part, source)
    graph.give_shape(gathered, graph.shape(graph.inputs(gathered)[0]))
    stack = graph.stack(like, gathered, forward)
    if graph.shape(concat) == whole:
        graph.become_like(concat, transposes[0], stack, axes)
    else:
        graph.become_like(concat, reshape, graph.transpose(transposes[0], stack, axes, forward), graph.shape(concat))


def _like(graph: Rewriting, node: str, parts: Sequence[str], transposes: Sequence[str]) -> Optional[Stacking]:
    """How to stack the parts of a split or joined tensor; None if they are not moved alike, or cannot be stacked."""
    if len(parts) < 2 or not all(transposes) or graph.numbers(graph.inputs(node)[1]) is None:
        return None
    alike = {(graph.shape(part), graph.shape(graph.inputs(transpose)[0]), graph.axes(transpose))
             for part, transpose in zip(parts, transposes)}
    (shape, before, axes), *others = alike
    if others or shape is None or before is None or not axes or \
            any(graph.runs_forward(transpose) != graph.runs_forward(node) for transpose in transposes):
        return None
    return stacking(dtype_of(graph.types(node)[0]))


def _place_of_parts(graph: Rewriting, node: str, part: str, shape: Shape) -> Optional[int]:
    """Where the axis that counts the parts of a split or joined tensor belongs in ``shape``, which has the elements of
    a part in the same order; None if that would be within an axis."""
    axis, = graph.numbers(graph.inputs(node)[1])
    own = graph.shape(part)
    ahead = prod(own[:axis % len(own)])
    return next((place for place, size in enumerate(accumulate(shape, mul, initial=1)) if size == ahead), None)


def _transpose_after(graph: Rewriting, part: str) -> str:
    """The transpose that a part goes through, at once or reshaped, and nothing else reads; "" if there is none."""
    reader = graph.only_reader(part)
    if graph.kind(reader) in RESHAPES:
        reader = graph.only_reader(reader)
    return reader if graph.kind(reader) == "Transpose" else ""


def _transpose_before(graph: Rewriting, part: str) -> str:
    """The transpose that a part comes from, at once or reshaped, if nothing else reads it; "" if there is none."""
    if not graph.only_reader(part):
        return ""
    before = graph.inputs(part)[0] if graph.kind(part) in RESHAPES else part
    return before if graph.kind(before) == "Transpose" and graph.only_reader(before) else ""
