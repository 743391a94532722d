"""The comparison of all schedules."""

import pytest

from mindspore_zb.errors import ScheduleError
from mindspore_zb.schedule import Costs, generate
from mindspore_zb.schedule_table import HEADER, compare


def test_the_published_row():
    comparison = compare(Costs(18.522, 18.086, 9.337, 0.601), 8, 24)
    rates = {row[0]: row[2] for row in comparison.rows()}
    assert (rates["1f1b"], rates["zb-h1"], rates["zb-h2"]) == ("0.2431", "0.1585", "0.1083")
    assert float(rates["auto-1x"]) <= 0.1585 and float(rates["auto-2x"]) <= 0.05
    assert comparison.labels() == ["1f1b", "zb-h1", "zb-h2", "zb-v", "auto-1x", "auto-2x"]
    assert comparison.best() == "auto-2x"
    assert all(len(row) == len(HEADER) for row in comparison.rows())


def test_what_does_not_fit_is_marked_and_is_not_the_best():
    comparison = compare(Costs(1, 1, 1), 4, 8, memory_limit=4, chunks=1)
    assert {row[0]: row[-1] for row in comparison.rows()} == {"1f1b": "yes", "zb-h1": "yes", "zb-h2": "no",
                                                              "auto": "yes"}
    assert comparison.best() == "zb-h1"
    assert comparison.run("zb-h2").makespan == 24


def test_others_are_compared_too():
    comparison = compare(Costs(), 2, 4, others=[("mine", generate("zb-h1", stages=2, microbatches=4))])
    assert comparison.rows()[-1][1:] == comparison.rows()[1][1:]


def test_unknown_label():
    with pytest.raises(ScheduleError, match="there is no schedule 'gpipe' here; there are 1f1b, zb-h1"):
        compare(Costs(), 2, 4).run("gpipe")
