"""All kinds of schedules by name."""

from typing import Any

from mindspore_zb.checks import check_count, check_text
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.schedule.hand_made import GENERATORS
from mindspore_zb.schedule.programs import Schedule
from mindspore_zb.schedule.searching import search
from mindspore_zb.schedule.sizes import check_size

NAMES = (*GENERATORS, "auto")
"""The names that :func:`generate` knows."""
OPTIONS = ("costs", "memory_limit", "chunks", "progress")
"""What "auto" takes besides."""


def generate(name: str, *, stages: int, microbatches: int, weight_parts: int = 1, **options: Any) -> Schedule:
    """Make a schedule.

    Args:
        name: "1f1b", "zb-h1", "zb-h2", "zb-v", or "auto" for the best that
            :func:`~mindspore_zb.schedule.searching.search` finds.
        stages: p, the number of ranks. "zb-v" has two stages on each, all others one.
        microbatches: m, any number from 1.
        weight_parts: in how many actions each W is cut.
        options: for "auto" only: ``costs``, ``memory_limit``, ``chunks`` and ``progress``, as the search takes them.

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument cannot be used, or the schedule would have more computations
            than :mod:`~mindspore_zb.schedule.sizes` allows.
        ScheduleError: "auto" with a memory limit that nothing fits.

    Source: arXiv 2401.10241, sections 2 and 6.

    >>> schedule = generate("zb-v", stages=2, microbatches=1)
    >>> [" ".join(map(str, schedule.computations(rank))) for rank in range(2)]
    ['0F0 3F0 3B0 3W0 0B0 0W0', '1F0 2F0 2B0 2W0 1B0 1W0']
    """
    if check_text("name", name) not in NAMES:
        raise ArgumentValueError(f"name is one of {', '.join(NAMES)}, not {name!r}")
    stages, microbatches = check_count("stages", stages), check_count("microbatches", microbatches)
    weight_parts = check_count("weight_parts", weight_parts)
    if name != "auto":
        if options:
            raise ArgumentTypeError(f"{', '.join(options)}: only 'auto' has such options, not {name!r}")
        check_size(stages, microbatches, 2 if name == "zb-v" else 1, weight_parts)
        return GENERATORS[name](stages, microbatches, weight_parts)
    unknown = [option for option in options if option not in OPTIONS]
    if unknown:
        raise ArgumentTypeError(f"{', '.join(unknown)}: 'auto' has no such options, only {', '.join(OPTIONS)}")
    if "costs" not in options:
        raise ArgumentTypeError("'auto' searches by costs: give costs=Costs(...)")
    return search(stages=stages, microbatches=microbatches, weight_parts=weight_parts,
                  **{"memory_limit": None, **options})
