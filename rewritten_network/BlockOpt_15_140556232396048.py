import sys
import mindspore
from mindspore import nn
from mindspore.nn import Cell
from mindspore.ops import functional as F
#
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/ops/auto_generate')
from mindspore.ops.auto_generate.gen_ops_prim import *
from mindspore.ops.auto_generate.pyboost_inner_prim import *
from mindspore.ops.operations.manually_defined.ops_def import *
from mindspore.ops.auto_generate.gen_ops_def import cast_op

def cast_opt_15(input, dtype):
    cast_op_var = cast_op(input, dtype)
    return cast_op_var
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/ops/function')
from mindspore.ops.auto_generate import softmax_impl

def softmax_opt_15(input, axis=-1, *, dtype=None):
    isinstance_var_7 = isinstance(axis, int)
    not_var_3 = not isinstance_var_7
    if not_var_3:
        type_axis = type(axis).__name__
        raise TypeError(f" the type of 'axis' must be 'int', but got '{axis}' with type '{type_axis}'.")
    compare_var_6 = dtype is not None
    if compare_var_6:
        input = cast_opt_15(input, dtype)
    softmax_impl_var = softmax_impl(input, axis)
    return softmax_impl_var
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/ops/auto_generate')
from mindspore.ops.auto_generate.gen_ops_def import matmul_ext_op

def matmul_ext_opt_15(input, other):
    matmul_ext_op_var = matmul_ext_op(input, other)
    return matmul_ext_op_var
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/ops/function')

def matmul_opt_30(input, other):
    matmul_ext_var = matmul_ext_opt_15(input, other)
    return matmul_ext_var
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/ops/auto_generate')
from mindspore.ops._primitive_cache import _get_cache_prim
from mindspore.ops.auto_generate.gen_ops_def import StridedSlice

