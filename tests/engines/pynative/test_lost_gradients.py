"""A gradient that a compiled sub-cell should have given and did not is an error, not zeros."""

import mindspore as ms
import pytest
from mindspore import ops

from mindspore_zb import forward_and_gradfn, options
from mindspore_zb.engines.pynative.lost_gradients import refusing_lost_gradients
from mindspore_zb.engines.pynative.native import run_backward
from mindspore_zb.errors import UnsupportedError

from ...helpers import tensor, weight


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_gradient_is_refused(lost):
    w = weight(4, name="w")

    @ms.jit
    def compiled(x, w):
        return ops.tanh(x) * w

    with options(split_blocks=False):
        out, grad_fn = forward_and_gradfn(lambda x, w: compiled(x, w), tensor(3, 4), w, weights=w)
    recording = grad_fn._recording
    recording.plan()
    snapshot = recording._snapshot
    grads = {}

    def run():
        with refusing_lost_gradients(snapshot, grads):
            found = run_backward(recording._roots, [ops.ones_like(out)], [*recording._inputs, w], keep_graph=False)
            grads.update(zip((snapshot.inputs[0], snapshot.weights[0]), found))
            if lost:
                grads[snapshot.weights[0]] = None

    if lost:
        with pytest.raises(UnsupportedError, match="MindSpore lost the gradient of w, which a @jit sub-cell uses"):
            run()
    else:
        run()
