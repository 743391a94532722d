"""What passes between stages, as data."""

import json

import mindspore as ms
import pytest

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.pipeline import TensorMeta
from mindspore_zb.pipeline.metas import MessageMeta

MESSAGE = {"hidden": ms.ops.ones((2, 3)), "rest": (ms.ops.ones((2,), ms.int32), [ms.ops.ones((4,), ms.float16)])}


def test_a_message_survives_json_and_nesting():
    meta = MessageMeta.of(MESSAGE, "out")
    again = MessageMeta.from_json(json.loads(json.dumps(meta.to_json())))
    assert again == meta
    assert again.nested("abc") == {"hidden": "a", "rest": ("b", ("c",))}
    assert str(again) == "{'hidden': float32 (2, 3), 'rest': (int32 (2,), (float16 (4,),))}"
    assert again.gradient_places == (0, 2)


def test_declared_and_found_are_equal():
    declared = {"hidden": TensorMeta((2, 3)), "rest": [TensorMeta([2], "int32"), (TensorMeta((4,), "float16"),)]}
    assert MessageMeta.of(declared, "gives") == MessageMeta.of(MESSAGE, "out")
    assert MessageMeta.of(TensorMeta((2,)), "a") != MessageMeta.of((TensorMeta((2,)),), "a")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (2, 0), (3,)])
def test_new_tensors_are_what_they_should_be(dtype, shape):
    meta = TensorMeta(shape, dtype)
    tensor = meta.new()
    assert TensorMeta(tensor.shape, str(tensor.dtype)) == meta
    assert meta.differentiable == ("float" in dtype)


def test_what_is_no_tensor_is_refused_by_name():
    with pytest.raises(ArgumentTypeError, match=r"out\[1\]\['x'\] is a int, but only tensors pass between stages"):
        MessageMeta.of((ms.ops.ones((2,)), {"x": 3}), "out")
    with pytest.raises(ArgumentTypeError, match="has the key 1, but its keys must be strings"):
        MessageMeta.of({1: ms.ops.ones((2,))}, "out")
    with pytest.raises(ArgumentValueError, match="'float99' is none of MindSpore's"):
        TensorMeta((2,), "float99")
    with pytest.raises(ArgumentValueError, match="negative size"):
        TensorMeta((2, -1))
