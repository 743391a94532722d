"""Who imports what in the pipeline, and examples in docstrings."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

import mindspore_zb.pipeline

FOLDER = Path(mindspore_zb.pipeline.__file__).parent
MODULES = sorted(FOLDER.glob("*.py"))
DISTRIBUTED = ("mindspore.communication", "mindspore.ops.function.comm_func", "mindspore.mint.distributed",
               "mindspore.ops.communication", "mindspore.parallel")


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_one_module_communicates():
    for path in FOLDER.parent.rglob("*.py"):
        found = [name for name in imports_of(path) if name.startswith(DISTRIBUTED)]
        assert bool(found) == (path == FOLDER / "communication.py"), path


def test_watching_and_results_need_no_framework():
    for name in ("watching", "wording", "results"):
        assert not [found for found in imports_of(FOLDER / f"{name}.py") if found.split(".")[0] == "mindspore"], name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_nothing_of_the_engines_is_used(path):
    assert not [name for name in imports_of(path) if name.startswith("mindspore_zb.engines")]


@pytest.mark.parametrize("name", ["", "in_one_process", "measuring", "metas", "microbatches", "results", "runner",
                                  "stages", "wording"])
def test_examples_in_docstrings(name):
    module = importlib.import_module("mindspore_zb.pipeline" + (f".{name}" if name else ""))
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.attempted and not results.failed


def test_public_names_exist_and_have_docstrings():
    for name in mindspore_zb.pipeline.__all__:
        assert getattr(mindspore_zb.pipeline, name).__doc__, name
        assert name not in {path.stem for path in MODULES}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mindspore_zb.pipeline.nothing
