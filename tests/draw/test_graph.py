"""Drawing an explanation; it reads plain data, so there is no MindSpore here."""

from types import SimpleNamespace

import pytest

from mindspore_zb.draw.graph import draw_explanation, graph_figure
from mindspore_zb.draw.style import GROUP_COLOURS, GROUP_HATCHES, group_look
from mindspore_zb.errors import ArgumentValueError, UnsupportedError, ZeroBubbleError

pytest.importorskip("matplotlib")


def node(name, role, edges=(), group=None, shapes=((2, 3),), root_slots=()):
    return SimpleNamespace(name=name, role=role, edges=tuple(edges), group=group, shapes=shapes,
                           weight_edges=(), root_slots=root_slots)


def explanation(nodes, groups=2):
    return SimpleNamespace(nodes=tuple(nodes), groups=(None,) * groups)


def every_role():
    """One node of each role."""
    return explanation([
        node("LayerNorm", "eager boundary", [(1, 0), (5, 0)], group=0, root_slots=(0,)),
        node("MatMul", "boundary", [(2, 0), (3, 0), (6, 1)], group=1),
        node("Tanh", "dx", [(4, 0), (4, 0)]),
        node("Sin", "weight side", [(7, 0)], group=1, shapes=()),
        node("inputs[0]", "input"), node("gamma", "weight", group=0), node("Neg", "unused", shapes=(None, (2,))),
        node("a_parameter_with_a_long_name.weight", "weight", group=1)])


def texts(figure, gid):
    return [text.get_text() for text in figure.axes[0].texts if text.get_gid() == gid]


def chain(size):
    return explanation([node("Tanh", "dx", [(place + 1, 0)]) for place in range(size - 1)] + [node("x", "input")], 0)


@pytest.mark.parametrize("suffix, start", [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")])
def test_writes_a_picture_of_the_kind_that_the_suffix_names(tmp_path, suffix, start):
    path = tmp_path / f"graph{suffix}"
    draw_explanation(every_role(), path)
    content = path.read_bytes()
    assert content.startswith(start) and len(content) > 5000


def test_legend_names_every_role_and_group():
    assert texts(graph_figure(every_role()), "legend") == [
        "dx only", "boundary: run by dx, and dw starts here", "boundary whose weight gradients are caught in dx",
        "input", "not needed", "weight of group 0", "weight side of group 1"]


def test_legend_says_when_there_are_more_groups():
    nodes = [part for place in range(12) for part in (
        node("MatMul", "boundary", [(2 * place + 1, 0)], group=place), node("w", "weight", group=place))]
    legend = texts(graph_figure(explanation(nodes, 12)), "legend")
    assert legend[-2] == "weight of group 7"
    assert legend[-1].startswith("4 more groups")


def test_groups_differ_in_colour_or_hatch():
    count = len(GROUP_COLOURS) * len(GROUP_HATCHES)
    assert len({(group_look(group).colour, group_look(group).hatch) for group in range(count)}) == count


def test_a_large_graph_is_cut_and_says_so():
    figure = graph_figure(chain(400), max_nodes=300)
    assert texts(figure, "title") == ["Backward graph: 400 nodes, 0 groups of weights; 100 nodes further from the "
                                      "outputs are left out"]


def test_a_graph_that_fits_is_whole():
    assert "left out" not in texts(graph_figure(chain(300), max_nodes=300), "title")[0]


def test_a_graph_without_nodes(tmp_path):
    draw_explanation(explanation([], 0), tmp_path / "empty.svg")


@pytest.mark.parametrize("name", ["graph.pdf", "graph", "graph.jpeg"])
def test_other_suffix(tmp_path, name):
    with pytest.raises(ArgumentValueError, match=r"path must end in \.png or \.svg"):
        draw_explanation(every_role(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_path_that_cannot_be_written(tmp_path):
    with pytest.raises(ArgumentValueError, match="cannot be written: No such file or directory"):
        draw_explanation(every_role(), tmp_path / "missing" / "graph.png")


def test_path_and_limit_of_the_wrong_kind(tmp_path):
    with pytest.raises(ArgumentValueError, match="max_nodes must be at least 1, not 0"):
        draw_explanation(every_role(), tmp_path / "graph.png", max_nodes=0)
    with pytest.raises(ZeroBubbleError, match="path must be a str or a path, not a int"):
        draw_explanation(every_role(), 3)


def test_without_matplotlib(tmp_path, without_package):
    without_package("matplotlib")
    with pytest.raises(UnsupportedError, match="drawing needs matplotlib: pip install matplotlib"):
        draw_explanation(every_role(), tmp_path / "graph.png")
