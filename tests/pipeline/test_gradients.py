"""A rank knows its optimizer's weights."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter

from mindspore_zb.errors import ArgumentValueError
from mindspore_zb.pipeline.gradients import check_weights_known


def weight(name):
    return Parameter(ms.Tensor(np.ones(3, np.float32)), name=name)


def test_unknown_weights_of_an_optimizer():
    one, other = weight("one"), weight("other")
    check_weights_known([other], [one, other])
    with pytest.raises(ArgumentValueError, match="the optimizer has the weight 'third', which no stage"):
        check_weights_known([one, weight("third")], [one, other])
