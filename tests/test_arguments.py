"""Wrong arguments give early errors that name them."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from mindspore_zb import ZeroBubbleError, forward_and_gradfn

from .helpers import assert_grads_close, reference, split, tensor, weight


def tanh(x, *_):
    """A function without weights."""
    return ops.tanh(x)


class TestErrors:
    """Each wrong argument: the class of the error, and what its message names."""

    @pytest.mark.parametrize("fn", [None, 3, "tanh", tensor(3)], ids=["None", "int", "str", "tensor"])
    def test_fn(self, fn):
        self.refused(TypeError, "fn must be callable", fn, tensor(3))

    @pytest.mark.parametrize("has_aux", [None, 1, "yes"])
    def test_has_aux(self, has_aux):
        self.refused(TypeError, "has_aux", tanh, tensor(3), has_aux=has_aux)

    @pytest.mark.parametrize("weights", [3, "w", b"w", 1.5, True, object()])
    def test_weights_of_a_wrong_type(self, weights):
        self.refused(TypeError, f"weights must be .*{type(weights).__name__}", tanh, tensor(3), weights=weights)

    def test_cell_as_weights_is_told_what_to_pass(self):
        self.refused(TypeError, r"weights must be .*Dense.*trainable_params\(\)", tanh, tensor(3),
                     weights=nn.Dense(2, 2))

    def test_tensor_as_weights(self):
        self.refused(TypeError, "weights must be .*Tensor", tanh, tensor(3), weights=tensor(3))

    @pytest.mark.parametrize("wrong", [None, 3, "w", tensor(3), [weight(3)]],
                             ids=["None", "int", "str", "tensor", "list"])
    def test_weights_entry(self, wrong):
        self.refused(TypeError, rf"weights\[1\] must be a Parameter, not a {type(wrong).__name__}", tanh, tensor(3),
                     weights=[weight(3), wrong])

    def test_weight_twice(self):
        w = weight(3, name="twin")
        self.refused(ValueError, r"weights\[2\] \(twin\).*weights\[0\]", tanh, tensor(3), weights=[w, weight(2), w])

    def test_two_weights_of_one_name_are_not_the_same(self):
        w, u = weight(3, seed=1, name="name"), weight(3, seed=2, name="name")
        assert_grads_close(split(lambda x: x * w * u, [tensor(3)], [w, u]),
                           reference(lambda x: x * w * u, [tensor(3)], [w, u]))

    @pytest.mark.parametrize("weights", [None, [], (), iter(())])
    def test_nothing_to_differentiate(self, weights):
        self.refused(ValueError, "weights.*grad_position", tanh, tensor(3), weights=weights, grad_position=None)

    @pytest.mark.parametrize("position", [1.0, "0", True, False, {0}, tensor(1), object, range(1)],
                             ids=lambda position: type(position).__name__)
    def test_grad_position_type(self, position):
        self.refused(TypeError, "grad_position must be", tanh, tensor(3), grad_position=position)

    @pytest.mark.parametrize("position", [(0, None), (0, 1.0), [0, "1"], (0, True)])
    def test_grad_position_entry_type(self, position):
        self.refused(TypeError, r"grad_position\[1\] must be an int", tanh, tensor(3), tensor(3),
                     grad_position=position)

    @pytest.mark.parametrize("position", [1, 5, -2])
    def test_grad_position_out_of_range(self, position):
        self.refused(ValueError, f"grad_position is {position}, .* 1 positional", tanh, tensor(3),
                     grad_position=position)

    @pytest.mark.parametrize("position", [(0, 2), [0, -1], (0, -2)])
    def test_grad_position_entry_out_of_range(self, position):
        self.refused(ValueError, rf"grad_position\[1\] is {position[1]}, .* 2 positional", tanh, tensor(3), tensor(3),
                     grad_position=position)

    def test_grad_position_twice(self):
        self.refused(ValueError, r"grad_position\[2\].*input 0.*twice", tanh, tensor(3), tensor(3),
                     grad_position=(0, 1, 0))

    @pytest.mark.parametrize("position", [(), []])
    def test_grad_position_empty(self, position):
        self.refused(ValueError, "grad_position is empty", tanh, tensor(3), grad_position=position)

    def test_default_grad_position_without_inputs(self):
        self.refused(ValueError, "grad_position is 0.*0 positional.*grad_position=None", lambda: tensor(3))

    @pytest.mark.parametrize("result", [None, 3, "text", (), (None, 1), {"a": None}, [[]], np.ones(3)],
                             ids=["None", "int", "str", "empty", "tuple", "dict", "nested", "numpy"])
    def test_fn_without_a_tensor(self, result):
        self.refused(TypeError, "fn must return at least one tensor.* a " + type(result).__name__,
                     lambda x: result, tensor(3))

    @pytest.mark.parametrize("result", [lambda x: x, lambda x: {"a": x}, lambda x: None, lambda x: (), lambda x: []],
                             ids=["tensor", "dict", "None", "empty tuple", "empty list"])
    def test_wrong_aux(self, result):
        self.refused(TypeError, r"has_aux.*\(out, \*aux\)", result, tensor(3), has_aux=True)

    @pytest.mark.parametrize("out", [None, 3, (), "text"])
    def test_aux_without_a_tensor_in_out(self, out):
        self.refused(TypeError, "fn must return at least one tensor", lambda x: (out, x), tensor(3), has_aux=True)

    def test_fn_that_takes_other_arguments(self):
        with pytest.raises(TypeError, match="positional argument"):
            forward_and_gradfn(lambda x: x, tensor(3), tensor(3))

    @staticmethod
    def refused(error, message, *args, **kwargs):
        """The call raises our error of this class; afterwards a right call works."""
        w = weight(3)
        with pytest.raises(error, match=message) as caught:
            forward_and_gradfn(*args, **kwargs)
        assert isinstance(caught.value, ZeroBubbleError)
        assert_grads_close(split(lambda x: x * w, [tensor(3)], [w]), reference(lambda x: x * w, [tensor(3)], [w]))


class TestFnIsNotRun:
    """Arguments are checked before ``fn`` runs; ``fn`` runs once."""

    @pytest.mark.parametrize("wrong", [dict(weights=3), dict(grad_position=7), dict(grad_position=None),
                                       dict(has_aux="yes"), dict(weights=[None])])
    def test_after_a_wrong_argument(self, wrong):
        calls = []
        with pytest.raises(ZeroBubbleError):
            forward_and_gradfn(lambda x: calls.append(x) or x, tensor(3), **wrong)
        assert not calls

    @pytest.mark.parametrize("backward", ["split", "groups", "unsplit"])
    def test_exactly_once(self, backward):
        w, calls = weight(3), []

        def fn(x):
            calls.append(1)
            return x * w

        _, grad_fn = forward_and_gradfn(fn, tensor(3), weights=[w])
        if backward == "unsplit":
            grad_fn(keep_graph=True)
            grad_fn()
        else:
            grad_fn.compute_input_grad()
            for group in grad_fn.weight_groups if backward == "groups" else ():
                group.compute(keep_graph=True)
            grad_fn.compute_weight_grad(keep_graph=True)
            grad_fn.compute_weight_grad()
        assert calls == [1]


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_an_input_without_data(mode):
    from mindspore.common.initializer import Normal, initializer
    from mindspore_zb import zero_bubble
    filled, empty = ops.ones((2, 3)), initializer(Normal(), (2, 3), ms.float32)
    target = zero_bubble(nn.SequentialCell(nn.ReLU()), mode=mode)
    with pytest.raises(ValueError, match=r"inputs\[0\]\[1\] has no data yet: call its init_data\(\) first"):
        target.forward_and_gradfn((filled, empty))
