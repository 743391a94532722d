"""Which shapes a search tries: some to begin with, and the neighbours of a good one."""

from typing import Iterator, List, Sequence

from mindspore_zb.schedule.construction import Shape, Task

FILLS = (1.0, 0.5, 0.0)
FLIGHT_SCALES = (1.0, 0.5, 0.75, 0.25, 0.9, 1.1, 1.25)
LAG_SCALES = (1.0, 0.5, 0.75, 0.25, 0.0, 1.5, 2.0)


def first_shapes(task: Task) -> Iterator[Shape]:
    """Shapes by the ways of the messages: so many F before the first B that they fill the time until it comes, and so
    many W left over that they fill the end; and shares of both.
    """
    costs, ranks = task.costs, task.costs.ranks
    # From the F of a rank until its B: what the ranks after it take.
    after = [sum(costs.f[other] + costs.b[other] + 2 * costs.hops[other - 1] for other in range(rank + 1, ranks))
             for rank in range(ranks)]
    before = [sum(costs.f[other] + costs.b[other] + 2 * costs.hops[other] for other in range(rank))
              for rank in range(ranks)]
    paces = [max(costs.f[rank:] + costs.f[:rank]) for rank in range(ranks)]
    most = [Shape(tuple([task.microbatches] * ranks), tuple([task.microbatches] * ranks), fill) for fill in FILLS]
    yield from (bounded(shape, task) for shape in most)
    for fill in FILLS:
        for flight in FLIGHT_SCALES:
            for lag in LAG_SCALES:
                yield bounded(Shape(
                    tuple(1 + _ratio(flight * time, pace) for time, pace in zip(after, paces)),
                    tuple(_ratio(lag * time, weight) for time, weight in zip(before, costs.w)), fill), task)


def _ratio(time: float, unit: float) -> int:
    return round(time / unit) if unit > 0 else 0


def bounded(shape: Shape, task: Task) -> Shape:
    """The shape within memory, the number of micro-batches, and without a rank that has more in flight than before."""
    in_flight: List[int] = []
    for wanted, most in zip(shape.in_flight, task.most_in_flight()):
        in_flight.append(min(max(wanted, 1), most, *in_flight[-1:]))
    return Shape(tuple(in_flight), tuple(min(max(lag, 0), task.microbatches) for lag in shape.lag), shape.fill)


def neighbours(shape: Shape, task: Task) -> Iterator[Shape]:
    """Shapes that differ in one number on one rank, or on all ranks up to it or from it on."""
    ranks = len(shape.lag)
    for step in (1, -1, 2, -2, 4, -4):
        for rank in range(ranks):
            for places in ([rank], range(rank), range(rank, ranks)):
                yield bounded(Shape(shape.in_flight, _moved(shape.lag, places, step), shape.fill), task)
                yield bounded(Shape(_moved(shape.in_flight, places, step), shape.lag, shape.fill), task)
    for fill in FILLS:
        yield Shape(shape.in_flight, shape.lag, fill)


def _moved(numbers: Sequence[int], places: Sequence[int], step: int) -> tuple:
    return tuple(number + step if place in places else number for place, number in enumerate(numbers))
