"""Tests of :mod:`mindspore_zb.split.check`: right plans pass, and every plan with one thing wrong does not."""

from dataclasses import replace

import pytest
from hypothesis import given

from mindspore_zb.split import Boundary, Group, GraphError, check_plan, split_backward

from . import oracle
from .executor import ExecutionError, run_split
from .strategies import examples, graphs, named


@examples(300)
@given(graphs())
def test_every_plan_passes(graph):
    check_plan(graph, split_backward(graph))


def without(items, place):
    """``items`` without the one at ``place``."""
    return items[:place] + items[place + 1:]


def with_group(plan, place, **changes):
    """``plan`` with other fields in one of its groups."""
    return replace(plan, groups=(*plan.groups[:place], replace(plan.groups[place], **changes),
                                 *plan.groups[place + 1:]))


def wrong_nodes(graph, plan):
    """A node that nobody runs, that somebody else runs, that two run, or that nobody needs."""
    for place in range(len(plan.closure)):
        yield "a closure node is dropped", replace(plan, closure=without(plan.closure, place))
    owned = set(plan.closure).union(*(group.nodes for group in plan.groups))
    for node in sorted(set(range(len(graph.edges))) - owned):
        yield "dx runs an idle node", replace(plan, closure=(*plan.closure, node))
    for number, group in enumerate(plan.groups):
        for place, node in enumerate(group.nodes):
            left = with_group(plan, number, nodes=without(group.nodes, place))
            yield "a group's node is dropped", left
            yield "a group's node is given to dx", replace(left, closure=(*plan.closure, node))
            for other in range(len(plan.groups)):
                if other != number:
                    nodes = (*plan.groups[other].nodes, node)
                    yield "a node is in the wrong group", with_group(left, other, nodes=nodes)
        for place, node in enumerate(plan.closure):
            more = with_group(plan, number, nodes=(*group.nodes, node))
            yield "a group runs a closure node", more
            yield "a closure node is given to a group", replace(more, closure=without(plan.closure, place))


def wrong_weights(graph, plan):
    """A weight or input that is said to be elsewhere than it is."""
    for place in range(len(plan.unreached_weights)):
        yield "an unreached weight is dropped", replace(plan, unreached_weights=without(plan.unreached_weights, place))
    for place in range(len(plan.unreached_inputs)):
        yield "an unreached input is dropped", replace(plan, unreached_inputs=without(plan.unreached_inputs, place))
    for position in sorted(set(range(len(graph.inputs))) - set(plan.unreached_inputs)):
        yield "an input is called unreached", replace(plan, unreached_inputs=(*plan.unreached_inputs, position))
    for number, group in enumerate(plan.groups):
        for place, position in enumerate(group.weights):
            left = with_group(plan, number, weights=without(group.weights, place))
            yield "a weight is dropped", left
            yield "a weight is called unreached", replace(left, unreached_weights=(*plan.unreached_weights, position))
            for other in range(len(plan.groups)):
                if other != number:
                    weights = (*plan.groups[other].weights, position)
                    yield "a weight is in the wrong group", with_group(left, other, weights=weights)
                    yield "a weight is in two groups", with_group(plan, other, weights=weights)


def wrong_starts(graph, plan):
    """A boundary or a root that is missing, doubled or made up."""
    for number, group in enumerate(plan.groups):
        for place, start in enumerate(group.boundaries):
            yield "a boundary is dropped", with_group(plan, number, boundaries=without(group.boundaries, place))
            yield "a boundary is doubled", with_group(plan, number, boundaries=(*group.boundaries, start))
            for index in range(len(graph.edges[start.node])):
                for field in ("weight_edges", "input_edges"):
                    indices = getattr(start, field)
                    changed = tuple(sorted({index} ^ set(indices)))
                    yield f"{field} of a boundary are wrong", with_group(plan, number, boundaries=(
                        *group.boundaries[:place], replace(start, **{field: changed}), *group.boundaries[place + 1:]))
            for other in range(len(plan.groups)):
                if other != number:
                    boundaries = (*plan.groups[other].boundaries, start)
                    yield "a boundary is in two groups", with_group(plan, other, boundaries=boundaries)
        for place, root in enumerate(group.roots):
            yield "a root is dropped", with_group(plan, number, roots=without(group.roots, place))
            yield "a root is doubled", with_group(plan, number, roots=(*group.roots, root))
        yield "a root is made up", with_group(plan, number, roots=(*group.roots, (group.nodes[0], 9)))


def wrong_groups(_, plan):
    """A group that is missing or doubled, or two that are one."""
    for place, group in enumerate(plan.groups):
        yield "a group is dropped", replace(plan, groups=without(plan.groups, place))
        yield "a group is doubled", replace(plan, groups=(*plan.groups, group))
        for other in plan.groups[place + 1:]:
            both = Group(tuple(sorted(group.weights + other.weights)), group.boundaries + other.boundaries,
                         group.roots + other.roots, tuple(sorted(group.nodes + other.nodes)))
            left = tuple(third for third in plan.groups if third not in (group, other))
            yield "two groups are made one", replace(plan, groups=(both, *left))


