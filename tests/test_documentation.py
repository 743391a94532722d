"""What README.md and the docstrings show runs, and README.md has no figure that no script printed."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = ["api", "commands.profile", "commands.schedule", "decorator", "draw.spans", "draw.trace", "explanation", "memory.ledger",
           "schedule_table", "settings", "structure", "terminal"]


def test_python_blocks_of_the_readme_run_in_order():
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) >= 2
    namespace = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)  # pylint: disable=exec-used
    assert len(namespace["dw"]) == len(namespace["stage"].trainable_params())


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"mindspore_zb.{name}")
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.attempted and not results.failed


def test_the_readme_names_files_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in re.findall(r"\b(?:scripts|examples|st|tests|mindspore_zb)/[\w/.]*\w", text):
        assert (ROOT / path).exists(), path
