"""MindSpore's private compiler names, each behind a function of ours; everything else of this engine builds on it.

The route: the exporter compiles a Cell to MindIR, a protobuf; pieces of it are loaded again, compiled by
``nn.GraphCell``, and run by calling the executor directly, which costs the host much less than calling the Cell.
"""

import contextlib
import gc
import itertools
import os
import tempfile
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import mindspore as ms
from mindspore import nn

from mindspore_zb.errors import UnsupportedError, UnsupportedVersionError

try:  # 2.10
    from mindspore.graph import api as _compiler
except ImportError:  # 2.9
    from mindspore.common import api as _compiler

try:
    import mindspore.train.mind_ir_pb2 as mindir
    from mindspore._c_expression import load_mindir as _load_mindir
    from mindspore.ops.composite.base import _Grad
    _EXECUTOR = _compiler._cell_graph_executor
    _real_phase = _compiler._real_phase
    _RUN = _EXECUTOR._graph_executor
except (ImportError, AttributeError) as error:
    raise UnsupportedVersionError(
        f"mindspore {ms.__version__} lacks what the graph engine needs ({error}): install mindspore 2.9 or 2.10") \
        from error

_PHASES = itertools.count()
_FROZEN_BY_PYTHON = 1000
"""Python 3.12 starts with some hundreds of frozen objects; who freezes a program freezes tens of thousands."""
_LOADED = "graph_load_from_mindir"  # the phase under which GraphCell keeps what it was given


def missing_features() -> List[str]:
    """The private features of MindSpore that this engine needs and that are not there, by name."""
    needed = ((_EXECUTOR, "_cell_graph_executor", ("compile", "_get_func_graph_proto", "del_net_res")),
              (_RUN, "_graph_executor", ("__call__", "updata_param_node_default_input")),
              (mindir, "mind_ir_pb2", ("ModelProto",)), (nn, "nn", ("GraphCell",)),
              (nn.Cell, "nn.Cell", ("_add_attr", "compile")))
    return [f"{owner}.{name}" for thing, owner, names in needed for name in names if not hasattr(thing, name)]


def gradient_of(by_position: bool, by_weights: bool) -> Any:
    """The operator that differentiates a Cell by some of its inputs, by weights or by both, from given sens."""
    return _Grad(get_by_list=by_weights, sens_param=True, get_by_position=by_position)


def export_graph(cell: nn.Cell, arguments: Sequence[Any]) -> Any:
    """Compile ``cell`` for these arguments and return the graph as a ``ModelProto`` without the weights' data."""
    phase = f"export.mindir.zero_bubble.{next(_PHASES)}"
    with _compiling():
        graph_id, _ = _EXECUTOR.compile(cell, *arguments, phase=phase, do_convert=False)
        try:
            stream = _EXECUTOR._get_func_graph_proto(cell, graph_id, "mind_ir", incremental=False)
        finally:
            _EXECUTOR.del_net_res(cell, {graph_id})
    model = mindir.ModelProto()
    model.ParseFromString(stream)
    return model


class LoadedGraph:
    """A graph that was loaded from MindIR, compiled for the device, and can be run.

    Args:
        data: a serialised ``ModelProto``, checked: the loader ends the process on a malformed one.
        arguments: tensors of the shapes and dtypes that it takes; their values do not matter.
        written: the Parameters that the graph writes, by the name that the proto gives them; all other values are
            arguments.

    Raises:
        Exception: whatever MindSpore raises if the device has no kernel for an operation.
    """

    def __init__(self, data: bytes, arguments: Sequence[Any], written: Optional[Dict[str, Any]] = None):
        graph = _load_mindir(_any_file(), dec_key=b"0" * 16, key_len=16, dec_mode="Customized",
                             decrypt=lambda _path, _key: data)
        if graph is None:
            raise UnsupportedError("MindSpore cannot load a graph that it exported itself")
        self._cell = cell = nn.GraphCell(graph, params_init=written or None)
        cell.phase = _LOADED
        cell._add_attr(_LOADED, cell.graph)
        with _compiling():
            cell.compile(*arguments)
        self._phase = _real_phase(cell.phase, cell)
        if written:  # params_init copied their data; from now on the graph reads and writes themselves
            _RUN.updata_param_node_default_input(self._phase, written)

    def __call__(self, arguments: Tuple[Any, ...]) -> Tuple[Any, ...]:
        """Run it. The arguments must have the shapes and dtypes it was compiled for: nothing checks that here."""
        return _RUN(arguments, self._phase)


@contextlib.contextmanager
def unchanged(cells: Iterable[nn.Cell]) -> Iterator[None]:
    """Put back what a compilation writes on these Cells: scope, phase, and whatever else it may be."""
    before = [(cell, dict(vars(cell))) for cell in cells]
    try:
        yield
    finally:
        for cell, attributes in before:
            vars(cell).update(attributes)
            for name in [name for name in vars(cell) if name not in attributes]:
                del vars(cell)[name]


@contextlib.contextmanager
def unique_names(parameters: Iterable[Any]) -> Iterator[Dict[str, Any]]:
    """Give each Parameter a name that no other has, and its own back afterwards; yields the Parameters by these names.

    MindSpore refuses to compile two Parameters of one name, and it is MindSpore that gives such names: the first
    eager call of a Cell renames the Parameters of what lies in SequentialCells.
    """
    before = {id(parameter): (parameter, parameter.name) for parameter in parameters}
    named = {}
    try:
        for number, (parameter, name) in enumerate(before.values()):
            parameter.name = f"parameter{number}.{name}"
            named[parameter.name] = parameter
        yield named
    finally:
        for parameter, name in before.values():
            parameter.name = name


def contiguous(tensor: Any) -> Any:
    """The tensor itself, or a copy of a view: a compiled graph reads the storage as it lies."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


_FILE: List[str] = []


def _any_file() -> str:
    """The loader wants the path of a file, though the data comes from elsewhere."""
    if not _FILE or not os.path.exists(_FILE[0]):
        handle, path = tempfile.mkstemp(suffix=".mindir", prefix="mindspore_zb_")
        os.write(handle, b"0" * 16)
        os.close(handle)
        _FILE[:] = [path]
    return _FILE[0]


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    with _files_elsewhere(), _little_to_collect():
        yield


@contextlib.contextmanager
def _little_to_collect() -> Iterator[None]:
    """MindSpore collects garbage before each compilation: most of the time that loading a small piece takes, unless
    what is there already is left out."""
    if gc.get_freeze_count() > _FROZEN_BY_PYTHON:  # the caller's own, which would thaw too
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def _files_elsewhere() -> Iterator[None]:
    """What the compiler writes when it fails goes into a directory that is removed again."""
    before = os.environ.get("MS_OM_PATH")
    with tempfile.TemporaryDirectory(prefix="mindspore_zb_") as directory:
        os.environ["MS_OM_PATH"] = directory
        try:
            yield
        finally:
            if before is None:
                del os.environ["MS_OM_PATH"]
            else:
                os.environ["MS_OM_PATH"] = before


if missing_features():
    raise UnsupportedVersionError(
        f"mindspore {ms.__version__} lacks {', '.join(missing_features())}: install mindspore 2.9 or 2.10")
