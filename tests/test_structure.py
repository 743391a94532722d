"""Nested values and their leaves: round trips."""

import sys
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import pytest
from hypothesis import given, settings, strategies as st

from mindspore_zb.structure import flatten

Pair = namedtuple("Pair", "left right")


@dataclass
class Record:
    """No container: a leaf."""

    value: int


class Items(list):
    """A list of a class of its own."""


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.binary(max_size=3),
                   st.builds(Record, st.integers()), st.frozensets(st.integers(), max_size=2))
KEYS = st.one_of(st.text(max_size=3), st.integers(), st.tuples(st.integers()))


def containers(items):
    """All kinds of containers of these items."""
    few = st.lists(items, max_size=4)
    dicts = st.dictionaries(KEYS, items, max_size=4)
    return st.one_of(few, few.map(tuple), few.map(Items), st.builds(Pair, items, items), dicts, dicts.map(OrderedDict),
                     dicts.map(lambda values: defaultdict(list, values)))


NESTED = st.recursive(LEAVES, containers, max_leaves=20)


def same_kind(one, two):
    """Whether both values nest with the same types, all the way down."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same_kind(one[key], two[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(two) and all(map(same_kind, one, two))
    return True


class TestRoundTrip:
    """``unflatten(flatten(value))`` is ``value``."""

    @given(NESTED)
    def test_round_trip(self, value):
        leaves, structure = flatten(value)
        again = structure.unflatten(leaves)
        assert again == value and same_kind(again, value)
        assert structure.size == len(leaves) == len(list(structure.paths("out")))
        assert all(one is two for one, two in zip(flatten(again)[0], leaves))

    @given(NESTED)
    def test_structure_depends_on_nesting_alone(self, value):
        leaves, structure = flatten(value)
        replaced = structure.unflatten(range(len(leaves)))
        assert flatten(replaced)[0] == list(range(len(leaves)))
        assert structure.matches(flatten(replaced)[1])
        assert structure.describe() == flatten(replaced)[1].describe()

    @given(NESTED)
    def test_value_is_not_touched_nor_shared(self, value):
        leaves, structure = flatten(value)
        again = structure.unflatten(leaves)
        if isinstance(value, (dict, list)):
            assert again is not value
            again.clear()
            assert structure.unflatten(leaves) == value

    @given(NESTED)
    def test_paths_lead_to_the_leaves(self, value):
        leaves, structure = flatten(value)
        names = list(structure.paths("value"))
        assert len(set(names)) == len(names)
        for name, leaf in zip(names, leaves):
            assert eval(name, {"value": value}) is leaf  # pylint: disable=eval-used

    @given(NESTED, NESTED)
    @settings(max_examples=200)
    def test_matches_is_symmetric(self, one, two):
        first, second = flatten(one)[1], flatten(two)[1]
        assert first.matches(second) is second.matches(first)
        assert first.matches(first) and second.matches(second)

    @given(NESTED)
    def test_too_few_leaves(self, value):
        leaves, structure = flatten(value)
        if leaves:
            with pytest.raises((StopIteration, RuntimeError)):
                structure.unflatten(leaves[:-1])


class TestByHand:
    """What counts as a container, and what matches."""

    @pytest.mark.parametrize("leaf", [None, 3, "text", b"bytes", {1, 2}, frozenset(), range(3), Record(1),
                                      (i for i in ())])
    def test_leaves(self, leaf):
        leaves, structure = flatten(leaf)
        assert leaves[0] is leaf and structure.is_leaf and structure.children() == () and structure.keys is None
        assert structure.describe() == "*" and list(structure.paths("out")) == ["out"]

    def test_default_factory_survives(self):
        again = flatten(defaultdict(list, a=1))[1].unflatten([2])
        assert again == {"a": 2} and again["new"] == []

    def test_order_of_keys(self):
        leaves, structure = flatten({"b": 1, "a": 2})
        assert leaves == [1, 2] and structure.keys == ("b", "a")
        assert list(structure.unflatten([3, 4])) == ["b", "a"]

    @pytest.mark.parametrize("one, two, alike", [
        ((1, 2), [3, 4], True),
        (Pair(1, 2), (3, 4), True),
        ({"a": 1}, OrderedDict(a=2), True),
        ((1, 2), (1, 2, 3), False),
        ({"a": 1}, {"b": 1}, False),
        ([1], {"a": 1}, False),
        ([1], 1, False),
        ([], [], True),
        ([], {}, False),
        ([[1], 2], [1, [2]], False),
    ])
    def test_matches(self, one, two, alike):
        assert flatten(one)[1].matches(flatten(two)[1]) is alike

    @pytest.mark.parametrize("value, text", [
        ((1,), "(*,)"), ((1, 2), "(*, *)"), ([1, (2,)], "(*, (*,))"), ({"a": 1, 2: [3]}, "{'a': *, 2: (*,)}"),
        ((), "()"),
    ])
    def test_describe(self, value, text):
        assert flatten(value)[1].describe() == text

    @pytest.mark.parametrize("one, two, alike", [
        (((1,), {}), ((2,), {}), True),
        (([1], {}), ((1,), {}), False),
        ({"a": 1}, OrderedDict(a=2), False),
        ({1: 0}, {True: 0}, False),
        ({"a": 1, "b": 2}, {"b": 1, "a": 2}, False),
        (Pair(1, 2), Pair(3, 4), True),
        (Pair(1, 2), (3, 4), False),
        ([], (), False), ([], {}, False), ({}, 1, False), ([1], [[1]], False),
    ])
    def test_signature(self, one, two, alike):
        assert (flatten(one)[1].signature() == flatten(two)[1].signature()) is alike

    def test_shared_by_plain_values_only(self):
        assert flatten(((1,), {}))[1] is flatten(((2,), {}))[1]
        for value in ([Items([1])], (defaultdict(list, a=1),), ({"a": 1},), [1] * 33):
            assert flatten(value)[1] is not flatten(value)[1]

    def test_what_is_shared_holds_nothing(self):
        held = Record(1)
        count = sys.getrefcount(held)
        flatten(((held, [held]), {}, (Items([held]), {"a": held}, defaultdict(lambda: held, a=held))))
        assert sys.getrefcount(held) == count

    def test_deep_nesting(self):
        value = 1
        for _ in range(200):
            value = [value]
        leaves, structure = flatten(value)
        assert leaves == [1] and structure.unflatten([1]) == value
