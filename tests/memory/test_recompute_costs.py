"""The table of recompute: bytes by formula, rows in order, and refusals."""

import math

import pytest
from mindspore import nn

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.memory import measure_recompute
from tests.helpers import tensor


def net_and_arguments(count=4):
    net = nn.SequentialCell([nn.SequentialCell(nn.Dense(8, 8), nn.GELU()) for _ in range(count)])
    return net, (tensor(2, 8),), net.trainable_params(), net


def test_rows():
    net, inputs, weights, blocks = net_and_arguments()
    costs = measure_recompute(net, inputs, weights, blocks, {"3": {"policy": "every", "every": 3}, "full": {}},
                              rounds=1)
    number = 2 * 8 * 4
    assert [cost.policy for cost in costs] == ["none", "3", "full"]
    assert [cost.forward_bytes for cost in costs[1:]] == [2 * number, 4 * number]
    assert costs[0].forward_bytes >= 4 * 2 * number  # of each block the input of the Dense and of the GELU, at least
    assert [cost.dx_bytes for cost in costs] == [4 * number] * 3  # what dw of the Dense layers reads
    assert costs[0].time_ratio == 1.0
    assert all(cost.forward_seconds > 0 and cost.backward_seconds > 0 and cost.time_ratio > 0 for cost in costs)
    cost, = measure_recompute(net, inputs, weights, blocks, {}, rounds=0)
    assert math.isnan(cost.time_ratio)


@pytest.mark.parametrize("arguments, error, message", [
    ({"rounds": -1}, ArgumentValueError, "rounds is at least 0, not -1"), ({"rounds": 1.5}, ArgumentTypeError, "rounds is an integer, not float"),
    ({"policies": {"none": {}}}, ArgumentValueError, "'none'"),
    ({"policies": {"half": {"policy": "half"}}}, ArgumentValueError, "not 'half'")])
def test_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        measure_recompute(*net_and_arguments(), **{"rounds": 0, **arguments})
