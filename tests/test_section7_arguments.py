"""Right values in hard places: kinds of weights, inputs and functions."""

import functools
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, Tensor, nn, ops

from mindspore_zb import forward_and_gradfn

from .helpers import assert_grads_close, check, reference, split, split_by_groups, tensor, weight

Pair = namedtuple("Pair", "left right")


class TestWeightKinds:
    """``weights`` may be anything that gives Parameters; dw keeps its order."""

    @pytest.fixture
    def net(self):
        return nn.SequentialCell(nn.Dense(4, 4), nn.Tanh(), nn.Dense(4, 2))

    @pytest.mark.parametrize("kind", [list, tuple, ParameterTuple, iter, lambda weights: (w for w in weights),
                                      lambda weights: dict.fromkeys(weights).keys(),
                                      lambda weights: filter(lambda _: True, weights)],
                             ids=["list", "tuple", "ParameterTuple", "iterator", "generator", "keys", "filter"])
    def test_iterables(self, net, kind):
        expected = reference(net, [tensor(3, 4)], net.trainable_params())
        for run in (split, split_by_groups):
            assert_grads_close(run(net, [tensor(3, 4)], kind(net.trainable_params())), expected)

    def test_cells_own_generators(self, net):
        expected = reference(net, [tensor(3, 4)], net.trainable_params())
        assert_grads_close(split(net, [tensor(3, 4)], net.get_parameters()), expected)

    def test_one_parameter_gives_one_tensor(self, net):
        dx, dw = check(net, [tensor(3, 4)], net[0].weight)
        assert isinstance(dw, Tensor) and dw.shape == net[0].weight.shape and dx.shape == (3, 4)

    def test_one_parameter_in_a_list_gives_a_tuple(self, net):
        _, dw = split(net, [tensor(3, 4)], [net[0].weight])
        assert type(dw) is tuple and len(dw) == 1

    def test_subset_of_the_weights(self, net):
        check(net, [tensor(3, 4)], [net[0].bias])
        check(net, [tensor(3, 4)], [net[2].weight, net[0].bias])

    @pytest.mark.parametrize("frozen", [0, 1, 2, 3])
    def test_frozen_weight(self, net, frozen):
        weights = list(net.trainable_params())
        weights[frozen].requires_grad = False
        _, dw = check(net, [tensor(3, 4)], weights, vanishing=True)
        assert not dw[frozen].asnumpy().any()
        assert not weights[frozen].requires_grad

    def test_all_weights_frozen(self, net):
        weights = list(net.trainable_params())
        for parameter in weights:
            parameter.requires_grad = False
        check(net, [tensor(3, 4)], weights, vanishing=True)

    def test_single_frozen_weight(self, net):
        net[0].weight.requires_grad = False
        check(net, [tensor(3, 4)], net[0].weight, vanishing=True)

    @pytest.mark.parametrize("weights", [None, [], (), iter(())], ids=["None", "list", "tuple", "iterator"])
    def test_no_weights(self, net, weights):
        dx, _ = reference(net, [tensor(3, 4)])
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=weights)
        assert grad_fn.weight_groups == ()
        assert_grads_close(grad_fn.compute_input_grad(), dx)
        assert grad_fn.compute_weight_grad() == ()


@dataclass
class Batch:
    """An input that is no tensor and no container."""

    values: Tensor
    name: str = "batch"


class CausalMask:
    """A mask object, as attention cells take it."""

    def __call__(self, scores):
        return scores * 2


OTHERS = [None, "mode", 3, 2.5, True, CausalMask(), ms.float32, slice(1, 2), {1, 2}]


