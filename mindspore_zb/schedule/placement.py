"""Which rank holds which stage: chunks in V shape."""

from typing import Tuple


def rank_of_stage(stage: int, ranks: int) -> int:
    """Even chunks go down the ranks, odd ones come back up, so that the turns need no communication.

    Source: arXiv 2401.10241, section 6.

    >>> [rank_of_stage(stage, 3) for stage in range(6)]
    [0, 1, 2, 2, 1, 0]
    """
    chunk, place = divmod(stage, ranks)
    return ranks - 1 - place if chunk % 2 else place


def stages_of_rank(rank: int, ranks: int, chunks: int) -> Tuple[int, ...]:
    """The stages of a rank, by chunk.

    >>> stages_of_rank(0, 3, 2)
    (0, 5)
    """
    return tuple(chunk * ranks + (ranks - 1 - rank if chunk % 2 else rank) for chunk in range(chunks))