@pytest.mark.parametrize("mutations", [wrong_nodes, wrong_weights, wrong_starts, wrong_groups])
def test_no_wrong_plan_passes(mutations):
    @examples(150)
    @given(graphs(most_inner=5))
    def each_is_refused(graph):
        for what, wrong in mutations(graph, split_backward(graph)):
            with pytest.raises(GraphError):
                check_plan(graph, wrong)
                pytest.fail(f"accepted although {what}: {wrong}")

    each_is_refused()


def two_layers():
    """``tanh(x @ a) @ b``, with an output of a second weight-only path, and its plan."""
    graph, number = named({"last": ["tanh", "b"], "tanh": ["first"], "first": ["x", "a"], "decay": ["b"]},
                          roots=["last", "decay"], inputs=["x"], weights=["a", "b"])
    return graph, number, split_backward(graph)


def test_every_kind_of_mutation_happens():
    """The mutations above are not vacuous: one graph shows all 25 kinds."""
    graph, _ = named({"last": ["tanh", "b"], "tanh": ["first", "other"], "first": ["x", "a"], "decay": ["b"]},
                     roots=["last", "decay"], inputs=["x", None], weights=["a", "b", None])
    plan = split_backward(graph)
    kinds = {what for mutations in (wrong_nodes, wrong_weights, wrong_starts, wrong_groups)
             for what, _ in mutations(graph, plan)}
    assert len(kinds) == 25


def test_dx_must_not_start_on_the_way_to_a_weight():
    """A plan without contradictions that still lets dx run a node of dw."""
    graph, number = named({"matmul": ["x", "neg"], "neg": ["w"]}, ["matmul"], ["x"], ["w"])
    matmul, neg, w = (number[name] for name in ("matmul", "neg", "w"))
    plan = split_backward(graph)
    early = with_group(plan, 0, nodes=(w,), boundaries=(Boundary(neg, (0,), ()),))
    early = replace(early, closure=tuple(sorted((*plan.closure, neg))))
    assert plan.groups[0].boundaries[0].node == matmul
    with pytest.raises(GraphError, match=f"node {neg} is run by dx though"):
        check_plan(graph, early)


def test_messages_name_the_place():
    graph, number, plan = two_layers()
    tanh, first, a, b, decay = (number[name] for name in ("tanh", "first", "a", "b", "decay"))
    by_weight = {group.weights: place for place, group in enumerate(plan.groups)}
    of_a, of_b = by_weight[(0,)], by_weight[(1,)]

    def message(wrong):
        with pytest.raises(GraphError) as caught:
            check_plan(graph, wrong)
        return str(caught.value)

    assert f"node {tanh} " in message(replace(plan, closure=tuple(set(plan.closure) - {tanh})))
    assert f"node {a} " in message(with_group(plan, of_b, nodes=(a, b, decay)))
    assert f"edge 1 of node {first}" in message(with_group(plan, of_a, boundaries=()))
    assert f"({decay}, 0)" in message(with_group(plan, of_b, roots=()))
    assert "weight 0" in message(with_group(plan, of_a, weights=()))
    assert "weight 1" in message(with_group(plan, of_a, weights=(0, 1)))
    assert "input 0" in message(replace(plan, unreached_inputs=(0,)))


@examples(100)
@given(graphs(most_inner=5))
def test_one_group_split_in_two_is_refused(graph):
    """Sharing a boundary is sharing work: it must not be declared by two groups."""
    plan = split_backward(graph)
    for number, group in enumerate(plan.groups):
        leaves = [graph.weights[position] for position in group.weights]
        if len(leaves) < 2 or set(leaves) != set(group.nodes):
            continue
        halves = []
        for part in (slice(0, 1), slice(1, None)):
            edges = {start: tuple(index for index in start.weight_edges
                                  if graph.edges[start.node][index][0] in leaves[part]) for start in group.boundaries}
            halves.append(replace(
                group, weights=group.weights[part], nodes=tuple(sorted(leaves[part])),
                boundaries=tuple(replace(start, weight_edges=kept) for start, kept in edges.items() if kept),
                roots=tuple(root for root in group.roots if root[0] in leaves[part])))
        with pytest.raises(GraphError, match="boundary"):
            check_plan(graph, replace(plan, groups=(*plan.groups[:number], *halves, *plan.groups[number + 1:])))


@examples(150)
@given(graphs(most_inner=5))
def test_the_executor_refuses_wrong_plans_too(graph):
    """The referee of the other tests is not blind: a plan that loses a start gives an error or other gradients."""
    factors = oracle.Factors()
    plan = split_backward(graph)
    right = run_split(graph, plan, factors)
    for what, wrong in wrong_starts(graph, plan):
        if "input_edges" in what or "root is" in what and "dropped" not in what:
            continue  # the executor works these out itself
        try:
            gradients = run_split(graph, wrong, factors)
        except (ExecutionError, IndexError, KeyError, TypeError):
            continue
        assert gradients != right, what
