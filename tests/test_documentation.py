"""What README.md and the docstrings show runs, and README.md has no figure that no script printed."""

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = [path.relative_to(ROOT).with_suffix("").parts for path in sorted((ROOT / "mindspore_zb").rglob("*.py"))
           if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)]
"""All that show examples."""


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


@pytest.mark.parametrize("name", [".".join(parts).replace(".__init__", "") for parts in MODULES])
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.attempted and not results.failed


def test_the_readme_names_files_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in re.findall(r"\b(?:scripts|examples|st|tests|mindspore_zb)/[\w/.]*\w", text):
        assert (ROOT / path).exists(), path


def without_comments(language: str, block: str) -> str:
    """``block`` as a translation must leave it: code without comments, of a diagram the number of its lines."""
    return re.sub(r"#.*", "", block) if language else str(block.count("\n"))


def what_a_translation_keeps(text: str) -> dict:
    """Everything in a README that does not depend on its language."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
    prose = fence.sub("", text)
    headings = re.findall(r"^(#+) (.+)$", prose, re.M)
    anchors = ["#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for _, title in headings]
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    rows = re.findall(r"^\|.*", prose, re.M)
    sections = re.split(r"^#+ .+$", prose, flags=re.M)
    return {
        "headings": [len(marks) for marks, _ in headings],
        "blocks": [(language, without_comments(language, block)) for language, block in fence.findall(text)],
        "links": [anchors.index(link) if link.startswith("#") else link.replace("_CN", "") for link in links],
        "rows": [row.count("|") for row in rows],
        "figures in tables": [numbers(row) for row in rows],
        "items": [len(re.findall(r"^(?:\*|\d+\.) ", section, re.M)) for section in sections],
        "figures": [numbers(section) for section in sections],
        "names": [{" ".join(name.split()) for name in re.findall(r"`([^`]+)`", section)} for section in sections],
    }


def numbers(text: str) -> list:
    """Sorted, as languages differ in their order of words."""
    return sorted(re.findall(r"[0-9]+(?:[.,][0-9]+)*", text))


def test_both_readmes_have_the_same_content():
    english, chinese = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README_CN.md")]
    assert english.splitlines()[2] == "[中文](README_CN.md)" and chinese.splitlines()[2] == "[English](README.md)"
    assert what_a_translation_keeps(english) == what_a_translation_keeps(chinese)


@pytest.mark.parametrize("kind, whole, damaged", [
    ("headings", "\n### ", "\n## "),
    ("blocks", "sens = ops.ones_like(out)", "sens = ops.zeros_like(out)"),
    ("blocks", "bash scripts/test.sh ", "bash scripts/tests.sh "),
    ("links", "](st/README.md)", ""),
    ("rows", "\n| MLP gelu", "\nMLP gelu"),
    ("figures in tables", "| 22.02 |", "| 22.03 |"),
    ("items", "\n* `nn.Dropout`", "\n`nn.Dropout`"),
    ("figures", " 27.6 ms", " 27.7 ms"),
    ("names", "`CacheWarning`", "CacheWarning"),
])
def test_a_difference_between_the_readmes_is_noticed(kind, whole, damaged):
    text = (ROOT / "README_CN.md").read_text(encoding="utf-8")
    assert whole in text
    kept, changed = what_a_translation_keeps(text), what_a_translation_keeps(text.replace(whole, damaged, 1))
    assert kept[kind] != changed[kind]


COMMANDS = re.findall(r"^python (-m mindspore_zb .*?)(?: +#.*)?$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_readme_run(line, tmp_path):
    """On a factory of the name that the README uses; both languages show the same commands."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "my_module.py").write_text(
        "from mindspore import nn, ops\n\n\ndef make():\n"
        "    net = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 4))\n"
        "    return net, (ops.ones((2, 8)),), net.trainable_params()\n\n\nmake_stage = make\n", encoding="utf-8")
    done = subprocess.run([sys.executable, *line.split()], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0 and done.stdout, done.stderr
    for option in ("--picture", "--trace"):
        if option in line.split():
            assert (tmp_path / line.split()[line.split().index(option) + 1]).stat().st_size > 1000


def test_the_readme_shows_every_command():
    assert {line.split()[2] for line in COMMANDS} == {"doctor", "explain", "memory", "parity", "profile", "schedule"}
