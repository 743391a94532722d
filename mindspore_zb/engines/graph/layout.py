"""Transposes and reshapes that follow each other become one, or none."""

from typing import Tuple

from mindspore_zb.engines.graph.rewriting import Rewriting

_RESHAPES = ("Reshape", "Squeeze", "ExpandDims", "Flatten")
"""Operations whose result has the elements of their first input in the same order."""


def merge_transposes(graph: Rewriting) -> None:
    """Make one of two transposes where nobody else reads the first."""
    for second in graph.nodes():
        if graph.kind(second) != "Transpose" or not graph.readers(second):
            continue
        first = _before(graph, second, ("Transpose",))
        if not first or not _only_read_by(graph, first, ("Transpose",)):
            continue
        inner, outer = (_axes(graph, node) for node in (first, second))
        if not inner or not outer:
            continue
        axes = tuple(inner[axis] for axis in outer)
        source = graph.inputs(first)[0]
        if axes == tuple(range(len(axes))) and second not in graph.results:
            graph.replace(second, source)
        else:
            graph.read(second, graph.inputs(second)[1], graph.constant(graph.inputs(second)[1], axes))
            graph.read(second, first, source)


def merge_reshapes(graph: Rewriting) -> None:
    """Give what two reshapes lead to the last shape at once, and take what has it already as it is."""
    for second in graph.nodes():
        if graph.kind(second) not in _RESHAPES or not graph.readers(second):
            continue
        first = _before(graph, second, _RESHAPES)
        source = graph.inputs(first or second)[0]
        is_only_reader = bool(first) and _only_read_by(graph, first, _RESHAPES)
        if graph.shape(source) == graph.shape(second) and second not in graph.results and graph.kind(source) != "Load" \
                and (is_only_reader or not first or graph.runs_forward(second) or not graph.runs_forward(first)):
            graph.replace(second, source)  # if it were the other way round, both would cross
        elif is_only_reader and graph.kind(second) == "Reshape":
            graph.read(second, first, source)


def _before(graph: Rewriting, node: str, kinds: Tuple[str, ...]) -> str:
    """What a node reads, if it is one of these and reads no Parameter as it was before a write; otherwise ""."""
    first = graph.inputs(node)[0]
    return first if graph.kind(first) in kinds and graph.kind(graph.inputs(first)[0]) != "Load" else ""


def _only_read_by(graph: Rewriting, node: str, kinds: Tuple[str, ...]) -> bool:
    return node not in graph.results and all(graph.kind(reader) in kinds for reader in graph.readers(node))


def _axes(graph: Rewriting, transpose: str) -> Tuple[int, ...]:
    """The axes of a transpose, counted from the front; nothing if they are not known."""
    axes = graph.numbers(graph.inputs(transpose)[1])
    return tuple(axis % len(axes) for axis in axes) if axes else ()
