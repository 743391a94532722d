"""The shapes of dx and dw, and what comes back of the forward."""

from collections import namedtuple

import numpy as np
import pytest
from mindspore import Tensor, ops

from mindspore_zb import forward_and_gradfn

from .helpers import assert_grads_close, map_leaves, reference, split, tensor, unsplit, weight
from .three_groups import ThreeGroups

Pair = namedtuple("Pair", "left right")


class TestResultShapes:
    """dx for every form of ``grad_position``."""

    @staticmethod
    def fn(one, two, three, *, bias=None, mode=None):
        """Uses everything."""
        out = one * two["a"] + three[0].left * three[0].right
        return out if bias is None else out * bias

    @pytest.fixture
    def inputs(self):
        return [tensor(3, 4), {"a": tensor(4, seed=1), "n": 3},
                [Pair(tensor(4, seed=2), tensor(3, 1, seed=3)), Tensor(np.arange(3, dtype=np.int32))]]

    @pytest.mark.parametrize("position", [0, 1, 2, (0,), [0], (1, 0), [2, 0, 1], (0, 1, 2), -1])
    @pytest.mark.parametrize("kwargs", [{}, {"mode": "text"}, {"bias": tensor(4, seed=4), "mode": None}],
                             ids=["none", "no tensor", "tensor"])
    def test_against_the_reference(self, inputs, position, kwargs):
        w = weight(4)

        def fn(*args, **named):
            return self.fn(*args, **named) * w

        expected = reference(fn, inputs, [w], grad_position=position, kwargs=kwargs)
        assert_grads_close(split(fn, inputs, [w], grad_position=position, kwargs=kwargs), expected)
        assert_grads_close(unsplit(fn, inputs, [w], grad_position=position, kwargs=kwargs), expected)

    def shapes(self, inputs, position, **kwargs):
        """Shapes of dx, nested like it."""
        dx, _ = split(self.fn, inputs, None, grad_position=position, kwargs=kwargs)
        return map_leaves(lambda grad: None if grad is None else grad.shape, dx)

    def test_written_out(self, inputs):
        one, two, three = (3, 4), {"a": (4,), "n": None}, [Pair((4,), (3, 1)), None]
        assert self.shapes(inputs, 0) == one
        assert self.shapes(inputs, 1) == two
        assert self.shapes(inputs, 2) == three
        assert self.shapes(inputs, (0,)) == (one,)
        assert self.shapes(inputs, [0]) == (one,)
        assert self.shapes(inputs, (2, 0)) == (three, one)
        assert self.shapes(inputs, -1) == (one, two, three)
        assert self.shapes(inputs, -1, mode="text") == (one, two, three)
        assert self.shapes(inputs, -1, bias=tensor(4), mode=1) == ((one, two, three), {"bias": (4,), "mode": None})
        assert self.shapes(inputs, 0, bias=tensor(4)) == one

    def test_integer_tensor_in_kwargs_counts_as_tensor(self):
        ids = Tensor(np.array([1, 0], np.int32))
        dx, _ = split(lambda x, index: x[index], [tensor(3, 4)], None, grad_position=-1, kwargs={"index": ids})
        assert type(dx) is tuple and dx[0][0].shape == (3, 4) and dx[1] == {"index": None}

    def test_only_kwargs(self):
        w = weight(4)
        dx, _ = split(lambda *, x: x * w, [], [w], grad_position=-1, kwargs={"x": tensor(3, 4)})
        assert dx[0] == () and dx[1]["x"].shape == (3, 4)

    def test_gradients_carry_no_history(self):
        net = ThreeGroups()
        for grad in (*split(net, [tensor(3, 4)], net.trainable_params())[1], split(net, [tensor(3, 4)])[0]):
            assert grad._grad_node is None and not grad._requires_grad


class TestAux:
    """``has_aux``: only ``out`` is differentiated, the rest comes back untouched."""

    def test_values_and_gradients(self):
        w, marker = weight(4, 4), object()

        def fn(x):
            h = x @ w
            return ops.tanh(h), h, {"marker": marker, "w": w}

        (out, h, rest), grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=[w], has_aux=True)
        expected = reference(fn, [tensor(3, 4)], [w], has_aux=True)
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)
        assert (ops.tanh(h).asnumpy() == out.asnumpy()).all()
        assert rest["marker"] is marker and rest["w"] is w
        assert out._grad_node is None and h._grad_node is None

    def test_aux_may_be_missing_or_empty(self):
        w = weight(4)
        out, _ = forward_and_gradfn(lambda x: (x * w,), tensor(3, 4), weights=[w], has_aux=True)
        assert type(out) is tuple and len(out) == 1

    def test_nested_out(self):
        w = weight(4)
        result, grad_fn = forward_and_gradfn(lambda x: ({"a": x * w, "b": x}, "aux"), tensor(3, 4), weights=[w],
                                             has_aux=True)
        assert list(result[0]) == ["a", "b"] and result[1] == "aux"
        sens = {"a": tensor(3, 4, seed=5), "b": None}
        expected = reference(lambda x: x * w, [tensor(3, 4)], [w], sens=sens["a"])
        assert_grads_close((grad_fn.compute_input_grad(sens), grad_fn.compute_weight_grad()), expected)

    def test_sens_is_for_out_alone(self):
        w = weight(4)
        _, grad_fn = forward_and_gradfn(lambda x: (x * w, x), tensor(3, 4), weights=[w], has_aux=True)
        with pytest.raises(ValueError, match="sens"):
            grad_fn.compute_input_grad((tensor(3, 4), tensor(3, 4)))
