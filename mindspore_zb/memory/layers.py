"""What to call the Cells of a net, and which Cell has which Parameter."""

from typing import Any, Callable, Dict, Tuple

from mindspore_zb.engines.graph.reached import reach, root_name
from mindspore_zb.engines.pynative.observe import is_graph_cell


class Layers:
    """The Cells and Parameters that ``fn`` reaches.

    Attributes:
        parameters: all Parameters.
        blocks: how many Cells below ``fn`` are to be split by the graph engine, each on its own.

    Example:
        >>> from mindspore import nn
        >>> net = nn.SequentialCell(nn.Dense(2, 2), nn.ReLU())
        >>> layers = Layers(net)
        >>> layers.of_cell(net), layers.of_cell(net[1]), layers.of_parameter(net[0].bias)
        ('', '1', '0')
    """

    def __init__(self, fn: Callable[..., Any]):
        found = reach(fn)
        self._cells = {identity: _below_root(place, fn) for identity, (place, _) in found.cells.items()}
        self._owners: Dict[int, str] = {}
        for identity, (_, cell) in found.cells.items():
            for parameter in cell.get_parameters(expand=False):
                self._owners.setdefault(id(parameter), self._cells[identity])
        self.blocks = sum(is_graph_cell(cell) for _, cell in found.cells.values() if cell is not fn)
        self.parameters: Tuple[Any, ...] = tuple(parameter for _, parameter in found.parameters.values())

    def of_cell(self, cell: Any) -> str:
        """The name of a Cell below ``fn``, "" for ``fn`` itself; the class of a Cell that is not known."""
        return self._cells.get(id(cell), type(cell).__name__)

    def of_parameter(self, parameter: Any) -> str:
        """The name of the Cell that has a Parameter; "" if none has."""
        return self._owners.get(id(parameter), "")


def _below_root(place: str, fn: Any) -> str:
    """``reach`` puts the name of ``fn`` before the name of a Cell."""
    root = root_name(fn)
    if place == root:
        return ""
    return place[len(root) + 1:] if place.startswith(root + ".") else place
