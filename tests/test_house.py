"""The shape of the house: imports point one way, modules and functions stay small, private names stay in their place."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mindspore_zb"
MODULES = sorted(PACKAGE.rglob("*.py"))
NATIVE = ("native.py", "native_recompute.py")
PRIVATE = {"_c_expression", "_pynative_executor", "_grad_node", "_requires_grad", "_set_next_edge", "_output_index",
           "_GradientEdge"}


def imports_of(path):
    """The modules that a file imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def of_package(part):
    return [path for path in MODULES if path.relative_to(PACKAGE).parts[0] == part]


@pytest.mark.parametrize("path", of_package("engines"), ids=lambda path: path.stem)
def test_engines_know_nothing_above_them(path):
    above = ("mindspore_zb.api", "mindspore_zb.grad_function", "mindspore_zb.decorator", "mindspore_zb.memory",
             "mindspore_zb.draw", "mindspore_zb.explanation")
    assert not [name for name in imports_of(path) if name.startswith(above)]


@pytest.mark.parametrize("path", of_package("draw"), ids=lambda path: path.stem)
def test_drawing_reads_plain_data(path):
    assert not [name for name in imports_of(path) if name == "mindspore" or name.startswith("mindspore.")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_size_of_modules_and_functions(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    assert max((len(line) for line in text.splitlines()), default=0) <= 120
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno <= 60, node.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_names_the_device(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in ("CPU", "Ascend", "GPU"):
            pytest.fail(f"{path.name} names {node.value}")


@pytest.mark.parametrize("path", [path for path in of_package("engines") if path.name not in NATIVE],
                         ids=lambda path: path.stem)
def test_private_names_of_mindspore_stay_in_their_modules(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
        assert name not in PRIVATE, f"{path.name}:{node.lineno} uses {name}"
