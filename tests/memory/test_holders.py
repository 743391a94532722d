"""Whoever holds an object is named: variables of all kinds, attributes, containers, closures."""

import gc
import sys
import threading
import weakref
from collections import deque

import pytest

from mindspore_zb.memory.frames import local_variable, local_variables
from mindspore_zb.memory.holders import holders_of


class Thing:
    """What is held; a plain object would do, but this one can be referred to weakly."""


class Slots:
    """Holds in a slot."""

    __slots__ = ("thing", "never_set")

    def __init__(self, thing):
        self.thing = thing


class Deep:
    """Holds in an attribute."""

    shared = None

    def __init__(self, thing):
        self.inner = {"list": [thing]}


AT_MODULE_LEVEL = []


def names_of(thing):
    """The holders, without this function's and its caller's own variable for it."""
    return {name for name in holders_of([thing])[0] if not name.startswith("thing (")}


def test_variables_attributes_and_containers():
    thing = Thing()
    slots, deep, queue, nested = Slots(thing), Deep(thing), deque([thing]), ((thing,),)
    where = "is a local variable of test_variables_attributes_and_containers"
    assert names_of(thing) == {
        f"slots.thing (Slots.thing; slots {where})", f"deep.inner[...][...] (Deep.inner, a dict, a list; deep {where})",
        f"queue[...] (a deque; queue {where})", f"nested[...][...] (a tuple, a tuple; nested {where})"}
    assert slots and deep and queue and nested


def test_a_materialised_dict_of_attributes():
    thing = Thing()
    deep = Deep(thing)
    attributes = deep.__dict__
    deep.inner = thing
    found = names_of(thing)
    assert "deep.inner (Deep.inner; deep is a local variable of test_a_materialised_dict_of_attributes)" in found
    assert attributes


def test_modules_classes_and_closures():
    thing = Thing()
    AT_MODULE_LEVEL.append(thing)
    Deep.shared = thing

    def holding():
        return inner_thing

    inner_thing = thing
    holding.attribute = 1
    try:
        found = names_of(thing)
    finally:
        AT_MODULE_LEVEL.clear()
        Deep.shared = None
    assert any(name.startswith("AT_MODULE_LEVEL[...] (a list; AT_MODULE_LEVEL is a variable of module ")
               for name in found)
    assert "Deep.shared (a class attribute)" in found
    assert any("test_modules_classes_and_closures.<locals>.holding encloses" in name for name in found)


def test_a_generator_and_a_thread():
    thing = Thing()

    def generate(own):
        yield
        yield own

    def wait(other):
        ready.set()
        done.wait(20)
        return other

    ready, done = threading.Event(), threading.Event()
    generator = generate(thing)
    next(generator)
    thread = threading.Thread(target=wait, args=(thing,))
    thread.start()
    ready.wait(20)
    try:
        found = names_of(thing)
    finally:
        done.set()
        thread.join()
    assert "own (a local variable of generate)" in found
    assert "other (a local variable of wait)" in found


def test_nobody_and_a_cycle():
    things = [Thing()]
    gc.disable()
    try:
        things[0].itself = things[0]
        address = things.pop
        found = holders_of([address()])
    finally:
        gc.enable()
    assert found == [("a cycle of references, which only Python's garbage collector frees",)]
    assert holders_of([Thing()]) == [("something that no variable names",)]


@pytest.mark.parametrize("how", ["holders", "one", "all"])
def test_looking_leaves_nothing_behind(how):
    """A frame keeps what was looked at: it must not keep it longer than the function does."""
    thing = Thing()
    gone = weakref.ref(thing)
    if how == "holders":
        holders_of([thing])
    elif how == "one":
        assert local_variable(sys._getframe(), "thing") is thing
    else:
        with local_variables(sys._getframe()) as found:
            assert found["thing"] is thing
            del found
    del thing
    assert gone() is None


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="there, locals() is a copy of its own")
def test_what_a_function_took_by_locals_stays():
    thing = Thing()
    taken = locals()
    holders_of([thing])
    assert dict.get(taken, "thing") is thing
    taken = locals()
    local_variable(sys._getframe(), "thing")
    assert dict.get(taken, "thing") is thing
