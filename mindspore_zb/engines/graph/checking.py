"""Whether a serialised graph may be given to MindSpore's loader, which ends the process where this raises."""

from typing import Union

from mindspore.train.mind_ir_pb2 import ModelProto

from mindspore_zb.engines.graph.reading import ModelIndex, index_model
from mindspore_zb.engines.graph.verbatim import check_verbatim
from mindspore_zb.errors import MalformedGraphError


def parse_model(data: bytes) -> ModelProto:
    """The graph in ``data``, without fields that this version of MindSpore does not know; not checked yet.

    Raises:
        MalformedGraphError: the bytes are no graph.

    >>> parse_model(b"\\xff")
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.MalformedGraphError: the bytes are no serialised graph
    """
    model = ModelProto()
    try:
        model.ParseFromString(data)
        model.DiscardUnknownFields()
    except Exception as error:  # pylint: disable=broad-except  # which errors, depends on the implementation
        raise MalformedGraphError("the bytes are no serialised graph") from error
    return model


def check_model(model: ModelProto, original: Union[ModelProto, ModelIndex, None] = None) -> ModelIndex:
    """Raise :class:`~mindspore_zb.errors.MalformedGraphError` unless ``model`` is safe to load, compile and run.

    Checked of any graph: all that the loader takes for granted (names, order, references, encodings, sizes of data),
    one output, static shapes, no sub-functions, and that the types of tuples, their elements, of Load, Depend and
    UpdateState fit those of their inputs.

    What other operations compute is beyond this check: with a wrong shape stated for a matrix product, a kernel
    writes out of bounds. Therefore give a graph that was cut from another its ``original``, as the compiler exported
    it. Then also checked:

    * each primitive, and each node that has the name of an original one, is that one, verbatim; only what it reads
      may have other names;
    * each of its inputs has the type of the original's, is not another value of the original, and stands for the same
      value everywhere (UpdateState, and what Depend waits for, may differ: effects are ordered anew);
    * nodes of other names only make or take apart tuples, or order effects.

    Linear in the size of the graphs; give an index as ``original`` to check many pieces of one graph.

    Returns:
        The index of ``model``.

    Raises:
        MalformedGraphError: in one sentence that names the node or attribute and says what is wrong.

    >>> from mindspore.train.mind_ir_pb2 import ModelProto
    >>> check_model(ModelProto())
    Traceback (most recent call last):
        ...
    mindspore_zb.errors.MalformedGraphError: the model has no 'producer_name'
    """
    try:
        index = index_model(model)
        if original is not None:
            check_verbatim(index, original if isinstance(original, ModelIndex) else index_model(original))
    except UnicodeDecodeError as error:
        raise MalformedGraphError(f"a name is not valid UTF-8: {error}") from error
    return index
