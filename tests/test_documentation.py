"""What README.md and the docstrings show runs, and README.md has no figure that no script printed."""

import doctest
import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = ["api", "commands.parity", "commands.schedule", "decorator",
           "draw.spans", "draw.trace", "engines.graph.callables", "engines.graph.checking", "engines.graph.frozen_state",
           "engines.graph.partition",
           "engines.graph.reached", "engines.graph.recompute", "engines.graph.refusals", "explanation", "factories",
           "health", "memory.guard", "memory.holders", "memory.leaks", "memory.ledger", "memory.origin",
           "memory.reading", "parity.compare", "parity.report", "parity.state", "schedule_table", "settings",
           "structure", "terminal"]


def test_python_blocks_of_the_readme_run_in_order(tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) >= 2
    path = tmp_path / "readme.py"  # a file, as MindSpore reads the source of what it compiles
    path.write_text("\n".join(blocks), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("readme", path)
    readme = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "readme", readme)
    spec.loader.exec_module(readme)
    assert len(readme.dw) == len(readme.stage.trainable_params()) and readme.compiled.__wrapped__


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"mindspore_zb.{name}")
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.attempted and not results.failed


def test_the_readme_names_files_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in re.findall(r"\b(?:scripts|examples|st|tests|mindspore_zb)/[\w/.]*\w", text):
        assert (ROOT / path).exists(), path
