"""What the parts of a drawn graph look like, told apart by colour, shape and hatch.

Colours: Okabe and Ito, "Color Universal Design" (2008), which can be told apart without full colour vision; shapes and
hatches tell the same without any colour.
"""

from dataclasses import dataclass
from typing import Any, List, Tuple


@dataclass(frozen=True)
class Look:
    """A node's look; ``shape`` is ``"round"``, ``"box"``, ``"octagon"`` or ``"ellipse"``."""

    label: str
    shape: str
    colour: str
    hatch: str = ""
    line: float = 0.8
    dashed: bool = False


LOOKS = {
    "dx": Look("dx only", "round", "#56B4E9"),
    "boundary": Look("boundary: run by dx, and dw starts here", "box", "#E69F00", line=2.0),
    "eager boundary": Look("boundary whose weight gradients are caught in dx", "box", "#D55E00", "//", line=2.0),
    "input": Look("input", "ellipse", "#FFFFFF", line=2.0),
    "operation": Look("operation", "round", "#56B4E9"),
    "leaf": Look("leaf", "ellipse", "#FFFFFF", line=2.0),
    "unused": Look("not needed", "round", "#E5E5E5", dashed=True),
}

GROUP_COLOURS = ("#009E73", "#CC79A7", "#F0E442", "#0072B2")
GROUP_HATCHES = ("", "...", "xx", "--")

NAMED_GROUPS = 8
"""How many groups have a place of their own in the legend."""


def look_of(node: Any) -> Look:
    """The look of a node of an explanation."""
    if node.role in LOOKS:
        return LOOKS[node.role]
    if node.group is None:
        return Look("weight that no group computes", "ellipse", "#E5E5E5", dashed=True)
    return group_look(node.group, "ellipse" if node.role == "weight" else "octagon")


def group_look(group: int, shape: str = "octagon") -> Look:
    """The look of a group's weight side; colours and hatches come again after all their combinations."""
    colour = group % len(GROUP_COLOURS)
    hatch = group // len(GROUP_COLOURS) % len(GROUP_HATCHES)
    what = "weight" if shape == "ellipse" else "weight side"
    return Look(f"{what} of group {group}", shape, GROUP_COLOURS[colour], GROUP_HATCHES[hatch])


def legend_looks(nodes: Any) -> Tuple[List[Look], int]:
    """The looks for the legend, and how many groups are left out of it; an ellipse stands for a group of leaves only.
    """
    roles = {node.role for node in nodes}
    looks = [look for role, look in LOOKS.items() if role in roles]
    with_inner = {node.group for node in nodes if node.role == "weight side"}
    groups = sorted({node.group for node in nodes if node.role in ("weight side", "weight") and node.group is not None})
    looks += [group_look(group, "octagon" if group in with_inner else "ellipse") for group in groups[:NAMED_GROUPS]]
    return looks, max(len(groups) - NAMED_GROUPS, 0)