class TestInputKinds:
    """What is no floating tensor is passed through and has None for a gradient."""

    @pytest.mark.parametrize("position", [0, (0, 1), -1])
    @pytest.mark.parametrize("other", [*OTHERS, Batch(tensor(3, 4))], ids=lambda other: type(other).__name__)
    def test_non_tensors(self, other, position):
        w = weight(4, 4)
        dx, _ = check(lambda x, extra: x @ w, [tensor(3, 4), other], [w], grad_position=position)
        assert position == 0 or dx[1] is None

    @pytest.mark.one_engine  # fn tells Python what it got
    @pytest.mark.parametrize("other", [*OTHERS, Batch(tensor(3, 4))], ids=lambda other: type(other).__name__)
    def test_non_tensors_are_handed_on_as_they_are(self, other):
        w, seen = weight(4, 4), []

        def fn(x, extra):
            seen.append(extra)
            return x @ w

        split(fn, [tensor(3, 4), other], [w], grad_position=-1)
        assert len(seen) == 1 and seen[0] is other

    def test_dataclass_instance(self):
        w, batch = weight(4, 4), Batch(tensor(3, 4))
        dx, _ = check(lambda x, extra: x @ w * extra.values, [tensor(3, 4), batch], [w], grad_position=-1)
        assert dx[1] is None

    def test_mask_that_is_called(self):
        w = weight(4, 4)
        check(lambda x, mask: mask(x @ w), [tensor(3, 4), CausalMask()], [w], grad_position=(0, 1))

    @pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.bool_])
    def test_integer_tensors(self, dtype):
        w, index = weight(4, 4), Tensor(np.array([1, 0, 1]).astype(dtype))
        dx, _ = check(lambda x, i: (x @ w) * i.astype(ms.float32).expand_dims(1), [tensor(3, 4), index], [w],
                      grad_position=(0, 1))
        assert dx[1] is None

    def test_nested_containers(self):
        w = weight(4, 4)
        inputs = [[tensor(3, 4), None, (tensor(4, seed=2), "text")], {"a": tensor(3, 4, seed=3), "b": {"c": 5}}]
        dx, _ = check(lambda one, two: one[0] @ w * one[2][0] + two["a"], inputs, [w], grad_position=-1)
        assert type(dx[0]) is list and dx[0][1] is None and dx[0][2][1] is None
        assert list(dx[1]) == ["a", "b"] and dx[1]["b"] == {"c": None}

    def test_named_tuple(self):
        w = weight(4, 4)
        dx, _ = check(lambda pair: pair.left @ w + pair.right, [Pair(tensor(3, 4), tensor(4, seed=2))], [w])
        assert type(dx) is Pair
        got, _ = split(lambda pair: pair.left @ w + pair.right, [Pair(tensor(3, 4), tensor(4, seed=2))], [w])
        assert type(got) is Pair and got.left.shape == (3, 4)

    def test_dict_subclass_keeps_its_type_for_fn(self):
        w, seen = weight(4, 4), []

        def fn(inputs):
            seen.append(type(inputs))
            return inputs["x"] @ w

        dx, _ = split(fn, [OrderedDict(x=tensor(3, 4), n=None)], [w])
        assert seen == [OrderedDict] and list(dx) == ["x", "n"] and dx["n"] is None

    def test_empty_containers(self):
        w = weight(4, 4)
        dx, _ = check(lambda x, a, b, c: x @ w, [tensor(3, 4), [], (), {}], [w], grad_position=-1)
        assert dx[1:] == ([], (), {})

    def test_tensor_without_elements(self):
        w = weight(4)
        check(lambda x, y: x * w + y.sum(), [tensor(3, 4), Tensor(np.zeros((0, 2), np.float32))], [w],
              grad_position=(0, 1))

    @pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1, 1)])
    def test_small_shapes(self, shape):
        w = weight(4)
        check(lambda x: x.sum() * w, [tensor(*shape)], [w])

    @pytest.mark.parametrize("dtype", [np.float16, np.float64], ids=lambda dtype: dtype.__name__)
    def test_other_dtypes(self, dtype):
        w = weight(4, 4, dtype=dtype)
        check(lambda x: x * w * w, [tensor(4, 4, dtype=dtype)], [w])

    def test_bfloat16(self):
        w = ms.Parameter(tensor(4, 4, seed=100).astype(ms.bfloat16), name="w")
        check(lambda x: x * w * w, [tensor(4, 4).astype(ms.bfloat16)], [w])

    def test_mixed_dtypes(self):
        w = weight(4, 4, dtype=np.float16)
        dx, dw = check(lambda x: ops.tanh(x.astype(ms.float16) * w).astype(ms.float32) * x, [tensor(4, 4)], [w])
        assert (dx.dtype, dw[0].dtype) == (ms.float32, ms.float16)


class TestCallables:
    """Anything that can be called."""

    class Object:
        """A callable object with a method."""

        def __init__(self):
            self.w = weight(4, 4)

        def __call__(self, x, scale=1.0):
            return ops.tanh(x @ self.w) * scale

        def method(self, x):
            return self(x, 2.0)

    def test_kinds(self):
        thing, dense = self.Object(), nn.Dense(4, 4)
        check(thing, [tensor(3, 4)], [thing.w])
        check(thing.method, [tensor(3, 4)], [thing.w])
        check(functools.partial(thing, scale=3.0), [tensor(3, 4)], [thing.w])
        check(dense.construct, [tensor(3, 4)], dense.trainable_params())
        check(dense, [tensor(3, 4)], dense.trainable_params())

    def test_jit_function(self):
        w = weight(4, 4)

        @ms.jit
        def compiled(x):
            return ops.tanh(x @ w)

        check(compiled, [tensor(3, 4)], [w])

    def test_kwargs(self):
        w = weight(4, 4)

        def fn(x, *, scale, bias=None, name=""):
            return x @ w * scale + bias

        kwargs = {"scale": 2.0, "bias": tensor(4, seed=3), "name": "text"}
        dx, _ = check(fn, [tensor(3, 4)], [w], grad_position=-1, kwargs=kwargs)
        assert dx[1]["scale"] is None and dx[1]["name"] is None
        check(fn, [tensor(3, 4)], [w], grad_position=0, kwargs=kwargs)

    def test_fn_that_changes_its_containers(self):
        w, inputs = weight(4, 4), {"x": tensor(3, 4)}

        def fn(values):
            return values.pop("x") @ w

        dx, _ = split(fn, [inputs], [w])
        assert list(inputs) == ["x"] and dx["x"].shape == (3, 4)
