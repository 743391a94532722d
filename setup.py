"""How mindspore_zb is built and what it needs."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent


def read_version() -> str:
    """The version as written in the package, read as text: importing it here would need MindSpore."""
    text = (HERE / "mindspore_zb" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise RuntimeError('mindspore_zb/_version.py holds no line: __version__ = "..."')
    return found.group(1)


VIZ = ["matplotlib", "rich"]

setup(
    name="mindspore-zb",
    version=read_version(),
    description="Splits the backward pass of MindSpore computations into input and weight gradients",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["mindspore_zb*"]),
    package_data={"mindspore_zb": ["py.typed"]},
    python_requires=">=3.9,<3.13",
    install_requires=[
        # The PyNative engine drives MindSpore's own grad nodes, which no other release offers in this form.
        "mindspore>=2.9,<2.11",
        # MindSpore's extension modules refuse numpy 2 at run time, though its metadata allows it.
        "numpy<2",
    ],
    entry_points={"console_scripts": ["mindspore_zb=mindspore_zb.cli:main"]},
    extras_require={
        "test": ["pytest", "hypothesis", "pytest-timeout", "pytest-xdist", *VIZ],
        "viz": VIZ,
    },
)
