"""What is known of operations by the names of their grad nodes, against what MindSpore's hooks tell of them."""

import mindspore as ms
import pytest
from mindspore import mint, ops

from mindspore_zb.engines.pynative.native import eager_mode, grad_recording, leaf_alias
from mindspore_zb.engines.pynative.node_kinds import SAVES_NOTHING, saves_nothing

from ...helpers import tensor
from .saved import Saved


def saved_by(operation, *shapes):
    """The name of the node of an operation on leaves of these shapes, and how many tensors it saved."""
    saved = Saved()
    with eager_mode(), grad_recording():
        leaves = [leaf_alias(tensor(*shape, seed=seed)) for seed, shape in enumerate(shapes)]
        with saved:
            out = operation(*leaves)
    return out._grad_node.name(), saved.count()


SAVING_NOTHING = {
    "x + y": (lambda x, y: x + y, (3, 4), (3, 4)), "x + row": (lambda x, y: x + y, (3, 4), (4,)),
    "x + 1": (lambda x: x + 1.0, (3, 4)), "ops.add": (ops.add, (3, 4), (4,)),
    "mint.add": (lambda x, y: mint.add(x, y, alpha=2), (3, 4), (4,)),
    "addn": (lambda x, y: ops.addn([x, y]), (3,), (3,)),
    "bias_add": (ops.bias_add, (3, 4), (4,)), "x - y": (lambda x, y: x - y, (3, 4), (4,)), "-x": (lambda x: -x, (3,)),
    "x * 2": (lambda x: x * 2.0, (3,)), "x / 2": (lambda x: x / 2.0, (3,)),
    "cast": (lambda x: x.astype(ms.float16), (3,)),
    "reshape": (lambda x: x.reshape(4, 3), (3, 4)), "view": (lambda x: x.view(-1), (3, 4)),
    "transpose": (lambda x: x.transpose(1, 0), (3, 4)), "permute": (lambda x: ops.permute(x, (1, 0)), (3, 4)),
    "expand_dims": (lambda x: x.expand_dims(0), (3,)), "squeeze": (lambda x: x.squeeze(0), (1, 3)),
    "broadcast_to": (lambda x: ops.broadcast_to(x, (3, 4)), (4,)), "tile": (lambda x: ops.tile(x, (2, 2)), (3, 4)),
    "concat": (lambda x, y: ops.cat([x, y]), (3,), (4,)), "stack": (lambda x, y: ops.stack([x, y]), (3,), (3,)),
    "split": (lambda x: ops.split(x, 2)[0], (4, 3)), "chunk": (lambda x: ops.chunk(x, 2)[0], (4, 3)),
    "mint.chunk": (lambda x: mint.chunk(x, 2)[0], (4, 3)), "mint.split": (lambda x: mint.split(x, 2)[0], (4, 3)),
    "unsqueeze": (lambda x: mint.unsqueeze(x, 0), (3,)), "contiguous": (lambda x: x.T.contiguous(), (3, 4)),
    "select": (lambda x: mint.select(x, 0, 1), (3, 4)), "mint.permute": (lambda x: mint.permute(x, (1, 0)), (3, 4)),
    "2 - x": (lambda x: 2.0 - x, (3,)),
    "row": (lambda x: x[1], (3, 4)), "rows": (lambda x: x[1:], (3, 4)), "sum": (lambda x: x.sum(), (3, 4)),
    "mint.sum": (lambda x: mint.sum(x, 0), (3, 4)), "ReduceSum": (lambda x: ops.ReduceSum()(x, 0), (3, 4)),
    "ReduceMean": (lambda x: ops.ReduceMean()(x, 0), (3, 4)), "mean": (lambda x: mint.mean(x), (3, 4)),
    "cumsum": (lambda x: ops.cumsum(x, 0), (3, 4)), "flip": (lambda x: ops.flip(x, (0,)), (3, 4)),
}
SAVING = {
    "x * y": (lambda x, y: x * y, (3, 4), (3, 4)), "x @ y": (lambda x, y: x @ y, (3, 4), (4, 3)),
    "tanh": (ops.tanh, (3,)),
    "softmax": (ops.softmax, (3, 4)), "relu": (ops.relu, (3, 4)), "exp": (ops.exp, (3, 4)),
    "sigmoid": (ops.sigmoid, (3,)),
    "silu": (ops.silu, (3, 4)), "gelu": (ops.gelu, (3, 4)),
    "narrow": (lambda x: mint.narrow(x, 0, 1, 2), (3, 4)), "slice": (lambda x: ops.slice(x, (0, 0), (2, 2)), (3, 4)),
    "gather": (lambda x: ops.gather(x, ms.Tensor([0, 1]), 0), (3, 4)),
}


class TestSavesNothing:
    """Memory hangs on it: what such a node saved would stay until the node goes."""

    @pytest.mark.parametrize("case", SAVING_NOTHING)
    def test_of_what_saves_nothing(self, case):
        name, count = saved_by(*SAVING_NOTHING[case])
        assert saves_nothing(name) and count == 0, name

    @pytest.mark.parametrize("case", SAVING)
    def test_of_what_saves(self, case):
        name, count = saved_by(*SAVING[case])
        assert not saves_nothing(name) and count > 0, name

    def test_all_of_them(self):
        assert {saved_by(*case)[0] for case in SAVING_NOTHING.values()} == SAVES_NOTHING

    def test_of_what_nobody_knows(self):
        assert not any(map(saves_nothing, ("Unheard", "_Function Add", "Add compiled ")))
