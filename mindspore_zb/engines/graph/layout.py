"""Transposes and reshapes that follow each other become one, or none."""

from typing import Tuple

from mindspore_zb.engines.graph.rewriting import RESHAPES, Rewriting


def merge_transposes(graph: Rewriting) -> None:
    """Make one of two transposes where nobody else reads the first."""
    for second in graph.nodes():
        if graph.kind(second) != "Transpose" or not graph.readers(second) or graph.is_old_state(second):
            continue
        first = _before(graph, second, ("Transpose",))
        if not first or not _only_read_by(graph, first, ("Transpose",)):
            continue
        inner, outer = graph.axes(first), graph.axes(second)
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
        if graph.kind(second) not in RESHAPES or not graph.readers(second) or graph.is_old_state(second):
            continue
        first = _before(graph, second, RESHAPES)
        is_only_reader = bool(first) and _only_read_by(graph, first, RESHAPES)
        source = graph.inputs(first or second)[0]
        if _has_shape_of(graph, source, second) and (not first or is_only_reader
                                                     or not _would_cross_beside(graph, second, first)):
            graph.replace(second, source)
        elif is_only_reader and graph.kind(second) == "Reshape":
            graph.read(second, first, source)


def _has_shape_of(graph: Rewriting, value: str, other: str) -> bool:
    """Whether a value can take the place of another one that has the same elements."""
    shape = graph.shape(value)
    return shape is not None and shape == graph.shape(other) and other not in graph.results


def _would_cross_beside(graph: Rewriting, second: str, first: str) -> bool:
    """Whether the source of ``first`` would cross to the backward besides it, if it took the place of ``second``."""
    return graph.runs_forward(first) and not graph.runs_forward(second)


def _before(graph: Rewriting, node: str, kinds: Tuple[str, ...]) -> str:
    """What a node reads, if it is one of these; otherwise ""."""
    first = graph.inputs(node)[0]
    return first if graph.kind(first) in kinds else ""


def _only_read_by(graph: Rewriting, node: str, kinds: Tuple[str, ...]) -> bool:
    return node not in graph.results and all(graph.kind(reader) in kinds for reader in graph.readers(node))
