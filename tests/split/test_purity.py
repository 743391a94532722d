"""The split is pure Python: no framework, only the standard library, and its examples run."""

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import mindspore_zb.split

FOLDER = Path(mindspore_zb.split.__file__).parent
MODULES = sorted(FOLDER.glob("*.py"))
STANDARD = {"collections", "dataclasses", "enum", "functools", "heapq", "itertools", "typing"}


def test_importing_the_split_does_not_import_mindspore():
    script = ("import sys; import mindspore_zb.split; "
              "print([name for name in sys.modules if name.split('.')[0] == 'mindspore'])")
    done = subprocess.run([sys.executable, "-c", script], cwd=FOLDER.parent.parent, capture_output=True, text=True,
                          timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def imported_names(tree):
    """The modules that a source imports, anywhere in it; relative imports begin with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "import_module",
                                                                       "importlib.import_module"):
            yield "a computed name"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_sources_import_only_the_standard_library_the_split_and_the_errors(path):
    for name in imported_names(ast.parse(path.read_text(encoding="utf-8"))):
        assert (name.split(".")[0] in STANDARD
                or name.startswith(("mindspore_zb.split.", "mindspore_zb.errors"))), name


@pytest.mark.parametrize("source, name", [
    ("import mindspore as ms", "mindspore"), ("def late():\n    from mindspore import ops", "mindspore"),
    ("from ..engines import pynative", "..engines"), ("__import__('mindspore')", "a computed name"),
    ("importlib.import_module('mindspore')", "a computed name"),
])
def test_forbidden_imports_are_seen(source, name):
    assert list(imported_names(ast.parse(source))) == [name]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_sources_are_python_3_9(path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_examples_in_docstrings_run():
    tried = {}
    for path in MODULES:
        name = "mindspore_zb.split" + ("" if path.stem == "__init__" else f".{path.stem}")
        failed, tried[path.stem] = doctest.testmod(importlib.import_module(name))
        assert not failed, name
    assert {stem for stem, count in tried.items() if count} >= {"plan", "passes", "check"}


def test_public_names_exist_and_have_docstrings():
    for name in mindspore_zb.split.__all__:
        assert getattr(mindspore_zb.split, name).__doc__, name
