"""The longest way through a schedule and what it holds, found naively: from the meaning of F, B and W alone.

Knows nothing of sends and receives: they are worked out here again from the computations.
"""


def place(stage, ranks):
    """The rank of a stage, read off a list of the V."""
    there_and_back = list(range(ranks)) + list(range(ranks - 1, -1, -1))
    return there_and_back[stage % (2 * ranks)]


def duration(action, costs):
    """``costs`` are lists by stage: ``{"f": [...], ...}``."""
    return costs[action.kind.lower()][action.stage] / action.parts


def edges(schedule, costs):
    """For each computation those it waits for, with the delay in between."""
    ranks = schedule.ranks
    programs = [[action for action in actions if action.kind in ("F", "B", "W")] for actions in schedule.actions]
    everything = [action for actions in programs for action in actions]
    waits = {action: [] for action in everything}
    for actions in programs:
        for earlier, later in zip(actions, actions[1:]):
            waits[later].append((earlier, 0.0))
    for later in everything:
        for earlier in everything:
            if earlier.microbatch != later.microbatch:
                continue
            one, other = place(earlier.stage, ranks), place(later.stage, ranks)
            hop = costs["comm"][min(one, other)] if one != other else 0.0
            if earlier.kind == later.kind == "F" and later.stage == earlier.stage + 1:
                waits[later].append((earlier, hop))
            gives_dx = "W" if schedule.name == "1f1b" else "B"
            if later.kind == "B" and earlier.kind == gives_dx and later.stage == earlier.stage - 1:
                waits[later].append((earlier, hop))
            if earlier.stage == later.stage and (earlier.kind, later.kind) in (("F", "B"), ("B", "W")):
                waits[later].append((earlier, 0.0))
    return waits


def starts(schedule, costs):
    """The earliest start of each computation: raised until none needs to be."""
    waits = edges(schedule, costs)
    start = dict.fromkeys(waits, 0.0)
    changed = True
    while changed:
        changed = False
        for action, before in waits.items():
            earliest = max([start[other] + duration(other, costs) + delay for other, delay in before], default=0.0)
            if earliest > start[action]:
                start[action] = earliest
                changed = True
    return start


def spans(schedule, costs):
    """For each rank the time from its first start to its last end."""
    start = starts(schedule, costs)
    result = []
    for rank in range(schedule.ranks):
        mine = [action for action in start if place(action.stage, schedule.ranks) == rank]
        result.append(max(start[action] + duration(action, costs) for action in mine)
                      - min(start[action] for action in mine))
    return result


def memory(schedule, costs):
    """For each rank what it holds during each action: at every step all micro-batches of all stages are looked at."""
    result = []
    for actions in schedule.actions:
        result.append([])
        for step in range(len(actions)):
            begun, ended = actions[:step + 1], actions[:step]
            held = 0.0
            for stage in sorted({action.stage for action in actions}):
                for microbatch in range(schedule.microbatches):
                    weights = sum(1 / action.parts for action in ended
                                  if (action.stage, action.kind, action.microbatch) == (stage, "W", microbatch))
                    if any((action.stage, action.kind, action.microbatch) == (stage, "B", microbatch)
                           for action in ended):
                        held += costs["m_w"][stage] * (1 - weights)
                    elif any((action.stage, action.kind, action.microbatch) == (stage, "F", microbatch)
                             for action in begun):
                        held += costs["m_b"][stage]
            result[-1].append(held)
    return result


def orders(microbatches):
    """Every order in which one stage can run all F, B and W, as text of kinds; each kind takes them in order."""
    found = [""]
    for _ in range(3 * microbatches):
        found = [order + kind for order in found for kind, before in (("F", None), ("B", "F"), ("W", "B"))
                 if order.count(kind) < (microbatches if before is None else order.count(before))]
    return found
