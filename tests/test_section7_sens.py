"""Right values in hard places: gradients of the outputs, and calls under ``no_grad``."""

import contextlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.common import _no_grad

from mindspore_zb import ZeroBubbleError, forward_and_gradfn

from .helpers import assert_grads_close, assert_same_bits, check, reference, split, tensor, weight


class TestSens:
    """Gradients of the outputs: shaped like them, or an error that names the output."""

    @pytest.fixture
    def grad_fn(self):
        w = weight(4, 4)

        def fn(x):
            return {"a": x @ w, "b": [x.sum(), (x * 2).astype(ms.float16)]}

        return forward_and_gradfn(fn, tensor(3, 4), weights=[w])[1]

    @staticmethod
    def sens(**changes):
        """A fitting sens, with changes."""
        entries = {"a": tensor(3, 4, seed=5), "first": tensor(seed=6), "second": tensor(3, 4, dtype=np.float16)}
        entries.update(changes)
        return {"a": entries["a"], "b": [entries["first"], entries["second"]]}

    @pytest.mark.parametrize("whole", ["__call__", "compute_input_grad"])
    @pytest.mark.parametrize("error, name, changes", [
        (ValueError, "out['a']", dict(a=tensor(4, 3))),
        (ValueError, "out['a']", dict(a=tensor(1, 4))),
        (ValueError, "out['a']", dict(a=tensor())),
        (ValueError, "out['a']", dict(a=tensor(1, 3, 4))),
        (ValueError, "out['b'][0]", dict(first=tensor(1))),
        (TypeError, "out['a']", dict(a=tensor(3, 4, dtype=np.float64))),
        (TypeError, "out['a']", dict(a=Tensor(np.ones((3, 4), np.int32)))),
        (TypeError, "out['b'][1]", dict(second=tensor(3, 4))),
        (TypeError, "out['b'][0]", dict(first=1.0)),
        (TypeError, "out['a']", dict(a=np.ones((3, 4), np.float32))),
        (ValueError, "out['a']", dict(a=[tensor(3, 4)])),
    ])
    def test_wrong_entries(self, grad_fn, whole, error, name, changes):
        with pytest.raises(error) as caught:
            getattr(grad_fn, whole)(self.sens(**changes))
        assert isinstance(caught.value, ZeroBubbleError)
        assert "sens" in str(caught.value) and name in str(caught.value)

    @pytest.mark.parametrize("wrong", [
        tensor(3, 4), [tensor(3, 4)], {"a": tensor(3, 4)}, {"a": tensor(3, 4), "c": None}, {"a": None, "b": tensor()},
        {"a": None, "b": [tensor()]}, {"a": None, "b": [None, None, None]}, (), "text", 1.0,
    ], ids=["tensor", "list", "key missing", "other key", "tensor for list", "too short", "too long", "empty", "text",
            "number"])
    def test_wrong_structure(self, grad_fn, wrong):
        with pytest.raises(ValueError, match="sens") as caught:
            grad_fn.compute_input_grad(wrong)
        assert isinstance(caught.value, ZeroBubbleError)

    def test_usable_after_a_wrong_sens(self, grad_fn):
        with pytest.raises(ZeroBubbleError):
            grad_fn.compute_input_grad(tensor(2))
        assert grad_fn.state == "fresh"
        assert grad_fn.compute_input_grad(self.sens()).shape == (3, 4)
        assert len(grad_fn.compute_weight_grad()) == 1

    def test_none_stands_for_ones(self):
        w = weight(4, 4)
        ones = ops.ones((3, 4)), ops.ones((3, 4))
        assert_same_bits(split(lambda x: (x @ w, x * 2), [tensor(3, 4)], [w]),
                         split(lambda x: (x @ w, x * 2), [tensor(3, 4)], [w], sens=ones))

    def test_lists_and_tuples_count_as_the_same(self):
        w, sens = weight(4, 4), [tensor(3, 4, seed=5), tensor(3, 4, seed=6)]
        got = split(lambda x: (x @ w, x * 2), [tensor(3, 4)], [w], sens=sens)
        assert_grads_close(got, reference(lambda x: (x @ w, x * 2), [tensor(3, 4)], [w], sens=sens))

    def test_keys_in_another_order(self):
        w = weight(4, 4)
        sens = {"b": tensor(3, 4, seed=6), "a": tensor(3, 4, seed=5)}
        got = split(lambda x: {"a": x @ w, "b": x * 2}, [tensor(3, 4)], [w], sens=sens)
        expected = reference(lambda x: {"b": x * 2, "a": x @ w}, [tensor(3, 4)], [w], sens=sens)
        assert_grads_close(got, expected)

    def test_none_for_a_whole_branch(self):
        w = weight(4, 4)
        got = split(lambda x: (x @ w, [x * 2, {"k": x * 3}]), [tensor(3, 4)], [w], sens=(tensor(3, 4, seed=5), None))
        assert_grads_close(got, reference(lambda x: x @ w, [tensor(3, 4)], [w], sens=tensor(3, 4, seed=5)))

    def test_sens_with_a_history(self, recording):
        w, x, y = weight(4, 4), tensor(3, 4), tensor(3, 4, seed=5)
        with recording():
            sens = ops.tanh(y @ w)
        got = split(lambda a: ops.tanh(a @ w), [x], [w], sens=sens)
        assert_grads_close(got, reference(lambda a: ops.tanh(a @ w), [x], [w], sens=Tensor(sens.asnumpy())))
        assert got[0]._grad_node is None and got[1][0]._grad_node is None

    def test_sens_keeps_its_values(self):
        w, sens = weight(4, 4), tensor(3, 4, seed=5)
        before = sens.asnumpy().copy()
        split(lambda x: x @ w + x, [tensor(3, 4)], [w], sens=sens)
        assert (sens.asnumpy() == before).all()

    def test_not_contiguous(self):
        w, sens = weight(4, 4), tensor(4, 3, seed=5).T
        check(lambda x: ops.tanh(x @ w), [tensor(3, 4)], [w], sens=sens)


class TestNoGrad:
    """A split was asked for explicitly, so ``no_grad`` around it does not matter."""

    @pytest.mark.parametrize("around", ["forward", "backward", "both"])
    def test_under_no_grad(self, around):
        net = nn.SequentialCell(nn.Dense(4, 4), nn.Tanh(), nn.Dense(4, 2))
        expected = reference(net, [tensor(3, 4)], net.trainable_params())
        with _no_grad() if around != "backward" else contextlib.nullcontext():
            _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
        with _no_grad() if around != "forward" else contextlib.nullcontext():
            got = grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()
        assert_grads_close(got, expected)

    def test_no_grad_inside_fn_stays_in_force(self):
        w, u = weight(4, 4, seed=1), weight(4, 4, seed=2)

        def fn(x):
            with _no_grad():
                side = x @ u
            return ops.tanh(x @ w) * side

        expected = reference(fn, [tensor(3, 4)], [w, u])
        assert not expected[1][1].asnumpy().any()
        assert_grads_close(split(fn, [tensor(3, 4)], [w, u]), expected)

    def test_under_a_callers_own_gradient(self):
        w, x = weight(4, 4), tensor(3, 4)
        expected = reference(lambda a: ops.tanh(a @ w), [x], [w])
        found = []

        def outer(a):
            found.append(split(lambda b: ops.tanh(b @ w), [x], [w]))
            return (a * a).sum()

        grad = ms.grad(outer)(x)
        assert_grads_close(found[0], expected)
        assert_grads_close(grad, 2 * x)
