"""Memory on an NPU, as MindSpore's allocator reports it: dx frees what only it needed, each group of dw its part."""

import numpy as np
import pytest

from mindspore_zb import forward_and_gradfn

pytestmark = [pytest.mark.platform_ascend910b, pytest.mark.onecard, pytest.mark.level0]

WIDTH, LAYERS, ROWS = 1024, 6, 4096
LAYER_BYTES = ROWS * WIDTH * 4
"""One activation."""


def allocated():
    """Bytes in use on the device, after everything issued has run."""
    import mindspore as ms

    ms.runtime.synchronize()
    return ms.runtime.memory_allocated()


def test_dx_and_each_group_free_memory():
    import mindspore as ms
    from mindspore import nn, ops

    ms.set_device("Ascend")
    layers = [nn.Dense(WIDTH, WIDTH, has_bias=False) for _ in range(LAYERS)]
    weights = [layer.weight for layer in layers]

    def net(x):
        for layer in layers:
            x = layer(ops.silu(x))
        return x

    x = ms.Tensor(np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32))
    before = allocated()
    out, grad_fn = forward_and_gradfn(net, x, weights=weights)
    sens = ops.ones_like(out)
    after_forward = allocated()
    dx = grad_fn.compute_input_grad(sens)
    after_dx = allocated()
    # The inputs of silu go, the gradients that flow into the layers come: one activation per layer each.
    assert after_dx <= after_forward + 2 * LAYER_BYTES
    falling = [after_dx]
    for group in grad_fn.weight_groups:
        group.compute()
        falling.append(allocated())
    assert all(later <= earlier for earlier, later in zip(falling, falling[1:]))
    del out, dx, sens
    assert allocated() <= before + 2 * LAYER_BYTES


def test_the_timeline_has_the_allocators_figures():
    import mindspore as ms
    from mindspore import nn

    from mindspore_zb.memory import memory_timeline

    ms.set_device("Ascend")
    net = nn.SequentialCell(nn.Dense(WIDTH, WIDTH), nn.SiLU(), nn.Dense(WIDTH, WIDTH))
    x = ms.Tensor(np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32))
    timeline = memory_timeline(net, (x,), net.trainable_params())
    forward, *_, last = timeline.steps
    for step in timeline.steps:
        assert step.device_peak >= step.device_bytes >= step.total
    assert forward.device_bytes >= timeline.weight_bytes + forward.saved_bytes
    assert last.saved_bytes == last.held_bytes == 0