def strided_slice_15(input_x, begin, end, strides, begin_mask=0, end_mask=0, ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0):
    _get_cache_prim_var_5 = _get_cache_prim(StridedSlice)
    strided_slice_op = _get_cache_prim_var_5(begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    strided_slice_op_var = strided_slice_op(input_x, begin, end, strides)
    return strided_slice_op_var
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/ops/_utils')

def ms_arrange_15(x):
    range_var = range(x)
    out = list(range_var)
    return out
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/ops/function')
from array_func import _list_comprehensions

def _split_sub_tensors_15(x, split_size_or_sections, axis):
    new_indices = [0]
    enumerate_var = enumerate(split_size_or_sections)
    for i, split_size in enumerate_var:
        subscript_var_1 = new_indices[i]
        add_var = subscript_var_1 + split_size
        new_indices.append(add_var)
    new_indices = new_indices[1:]
    sub_tensors = []
    strides = _list_comprehensions(x.ndim, 1, True)
    begin = _list_comprehensions(x.ndim, 0)
    end = _list_comprehensions(x.shape)
    len_var = len(new_indices)
    ms_arrange_var = ms_arrange_15(len_var)
    for i in ms_arrange_var:
        idx = new_indices[i]
        begin[axis] = 0 if i == 0 else new_indices[i - 1]
        end[axis] = idx
        tuple_var_3 = tuple(end)
        tuple_var_2 = tuple(begin)
        sliced_tensor = strided_slice_15(x, tuple_var_2, tuple_var_3, strides)
        sub_tensors.append(sliced_tensor)
    return sub_tensors
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/ops/function')
from mindspore.ops import operations as P
from array_func import rank_
from array_func import _tuple_setitem
from array_func import tensor_slice

def _split_int_15(x, split_size_or_sections, axis):
    arr_shape = x.shape
    length_along_dim = arr_shape[axis]
    compare_var_1 = length_along_dim == 0
    if compare_var_1:
        _get_cache_prim_var = _get_cache_prim(P.Split)
        function_var = _get_cache_prim_var(axis)
        res = function_var(x)
    else:
        compare_var_2 = split_size_or_sections > length_along_dim
        if compare_var_2:
            _get_cache_prim_var_1 = _get_cache_prim(P.Split)
            function_var_1 = _get_cache_prim_var_1(axis, 1)
            res = function_var_1(x)
        else:
            mod_var = length_along_dim % split_size_or_sections
            compare_var_3 = mod_var == 0
            if compare_var_3:
                sections = length_along_dim // split_size_or_sections
                _get_cache_prim_var_2 = _get_cache_prim(P.Split)
                function_var_2 = _get_cache_prim_var_2(axis, sections)
                res = function_var_2(x)
            else:
                num_sections = length_along_dim // split_size_or_sections
                length1 = num_sections * split_size_or_sections
                length2 = length_along_dim - length1
                rank__var = rank_(x)
                start1 = _list_comprehensions(rank__var, 0, True)
                size1 = _tuple_setitem(arr_shape, axis, length1)
                start2 = _tuple_setitem(start1, axis, length1)
                size2 = _tuple_setitem(arr_shape, axis, length2)
                tensor_slice_var_1 = tensor_slice(x, start2, size2)
                _get_cache_prim_var_4 = _get_cache_prim(P.Split)
                function_var_6 = _get_cache_prim_var_4(axis, 1)
                function_var_4 = function_var_6(tensor_slice_var_1)
                tensor_slice_var = tensor_slice(x, start1, size1)
                _get_cache_prim_var_3 = _get_cache_prim(P.Split)
                function_var_5 = _get_cache_prim_var_3(axis, num_sections)
                function_var_3 = function_var_5(tensor_slice_var)
                res = function_var_3 + function_var_4
    return res
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/ops/function')
from mindspore.common import Tensor
from array_func import _canonicalize_axis

def split_opt_15(tensor, split_size_or_sections, axis=0):
    isinstance_var_3 = isinstance(tensor, Tensor)
    not_var_1 = not isinstance_var_3
    if not_var_1:
        raise TypeError(f'expect `tensor` is a Tensor, but got {type(tensor)}')
    isinstance_var_1 = isinstance(axis, bool)
    isinstance_var_2 = isinstance(axis, int)
    not_var = not isinstance_var_2
    or_var = not_var or isinstance_var_1
    if or_var:
        raise TypeError(f'Type of Argument `axis` should be integer but got {type(axis)}')
    arr_axis = _canonicalize_axis(axis, tensor.ndim)
    isinstance_var = isinstance(split_size_or_sections, int)
    and_var = isinstance_var and (not isinstance(split_size_or_sections, bool))
    if and_var:
        compare_var = split_size_or_sections > 0
        if compare_var:
            res = _split_int_15(tensor, split_size_or_sections, arr_axis)
        else:
            raise ValueError(f"For split, the value of 'split_size_or_sections' must be more than zero, but got {split_size_or_sections}.")
    else:
        tuple_var_1 = (list, tuple)
        isinstance_var_4 = isinstance(split_size_or_sections, tuple_var_1)
        if isinstance_var_4:
            for item in split_size_or_sections:
                isinstance_var_5 = isinstance(item, bool)
                isinstance_var_6 = isinstance(item, int)
                not_var_2 = not isinstance_var_6
                or_var_1 = not_var_2 or isinstance_var_5
                if or_var_1:
                    raise TypeError(f"Each element in 'split_size_or_sections' should be integer, but got {type(item)}.")
                compare_var_5 = item < 0
                if compare_var_5:
                    raise TypeError(f"Each element in 'split_size_or_sections' should be non-negative, but got {split_size_or_sections}.")
            subscript_var = tensor.shape[arr_axis]
            sum_var = sum(split_size_or_sections)
            compare_var_4 = sum_var != subscript_var
            if compare_var_4:
                raise ValueError(f"The sum of 'split_size_or_sections' should be equal to {tensor.shape[arr_axis]}, but got {sum(split_size_or_sections)}.")
            res = _split_sub_tensors_15(tensor, split_size_or_sections, arr_axis)
        else:
            raise TypeError(f'Type of Argument `split_size_or_sections` should be integer, tuple(int) or list(int), but got {type(split_size_or_sections)}')
    tuple_var = tuple(res)
    return tuple_var
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/ops/function')
import mindspore.common.dtype as mstype
from mindspore.common.tensor import Tensor
from nn_func import dtype_
from nn_func import gelu_
from nn_func import sqrt_
from nn_func import div_
from nn_func import erf_

def gelu_opt_15(input, approximate='none'):
    list_var_1 = ['none', 'tanh']
    compare_var_2 = approximate not in list_var_1
    if compare_var_2:
        raise ValueError("For ops.gelu, approximate value should be either 'none' or 'tanh'.")
    x_dtype = dtype_(input)
    list_var = [mstype.float16, mstype.float32, mstype.float64, mstype.bfloat16]
    compare_var_1 = x_dtype not in list_var
    if compare_var_1:
        raise TypeError(f'For gelu, the input dtype must be bfloat16, float16, float32 or float64, but got {x_dtype}.')
    compare_var = approximate == 'tanh'
    if compare_var:
        output = gelu_(input)
    else:
        Tensor_var_2 = Tensor(2.0, x_dtype)
        output = sqrt_(Tensor_var_2)
        output = div_(input, output)
        Tensor_var_1 = Tensor(1.0, x_dtype)
        erf__var = erf_(output)
        output = erf__var + Tensor_var_1
        Tensor_var = Tensor(0.5, x_dtype)
        mult_var = input * output
        output = mult_var * Tensor_var
    return output
#
sys.path.insert(0, '/tmp/wt_nets/tests/networks')
from zoo_dense import Mlp

class MlpOpt_15(Mlp, nn.Cell):

    def __init__(self, obj):
        nn.Cell.__init__(self)
        for key, value in obj.__dict__.items():
            setattr(self, key, value)

    def construct(self, x):
        subscript_var_1 = self.layers[:-1]
        for layer in subscript_var_1:
            layer_var = layer(x)
            x = gelu_opt_15(layer_var)
        subscript_var = self.layers[-1]
        function_var = subscript_var(x)
        return function_var
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/nn/layer')
from mindspore import ops
from mindspore.nn.cell import Cell
from basic import Dense
from mindspore.train.amp import amp_cast

class DenseOpt_31(Dense, Cell):

    def __init__(self, obj):
        Cell.__init__(self)
        for key, value in obj.__dict__.items():
            setattr(self, key, value)

    def construct(self, x):
        x_var = amp_cast(x, mindspore.float16)
        x_shape = self.shape_op(x_var)
        x_shape = amp_cast(x_shape, mindspore.float32)
        len_var_1 = len(x_shape)
        compare_var_1 = len_var_1 != 2
        if compare_var_1:
            subscript_var = x_shape[-1]
            usub_var = -1
            tuple_var = (usub_var, subscript_var)
            x_var_4 = amp_cast(x, mindspore.float16)
            tuple_var = amp_cast(tuple_var, mindspore.float16)
            x = self.reshape(x_var_4, tuple_var)
            x = amp_cast(x, mindspore.float32)
        x_var_1 = amp_cast(x, mindspore.float16)
        weight_var = amp_cast(self.weight, mindspore.float16)
        x = self.matmul(x_var_1, weight_var)
        x = amp_cast(x, mindspore.float32)
        if self.has_bias:
            x_var_3 = amp_cast(x, mindspore.float16)
            bias_var = amp_cast(self.bias, mindspore.float16)
            x = self.bias_add(x_var_3, bias_var)
            x = amp_cast(x, mindspore.float32)
        if self.activation_flag:
            x = self.activation(x)
        len_var = len(x_shape)
        compare_var = len_var != 2
        if compare_var:
            subscript_var_2 = ops.shape(x)[-1]
            tuple_var_1 = (subscript_var_2,)
            subscript_var_1 = x_shape[:-1]
            out_shape = subscript_var_1 + tuple_var_1
            x_var_2 = amp_cast(x, mindspore.float16)
            out_shape = amp_cast(out_shape, mindspore.float16)
            x = self.reshape(x_var_2, out_shape)
            x = amp_cast(x, mindspore.float32)
        return x

    def extend_repr(self):
        s = f'input_channels={self.in_channels}, output_channels={self.out_channels}'
        if self.has_bias:
            s += f', has_bias={self.has_bias}'
        if self.activation_flag:
            s += f', activation={self.activation}'
        return s
#
sys.path.insert(0, '/tmp/v/v210/lib/python3.11/site-packages/mindspore/nn/layer')

class DenseOpt_30(Dense, Cell):

    def __init__(self, obj):
        Cell.__init__(self)
        for key, value in obj.__dict__.items():
            setattr(self, key, value)

    def construct(self, x):
        x_var = amp_cast(x, mindspore.float16)
        x_shape = self.shape_op(x_var)
        x_shape = amp_cast(x_shape, mindspore.float32)
        len_var_1 = len(x_shape)
        compare_var_1 = len_var_1 != 2
        if compare_var_1:
            subscript_var = x_shape[-1]
            usub_var = -1
            tuple_var = (usub_var, subscript_var)
            x_var_4 = amp_cast(x, mindspore.float16)
            tuple_var = amp_cast(tuple_var, mindspore.float16)
            x = self.reshape(x_var_4, tuple_var)
            x = amp_cast(x, mindspore.float32)
        x_var_1 = amp_cast(x, mindspore.float16)
        weight_var = amp_cast(self.weight, mindspore.float16)
        x = self.matmul(x_var_1, weight_var)
        x = amp_cast(x, mindspore.float32)
        if self.has_bias:
            x_var_3 = amp_cast(x, mindspore.float16)
            bias_var = amp_cast(self.bias, mindspore.float16)
            x = self.bias_add(x_var_3, bias_var)
            x = amp_cast(x, mindspore.float32)
        if self.activation_flag:
            x = self.activation(x)
        len_var = len(x_shape)
        compare_var = len_var != 2
        if compare_var:
            subscript_var_2 = ops.shape(x)[-1]
            tuple_var_1 = (subscript_var_2,)
            subscript_var_1 = x_shape[:-1]
            out_shape = subscript_var_1 + tuple_var_1
            x_var_2 = amp_cast(x, mindspore.float16)
            out_shape = amp_cast(out_shape, mindspore.float16)
            x = self.reshape(x_var_2, out_shape)
            x = amp_cast(x, mindspore.float32)
        return x

    def extend_repr(self):
        s = f'input_channels={self.in_channels}, output_channels={self.out_channels}'
        if self.has_bias:
            s += f', has_bias={self.has_bias}'
        if self.activation_flag:
            s += f', activation={self.activation}'
        return s
#
sys.path.insert(0, '/tmp/wt_nets/tests/networks')
import numpy as np
from mindspore import Tensor, nn
from zoo_sequence import Attention

class AttentionOpt_15(Attention, nn.Cell):

    def __init__(self, obj):
        nn.Cell.__init__(self)
        for key, value in obj.__dict__.items():
            setattr(self, key, value)
        self.qkv = DenseOpt_30(self.qkv)
        self.out = DenseOpt_31(self.out)

    def construct(self, x):
        rows, length, width = x.shape
        usub_var_3 = -1
        qkv_var = self.qkv(x)
        query, key, value = split_opt_15(qkv_var, width, axis=usub_var_3)
        query, key, value = [part.reshape((rows, length, self.heads, self.size)).swapaxes(1, 2) for part in (query, key, value)]
        usub_var_2 = -0.5
        pow_var = self.size ** usub_var_2
        swapaxes_var_1 = key.swapaxes(2, 3)
        matmul_var = matmul_opt_30(query, swapaxes_var_1)
        scores = matmul_var * pow_var
        usub_var_1 = -10000.0
        tuple_var_1 = (length, length)
        full_var = np.full(tuple_var_1, usub_var_1, np.float32)
        triu_var = np.triu(full_var, 1)
        mask = Tensor(triu_var)
        usub_var = -1
        add_var = scores + mask
        softmax_var = softmax_opt_15(add_var, usub_var)
        mixed = matmul_opt_30(softmax_var, value)
        tuple_var = (rows, length, width)
        swapaxes_var = mixed.swapaxes(1, 2)
        reshape_var = swapaxes_var.reshape(tuple_var)
        out_var = self.out(reshape_var)
        return out_var
#
sys.path.insert(0, '/tmp/wt_nets/tests/networks')
from zoo_sequence import Block

class BlockOpt_15(Block, nn.Cell):

    def __init__(self, obj):
        nn.Cell.__init__(self)
        for key, value in obj.__dict__.items():
            setattr(self, key, value)
        self.attention = AttentionOpt_15(self.attention)
        self.mlp = MlpOpt_15(self.mlp)

    def construct(self, x):
        subscript_var_1 = self.norms[0]
        function_var_1 = subscript_var_1(x)
        attention_var = self.attention(function_var_1)
        x = x + attention_var
        subscript_var = self.norms[1]
        function_var = subscript_var(x)
        mlp_var = self.mlp(function_var)
        add_var = x + mlp_var
        return add_var
#