"""Costs for all ranks, for each, and for each chunk."""

import math

import pytest

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.schedule import Costs


def test_a_number_is_the_same_on_every_rank_and_shared_by_its_chunks():
    costs = Costs(f=2, m_b=6)
    assert costs.stage_costs(3).f == (2.0, 2.0, 2.0)
    assert costs.stage_costs(2, chunks=2).f == (1.0, 1.0, 1.0, 1.0)
    assert costs.stage_costs(2, chunks=2).m_b == (3.0, 3.0, 3.0, 3.0)


def test_numbers_by_rank_follow_the_v():
    assert Costs(f=[2, 4]).stage_costs(2, chunks=2).f == (1.0, 2.0, 2.0, 1.0)


def test_numbers_by_chunk():
    costs = Costs(f=[[1, 2], [3, 4]], b=1, w=0)
    assert costs.stage_costs(2, chunks=2).f == (1.0, 3.0, 4.0, 2.0)
    assert costs.stage_costs(2).f == (3.0, 7.0)
    assert costs.stage_costs(2, chunks=2).work() == (4.0, 8.0)
    assert costs.stage_costs(2).work() == (4.0, 8.0)


def test_communication():
    assert Costs(comm=0.5).stage_costs(3).hops == (0.5, 0.5)
    assert Costs(comm=[1, 2]).stage_costs(3).hops == (1.0, 2.0)
    assert Costs(comm=0.5).stage_costs(1).hops == ()
    with pytest.raises(ArgumentValueError, match="comm has 2 numbers, but 2 ranks have 1 pair of neighbours"):
        Costs(comm=[1, 2]).stage_costs(2)
    with pytest.raises(ArgumentValueError, match="comm has one number for each pair"):
        Costs(comm=[[1, 2]]).stage_costs(2)


def test_costs_of_another_size():
    with pytest.raises(ArgumentValueError, match="m_w has 1 number for 2 ranks: give one number, or one for each"):
        Costs(m_w=[1]).stage_costs(2)
    with pytest.raises(ArgumentValueError, match="b of rank 1 has 3 numbers for 2 chunks"):
        Costs(b=[1, [1, 2, 3]]).stage_costs(2, chunks=2)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, [1, -1], [[1, -0.5]]])
def test_numbers_that_are_no_costs(value):
    with pytest.raises(ArgumentValueError, match="w is made of numbers from 0 to"):
        Costs(w=value)


@pytest.mark.parametrize("value", ["1", None, True, [None], object()])
def test_things_that_are_no_numbers(value):
    with pytest.raises(ArgumentTypeError, match="^f is "):
        Costs(f=value)


def test_costs_are_values():
    assert Costs(f=[1, 2]) == Costs(f=(1.0, 2.0))
    assert hash(Costs(f=[1, 2])) == hash(Costs(f=(1.0, 2.0)))
