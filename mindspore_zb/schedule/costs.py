"""The one cost model: what the simulator, the search and the pictures know about time and memory."""

from dataclasses import dataclass, fields
from typing import Any, Sequence, Tuple, Union

from mindspore_zb.checks import check_count, kind_of
from mindspore_zb.counted import counted
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.schedule.placement import stages_of_rank

PerRank = Union[float, Sequence[Union[float, Sequence[float]]]]

LARGEST = 1e100
"""The largest cost: sums of many of them are still numbers."""


@dataclass(frozen=True)
class Costs:
    """Times and activation memory of one micro-batch on one rank, in any units.

    Each of ``f``, ``b``, ``w``, ``m_b``, ``m_w`` is a number, the same on every rank; or one number per rank; or for
    each rank one number per chunk. A number for a rank is that of all its chunks together, each having an equal
    share, so that schedules of one and of two chunks can be compared under the same costs.

    Attributes:
        f, b, w: times T_F, T_B and T_W of the forward, dx alone, and dw.
        comm: time of a message from one rank to its neighbour; a number, or one for each of the p - 1 pairs. It keeps
            neither rank busy.
        m_b: memory that F makes and that is held until B is done: M_B.
        m_w: how much of it is held on from B until W is done: M_W. The paper's transformer has 32 / (34 + 5 a s / h)
            of M_B with a heads, sequence length s and hidden size h.

    Raises:
        ArgumentTypeError, ArgumentValueError: something else than finite numbers, not negative.

    Source: arXiv 2401.10241, section 2 and table 1.

    >>> Costs(f=2, b=[1, 1, 3]).stage_costs(ranks=3).b
    (1.0, 1.0, 3.0)
    """

    f: PerRank = 1.0
    b: PerRank = 1.0
    w: PerRank = 1.0
    comm: Union[float, Sequence[float]] = 0.0
    m_b: PerRank = 1.0
    m_w: PerRank = 0.5

    def __post_init__(self):
        for field in fields(self):
            object.__setattr__(self, field.name, _frozen(field.name, getattr(self, field.name)))

    def stage_costs(self, ranks: int, chunks: int = 1) -> "StageCosts":
        """The costs stage by stage.

        Raises:
            ArgumentTypeError, ArgumentValueError: no such numbers of ranks and chunks, or costs for others.
        """
        ranks, chunks = check_count("ranks", ranks), check_count("chunks", chunks)
        hops = self.comm if isinstance(self.comm, tuple) else (self.comm,) * (ranks - 1)
        if len(hops) != ranks - 1:
            raise ArgumentValueError(f"comm has {counted(len(hops), 'number')}, but {counted(ranks, 'rank')} "
                                     f"{'has' if ranks == 1 else 'have'} {counted(ranks - 1, 'pair')} of neighbours")
        if any(isinstance(hop, tuple) for hop in hops):
            raise ArgumentValueError("comm has one number for each pair of neighbours, not several")
        times = {name: _by_stage(name, getattr(self, name), ranks, chunks) for name in ("f", "b", "w", "m_b", "m_w")}
        return StageCosts(ranks=ranks, hops=hops, **times)


@dataclass(frozen=True)
class StageCosts:
    """Costs of each stage: ``f[stage]`` and so on; ``hops[rank]`` is the time from a rank to the next, or back."""

    ranks: int
    f: Tuple[float, ...]
    b: Tuple[float, ...]
    w: Tuple[float, ...]
    m_b: Tuple[float, ...]
    m_w: Tuple[float, ...]
    hops: Tuple[float, ...]

    def work(self) -> Tuple[float, ...]:
        """For each rank the time that it computes for one micro-batch: T_F + T_B + T_W of all its chunks."""
        chunks = len(self.f) // self.ranks
        return tuple(sum(self.f[stage] + self.b[stage] + self.w[stage]
                         for stage in stages_of_rank(rank, self.ranks, chunks)) for rank in range(self.ranks))


def _frozen(name: str, value: Any, depth: int = 2) -> Any:
    """A number as a float; a sequence as a tuple of them."""
    if isinstance(value, (str, bytes, bytearray)) or type(value).__name__ in ("bool", "bool_"):
        raise ArgumentTypeError(f"{name} is made of numbers, not of {kind_of(value)}")
    if hasattr(value, "__len__") and getattr(value, "shape", None) != ():
        return _frozen_sequence(name, value, depth)
    try:
        number = float(value)
    except OverflowError:
        raise ArgumentValueError(f"{name} is made of numbers from 0 to {LARGEST:g}, and one has more digits than "
                                 "that") from None
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{name} is a number or a sequence of numbers, not {kind_of(value)}" if depth == 2 else
                                f"{name} is made of numbers, not of {kind_of(value)}") from None
    if not 0 <= number <= LARGEST:  # nan neither
        raise ArgumentValueError(f"{name} is made of numbers from 0 to {LARGEST:g}, and {number} is not one")
    return number


def _frozen_sequence(name: str, value: Any, depth: int) -> Any:
    if isinstance(value, (dict, set, frozenset)) or not hasattr(value, "__getitem__"):  # these have no order of ranks
        raise ArgumentTypeError(f"{name} is a number or a sequence of numbers, not {kind_of(value)}")
    if not len(value) and name != "comm":  # one rank has no neighbours
        raise ArgumentValueError(f"{name} is empty: give one number, or one for each rank")
    if not depth:
        raise ArgumentTypeError(f"{name} has a number for each rank, or for each of its chunks, and does not nest "
                                "deeper")
    return tuple(_frozen(name, item, depth - 1) for item in value)


def _by_stage(name: str, value: Any, ranks: int, chunks: int) -> Tuple[float, ...]:
    per_rank = value if isinstance(value, tuple) else (value,) * ranks
    if len(per_rank) != ranks:
        raise ArgumentValueError(f"{name} has {counted(len(per_rank), 'number')} for {counted(ranks, 'rank')}: give "
                                 "one number, or one for each rank")
    stages = [0.0] * (ranks * chunks)
    for rank, cost in enumerate(per_rank):
        if not isinstance(cost, tuple):
            shares = (cost / chunks,) * chunks
        elif chunks == 1:
            shares = (sum(cost),)
        elif len(cost) == chunks:
            shares = cost
        else:
            raise ArgumentValueError(f"{name} of rank {rank} has {counted(len(cost), 'number')} for "
                                     f"{counted(chunks, 'chunk')}")
        for stage, share in zip(stages_of_rank(rank, ranks, chunks), shares):
            stages[stage] = share
    return tuple(stages)
