"""Pipeline schedules as data: made, checked, simulated and searched for. Pure Python, no framework.

Words used throughout
---------------------
rank
    One process of the pipeline. There are p of them.
stage
    A part of the model. With v chunks per rank there are ``p * v`` stages, numbered in the order of the forward.
chunk
    The stages of one rank, in V shape: chunk 0 goes down the ranks, chunk 1 comes back up, and so on.
F, B, W
    Of one stage and one micro-batch: the forward; dx, the gradient of the input that the stage before waits for; dw,
    the gradients of the weights that nobody waits for.
makespan
    The longest span of a rank, from its first computation to the end of its last one.
bubble rate
    The share of the makespan in which the busiest rank has nothing to compute.

Sources: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241 (sections 2, 3 and 6).

>>> from mindspore_zb.schedule import Costs, generate, simulate, validate
>>> schedule = generate("zb-h1", stages=4, microbatches=8)
>>> validate(schedule)
>>> simulate(schedule, Costs(f=1, b=1, w=1)).makespan
27.0
"""

from typing import TYPE_CHECKING

from mindspore_zb.lazy import lazy_names

if TYPE_CHECKING:
    from mindspore_zb.errors import ScheduleError
    from mindspore_zb.schedule.actions import Action
    from mindspore_zb.schedule.catalogue import NAMES, generate
    from mindspore_zb.schedule.costs import Costs
    from mindspore_zb.schedule.files import load_csv, parse_schedule, save_csv
    from mindspore_zb.schedule.programs import Schedule
    from mindspore_zb.schedule.searching import search
    from mindspore_zb.schedule.simulation import Simulation, TimedAction, simulate
    from mindspore_zb.schedule.validation import validate

__all__ = ["Action", "Costs", "NAMES", "Schedule", "ScheduleError", "Simulation", "TimedAction", "generate", "load_csv",
           "parse_schedule", "save_csv", "search", "simulate", "validate"]

_MODULES = {"Action": "schedule.actions", "Costs": "schedule.costs", "NAMES": "schedule.catalogue",
            "Schedule": "schedule.programs", "ScheduleError": "errors", "Simulation": "schedule.simulation",
            "TimedAction": "schedule.simulation", "generate": "schedule.catalogue", "load_csv": "schedule.files",
            "parse_schedule": "schedule.files", "save_csv": "schedule.files", "search": "schedule.searching",
            "simulate": "schedule.simulation", "validate": "schedule.validation"}

__getattr__, __dir__ = lazy_names(globals(), _MODULES)
