"""What the tests of compiled programs look at."""

import pytest

from mindspore_zb.engines.graph import blueprint


@pytest.fixture
def planned(monkeypatch):
    """The plans of all programs that are compiled."""
    plans, plan_runs = [], blueprint.plan_runs

    def looking(joint, partition):
        plans.append(plan_runs(joint, partition))
        return plans[-1]

    monkeypatch.setattr(blueprint, "plan_runs", looking)
    return plans
