"""Stand-ins come and go in any order, and leave nothing."""

import itertools

import pytest

from mindspore_zb.engines.pynative.stand_ins import StandIns


class Base:
    def inherited(self):
        return "inherited"


class Owner(Base):
    def call(self):
        return "call"


def wrapping(text, *names):
    return StandIns(lambda: [(Owner, name, lambda original: lambda self: f"{text}({original(self)})") for name in names])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_any_order_of_leaving(order):
    before = dict(vars(Owner))
    stand_ins = [wrapping(text, "call", "inherited") for text in "abc"]
    for one in stand_ins:
        one.enter()
    assert Owner().call() == "c(b(a(call)))" and Owner().inherited() == "c(b(a(inherited)))"
    left = list("abc")
    for place in order:
        stand_ins[place].leave()
        left.remove("abc"[place])
        expected = "call"
        for text in left:
            expected = f"{text}({expected})"
        assert Owner().call() == expected
    assert dict(vars(Owner)) == before


def test_the_last_of_those_inside_puts_back():
    one = wrapping("a", "call")
    one.enter()
    one.enter()
    one.leave()
    assert Owner().call() == "a(call)"
    one.leave()
    assert Owner().call() == "call"


def test_what_is_wanted_later_is_added():
    names = ["call"]
    one = StandIns(lambda: [(Owner, name, lambda original: lambda self: f"a({original(self)})") for name in names])
    one.enter()
    names.append("inherited")
    one.enter()
    assert Owner().call() == "a(call)" and Owner().inherited() == "a(inherited)"
    one.leave()
    one.leave()
    assert Owner().call() == "call" and "inherited" not in vars(Owner)
