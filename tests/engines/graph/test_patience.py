"""Long compilations show that they go on, short ones are silent."""

import time

from mindspore_zb.engines.graph import patience
from mindspore_zb.engines.graph.patience import telling_that_it_goes_on


def test_a_long_one_tells(capsys, monkeypatch):
    monkeypatch.setattr(patience, "FIRST", 0.05)
    monkeypatch.setattr(patience, "EVERY", 0.05)
    with telling_that_it_goes_on("Net"):
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2 and all(line.startswith("mindspore_zb: compiling Net since ") for line in lines)


def test_a_short_one_is_silent(capsys):
    with telling_that_it_goes_on("Net"):
        pass
    assert capsys.readouterr().err == ""
