"""Blueprints in a directory, for other processes: a file for each call, by its fingerprint.

A file is a line that says what it is, a line with the SHA-256 of the rest, and the rest: JSON, compressed. Nothing in
it is code of Python. It is as trustworthy as its directory: damaged files are told from good ones, forged ones are not.
"""

import base64
import contextlib
import hashlib
import json
import os
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mindspore_zb.engines.graph.blueprint import Blueprint, Layout, PieceCode, RunCode
from mindspore_zb.engines.graph.mindir import dtypes_by_text
from mindspore_zb.engines.graph.outputs import NestedResult
from mindspore_zb.engines.graph.partition import GroupLayout
from mindspore_zb.engines.graph.program import Program, load_program

HEAD = b"mindspore_zb pieces 4\n"
SUFFIX = ".pieces"


class CacheWarning(UserWarning):
    """The cache directory cannot be used, or a file in it; calls are compiled as if there were none."""


def stored_program(directory: str, name: str, parameters: Sequence[Any]) -> Optional[Program]:
    """The program of this name, or None; of a file that cannot be used a :class:`CacheWarning` says why.

    Args:
        directory: the directory.
        name: the fingerprint of the call.
        parameters: every Parameter that ``fn`` may read.
    """
    path = Path(directory) / (name + SUFFIX)
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # to read a pipe would wait for ever
            raise OSError(0, "No file")
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _warn(str(path), f"{path} cannot be read ({error.strerror}): compiling anew")
        return None
    try:
        return load_program(decode(content, name), parameters)
    except Exception as error:  # whatever MindSpore raises of what it cannot load
        _warn(str(path), f"{path} is damaged ({error}): compiling anew")
        return None


def keep_blueprint(directory: str, name: str, blueprint: Blueprint) -> None:
    """Write a blueprint, at once whole or not at all; a :class:`CacheWarning` says why if it cannot be written.

    One that holds constants without a text form is not kept.
    """
    try:
        content = encode(blueprint, name)
    except TypeError:
        return
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=".writing", dir=directory)
    except OSError as error:
        _warn(directory, f"the cache directory {directory} cannot be written ({error.strerror}): nothing is kept there")
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, Path(directory) / (name + SUFFIX))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        _warn(directory, f"the cache directory {directory} cannot be written ({error.strerror}): nothing is kept there")


_TOLD: Set[str] = set()


def _warn(about: str, message: str) -> None:
    if about not in _TOLD:
        _TOLD.add(about)
        warnings.warn(message, CacheWarning, stacklevel=3)


# --- to bytes ---------------------------------------------------------------------------------------------------------

def encode(blueprint: Blueprint, name: str) -> bytes:
    """The content of the file of this name.

    Raises:
        TypeError: it holds a constant that has no text form.
    """
    layout = blueprint.layout
    data = {"name": name, "inputs": layout.inputs, "sens": layout.sens, "places": layout.places,
            "constants": {value: _tensor_data(tensor) for value, tensor in layout.constants.items()},
            "outs": layout.outs, "out_metas": _metas_data(layout.out_metas), "dxs": layout.dxs,
            "differentiable": layout.differentiable, "main": _nested_data(layout.main),
            "aux": None if layout.aux is None else _nested_data(layout.aux),
            "groups": [vars(group) for group in layout.groups],
            "saved_bytes": layout.saved_bytes, "unsaved_bytes": layout.unsaved_bytes,
            "forward": _code_data(blueprint.forward), "dx": _code_data(blueprint.dx),
            "dw": [_code_data(code) for code in blueprint.dw]}
    body = zlib.compress(json.dumps(data).encode())
    return HEAD + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _code_data(code: PieceCode) -> Dict[str, Any]:
    return {**vars(code), "runs": [{**vars(run), "data": base64.b64encode(run.data).decode(),
                                    "metas": _metas_data(run.metas)} for run in code.runs]}


def _metas_data(metas: Any) -> List[Any]:
    return [(shape, str(dtype)) for shape, dtype in metas]


def _tensor_data(tensor: Tensor) -> Any:
    if tensor.dtype == ms.bfloat16:
        raise TypeError("numpy has no bfloat16")
    array = tensor.asnumpy()
    return array.shape, array.dtype.str, base64.b64encode(array.tobytes()).decode()


def _nested_data(nested: NestedResult) -> Any:
    description, constants = nested.arguments()
    if any(type(constant) not in (type(None), bool, int, float, str) for constant in constants):
        raise TypeError("a result that is no plain constant")
    return description, constants


# --- from bytes -------------------------------------------------------------------------------------------------------

def decode(content: bytes, name: str) -> Blueprint:
    """The blueprint in the content of the file of this name.

    Raises:
        ValueError, KeyError, TypeError, IndexError, zlib.error: it is damaged.
    """
    if not content.startswith(HEAD):
        raise ValueError("it does not begin as a file of this kind and version")
    digest, _, body = content[len(HEAD):].partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("its checksum does not fit")
    data = json.loads(zlib.decompress(body))
    if data["name"] != name:
        raise ValueError("it is that of another call")
    dtypes = dtypes_by_text()

    def metas(entries: Any) -> Any:
        return tuple((tuple(shape), dtypes[dtype]) for shape, dtype in entries)

    def run(entry: Any) -> RunCode:
        return RunCode(base64.b64decode(entry["data"]), tuple(entry["reads"]), metas(entry["metas"]),
                       tuple(entry["gives"]), tuple(entry["last"]))

    def code(entry: Any) -> PieceCode:
        return PieceCode(tuple(map(run, entry["runs"])), tuple(entry["reads"]), tuple(entry["readers"]),
                         tuple(entry["gives"]), tuple(entry["writes"]))

    layout = Layout(
        inputs=tuple(data["inputs"]), sens=tuple(data["sens"]), places=data["places"],
        constants={value: _tensor(*entry) for value, entry in data["constants"].items()},
        outs=tuple(data["outs"]), out_metas=metas(data["out_metas"]), dxs=tuple(data["dxs"]),
        differentiable=tuple(data["differentiable"]), main=NestedResult(*data["main"]),
        aux=None if data["aux"] is None else NestedResult(*data["aux"]),
        groups=tuple(GroupLayout(**{key: tuple(value) for key, value in group.items()}) for group in data["groups"]),
        saved_bytes=data["saved_bytes"], unsaved_bytes=data["unsaved_bytes"])
    return Blueprint(layout, code(data["forward"]), code(data["dx"]), tuple(map(code, data["dw"])))


def _tensor(shape: Any, dtype: str, text: str) -> Tensor:
    return Tensor(np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape).copy())
