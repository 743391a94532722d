"""What is known of MindSpore's operations by the names of their grad nodes.

For operations only speed and memory hang on the names, never a value: an unknown one is treated in the way that is
always right. The names of what is no operation (compiled, custom, view) come from MindSpore itself.
"""

SPLITS_BY_EDGE = frozenset((
    "Add", "AddExt", "AddN", "AddV2", "BatchMatMul", "BatchMatMulExt", "BiasAdd", "Concat", "Conv2D", "Conv2DExt",
    "Conv3D", "Conv3DExt", "Convolution", "Dense", "Div", "MatMul", "MatMulExt", "MatMulV2", "Maximum", "Minimum",
    "Mul", "Muls", "Pow", "RealDiv", "Select", "Stack", "Sub", "SubExt", "Where"))
"""Operations whose grad node computes only the gradients that are asked for: dx now, dw later, without waste. A
boundary node of any other kind (norms, PReLU, LSTM, custom bprop, ``_Function``, ``@jit`` sub-cells, and what nobody
has looked at yet) is *eager*: its weight gradients are caught while dx runs it."""

SAVES_NO_INPUT = frozenset((
    "Add", "AddExt", "AddN", "AddV2", "BiasAdd", "BroadcastTo", "BroadcastToView", "Cast", "Chunk", "ChunkView",
    "Concat", "Contiguous", "CumSum", "Divs", "Elu", "Exp", "ExpandDims", "ExpandDimsView", "Gather",
    "LogSoftmax", "MeanExt", "Muls", "NarrowView", "Neg", "ReduceMean", "ReduceSum", "ReLU", "Reshape",
    "ReverseV2", "SelectExtView", "SelectView", "Sigmoid", "SliceExtView", "Softmax", "Split", "SplitTensor",
    "SplitTensorView", "Squeeze", "Stack", "StridedSlice", "Sub", "SubExt", "Subs", "SumExt", "Tanh", "Tile",
    "Transpose", "TransposeExtView", "TransposeView", "View"))
"""Operations that save nothing but, at most, their output. Where a boundary node keeps such a node
alive it keeps no memory with it, so dx needs no pass of its own to free it."""

READS_INPUTS = {"Div": (1,), "Reciprocal": (), "Rsqrt": (), "Select": (), "Sqrt": (), "Where": ()}
"""Operations that save some of their inputs only, by the places of these; with :data:`SAVES_NO_INPUT`, all that do not
save every input. Used to count bytes."""

SAVES_OUTPUT = frozenset((
    "Div", "Elu", "Exp", "GeLU", "LogSoftmax", "Pow", "Reciprocal", "ReLU", "Rsqrt", "Sigmoid", "Softmax", "Sqrt",
    "Tanh"))
"""Operations that save their output. Used to count bytes."""

SAVES_NOTHING = frozenset((
    "Add", "AddExt", "AddN", "BiasAdd", "BroadcastTo", "Cast", "ChunkView", "Concat", "Contiguous", "CumSum", "Divs",
    "ExpandDims", "ExpandDimsView", "MeanExt", "Muls", "Neg", "ReduceMean", "ReduceSum", "Reshape", "ReverseV2",
    "SelectExtView", "SelectView", "Split", "SplitTensorView", "Squeeze", "Stack", "StridedSlice", "Sub", "SubExt",
    "SumExt", "Tile", "Transpose", "TransposeExtView", "TransposeView"))
"""Operations that save no tensor at all, as MindSpore's hooks tell: not those of :data:`SAVES_NO_INPUT` that save their
output, indices (``Gather``) or what their output is a view of (``NarrowView``)."""

SAME_STORAGE = frozenset((
    "ExpandDims", "ExpandDimsView", "Reshape", "Squeeze", "Transpose", "TransposeExtView", "TransposeView", "View"))
"""Operations whose output is the whole of their input's storage. ``Contiguous`` is not one: where nothing needs to be
copied it leaves no node. Used to count bytes."""

VIEW = "View"
"""``Tensor.view``"""

JIT_GRAPH = "bprop_builder"
"""Part of the name of the one node that a ``@jit`` sub-cell becomes; the rest of the name counts up. Such a node
remembers the nodes its edges led to when it was made, computes only what leads to a leaf asked for, and drops the other
edges for good, so that the rest change their places: its edges must not be touched."""

FUNCTION_PREFIX = "_Function "
"""What the snapshot puts before the name of a user's ``_Function``, which may be called like an operation."""

BLOCK_PREFIX = FUNCTION_PREFIX + "compiled "
"""The same before the name of a ``_Function`` that is a compiled block's: see ``mindspore_zb/engines/mixed``."""

CUSTOM_CELL = "CellCustomBackward"
"""A Cell with its own ``bprop``, and reentrant recompute."""


def function_prefix(kind: type) -> str:
    """What the snapshot puts before the name of such a node."""
    return BLOCK_PREFIX if getattr(kind, "is_compiled_block", False) else FUNCTION_PREFIX


def saves_nothing(name: str) -> bool:
    """Whether there is nothing that MindSpore could free with such a node: what a block saved, its call holds.

    A leaf has no name, and saves nothing.
    """
    return not name or name in SAVES_NOTHING or name.startswith(BLOCK_PREFIX)


def runs_users_code(name: str) -> bool:
    """Whether a user wrote the backward of a node: it may ask for gradients itself.

    Such a node also casts and sums each gradient it sends until it fits the operation it is meant for. All others send
    what their kernels give, wherever their edges lead.
    """
    return name == CUSTOM_CELL or name.startswith(FUNCTION_PREFIX)
