"""Attributes, tensors and types of a serialised graph, each read only if it is written as the loader expects it.

The loader reads attributes by two different conventions, one at top level and one inside sequences, takes the first
of a list without looking whether there is one, and copies raw data by its own length. All that is checked here.
"""

from typing import Iterable, Optional, Tuple

from mindspore.train.mind_ir_pb2 import AttributeProto, TensorProto

from mindspore_zb.errors import MalformedGraphError

Type = Tuple
"""``("tensor", dtype, dims)``, ``("dtype", dtype)``, ``(kind,)`` of scalars, ``("TUPLE" or "LIST", element types)``."""

MONADS = (("UMONAD",), ("IOMONAD",))
"""The types of values that only order side effects."""

_INTEGERS = {"BOOL": (0, 1), **{f"INT{bits}": (-2 ** (bits - 1), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
             **{f"UINT{bits}": (0, 2 ** bits - 1) for bits in (8, 16, 32, 64)}}
_SCALARS = {**dict.fromkeys(_INTEGERS, ("i", "ints")), "FLOAT": ("f", "floats"), "DOUBLE": ("d", "doubles"),
            "STRING": ("s", "strings")}
_SEQUENCES = ("TUPLE", "LIST")
_EMPTY = ("NONE", "UMONAD", "IOMONAD")
_ITEM_BYTES = {"BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FLOAT16": 2, "BFLOAT16": 2, "INT32": 4,
               "UINT32": 4, "FLOAT": 4, "INT64": 8, "UINT64": 8, "DOUBLE": 8, "FLOAT64": 8, "COMPLEX64": 8,
               "COMPLEX128": 16}
_MOST_BYTES = 2 ** 46  # more than any machine has, and far from where the loader's products overflow
_MOST_DEPTH = 16  # the loader recurses


def check_fields(message: object, allowed: Iterable[str], place: str) -> None:
    """Raise :class:`MalformedGraphError` if any field is set that is not allowed: what is set may be read."""
    for field, _ in message.ListFields():
        if field.name not in allowed:
            raise MalformedGraphError(f"{place} has a field '{field.name}', which has no meaning there")


def kind_of(attribute: AttributeProto, place: str) -> str:
    """The name of the attribute's type."""
    if not attribute.HasField("type") or attribute.type not in AttributeProto.AttributeType.values():
        raise MalformedGraphError(f"{place} has no known type")
    return AttributeProto.AttributeType.Name(attribute.type)


def read_tensor(tensor: TensorProto, place: str, fields: Iterable[str] = ()) -> Type:
    """The type of a complete tensor; ``fields`` may be set besides its dims and its dtype.

    Raw data, where it is set, must fill the tensor exactly.
    """
    check_fields(tensor, ("dims", "data_type", *fields), place)
    known = tensor.data_type in TensorProto.DataType.values()
    dtype = TensorProto.DataType.Name(tensor.data_type) if known else str(tensor.data_type)
    if dtype not in _ITEM_BYTES:
        raise MalformedGraphError(f"{place} has the dtype {dtype}, which is not one of a tensor")
    if tensor.HasField("compression_type") and tensor.compression_type != TensorProto.NO_COMPRESSION:
        raise MalformedGraphError(f"{place} is compressed")
    dims = tuple(tensor.dims)
    size = _ITEM_BYTES[dtype]
    for dim in dims:
        if dim < 0:
            raise MalformedGraphError(f"{place} has the dynamic shape {dims}")
        size *= max(dim, 1)
        if size > _MOST_BYTES:
            raise MalformedGraphError(f"{place} of shape {dims} and dtype {dtype} is larger than any memory")
    if tensor.HasField("raw_data"):
        size = 0 if 0 in dims else size
        if len(tensor.raw_data) != size:
            raise MalformedGraphError(f"{place} of shape {dims} and dtype {dtype} has {len(tensor.raw_data)} bytes of "
                                      f"data instead of {size}")
    return "tensor", dtype, dims


def read_type(attribute: AttributeProto, place: str, depth: int = 0) -> Type:
    """The type that an attribute describes, as nodes and outputs have one; every tensor in it is complete."""
    kind = kind_of(attribute, place)
    if kind == "TENSORS":
        check_fields(attribute, ("name", "type", "tensors"), place)
        return read_tensor(_single(attribute.tensors, "tensor", place), place, ("name", "ref_key"))
    if kind in _SEQUENCES:
        check_fields(attribute, ("name", "type", "values", "seq_info"), place)
        check_fields(attribute.seq_info, ("is_dyn_len",), place)
        if attribute.seq_info.is_dyn_len:
            raise MalformedGraphError(f"{place} is a sequence of dynamic length")
        return kind, tuple(read_type(value, f"{place}[{index}]", _deeper(depth, place))
                           for index, value in enumerate(attribute.values))
    if kind not in _EMPTY and kind not in _SCALARS:
        raise MalformedGraphError(f"{place} is of type {kind}, which no value of a flat graph has")
    check_fields(attribute, ("name", "type"), place)
    return (kind,)


def read_value(attribute: AttributeProto, place: str, monads: bool = False, depth: Optional[int] = None) -> Type:
    """The type of the value that an attribute holds; the value itself is complete.

    Args:
        monads: whether the value may be a monad, as a constant may.
        depth: of sequences around this one; None at top level, where scalars are written differently.
    """
    kind = kind_of(attribute, place)
    common = ("name", "type") if depth is None else ("type",)
    if kind in _SCALARS:
        field = _SCALARS[kind][depth is not None]
        check_fields(attribute, (*common, field), place)
        value = getattr(attribute, field) if depth is None else _single(getattr(attribute, field), "value", place)
        if depth is None and not attribute.HasField(field):
            raise MalformedGraphError(f"{place} of type {kind} has no value")
        if kind in _INTEGERS and not _INTEGERS[kind][0] <= value <= _INTEGERS[kind][1]:
            raise MalformedGraphError(f"{place} of type {kind} has the value {value}")
        return (kind,)
    if kind == "TENSORS":
        check_fields(attribute, (*common, "tensors"), place)
        tensor = _single(attribute.tensors, "tensor", place)
        found = read_tensor(tensor, place, ("name", "raw_data", "compression_type"))
        if tensor.HasField("raw_data"):
            return found
        if tensor.dims:
            raise MalformedGraphError(f"{place} of shape {tuple(tensor.dims)} has no data")
        return "dtype", found[1]  # without data the loader takes it for a dtype
    if kind in _SEQUENCES:
        check_fields(attribute, (*common, "values"), place)
        return kind, tuple(read_value(value, f"{place}[{index}]", False, _deeper(depth or 0, place))
                           for index, value in enumerate(attribute.values))
    if depth is not None or kind not in (_EMPTY if monads else ("NONE",)):
        raise MalformedGraphError(f"{place} is of type {kind}, which has no value there")
    check_fields(attribute, common, place)
    return (kind,)


def check_attributes(attributes: Iterable[AttributeProto], place: str) -> None:
    """Each attribute has a name of its own and a complete value."""
    seen = set()
    for attribute in attributes:
        if not attribute.name or attribute.name in seen:
            raise MalformedGraphError(f"{place} has two attributes '{attribute.name}'" if attribute.name else
                                      f"{place} has an attribute without a name")
        seen.add(attribute.name)
        read_value(attribute, f"attribute '{attribute.name}' of {place}")


def _single(items: object, what: str, place: str) -> object:
    if len(items) != 1:
        raise MalformedGraphError(f"{place} has {len(items)} {what}s instead of one")
    return items[0]


def _deeper(depth: int, place: str) -> int:
    if depth >= _MOST_DEPTH:
        raise MalformedGraphError(f"{place} is nested more than {_MOST_DEPTH} deep")
    return depth + 1
