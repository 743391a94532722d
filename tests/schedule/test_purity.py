"""Schedules are pure Python: no framework, only the standard library, and their examples run."""

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import mindspore_zb.schedule

FOLDER = Path(mindspore_zb.schedule.__file__).parent
MODULES = sorted(FOLDER.glob("*.py"))
STANDARD = {"collections", "csv", "dataclasses", "functools", "importlib", "io", "math", "os", "re", "typing"}


def test_using_schedules_does_not_import_mindspore_or_numpy():
    script = ("import sys; from mindspore_zb.schedule import *; "
              "simulate(generate('auto', stages=2, microbatches=2, costs=Costs()), Costs()); "
              "print([name for name in sys.modules if name.split('.')[0] in ('mindspore', 'numpy', 'matplotlib')])")
    done = subprocess.run([sys.executable, "-c", script], cwd=FOLDER.parent.parent, capture_output=True, text=True,
                          timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_sources_import_only_the_standard_library_and_pure_modules(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))):
        names = ([alias.name for alias in node.names] if isinstance(node, ast.Import)
                 else [node.module] if isinstance(node, ast.ImportFrom) else [])
        for name in names:
            assert name in STANDARD or name.startswith(("mindspore_zb.schedule.", "mindspore_zb.errors", "mindspore_zb.lazy", "mindspore_zb.checks",
                                                                "mindspore_zb.counted")), name


def test_examples_in_docstrings_run():
    tried = {}
    for path in MODULES:
        name = "mindspore_zb.schedule" + ("" if path.stem == "__init__" else f".{path.stem}")
        failed, tried[path.stem] = doctest.testmod(importlib.import_module(name))
        assert not failed, name
    assert {stem for stem, count in tried.items() if count} >= {
        "__init__", "actions", "catalogue", "costs", "files", "programs", "searching", "simulation", "sizes", "validation"}


def test_public_names_exist_and_have_docstrings():
    assert dir(mindspore_zb.schedule)
    for name in mindspore_zb.schedule.__all__:
        assert getattr(mindspore_zb.schedule, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mindspore_zb.schedule.nothing


@pytest.mark.parametrize("name", mindspore_zb.schedule.__all__)
def test_no_module_hides_behind_a_public_name(name):
    assert name not in {path.stem for path in MODULES}
