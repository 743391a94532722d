"""Recompute: bytes by formula, values to the last bit, one more forward, and a Cell that stays the caller's."""

import contextlib
import copy
import gc
import pickle
import random

import bench_nets  # of scripts/
import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, nn, ops

from mindspore_zb import forward_and_gradfn, options, zero_bubble
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError, StateError, UnsupportedError
from mindspore_zb.memory import SavedTensorLedger, apply_recompute
from tests.helpers import assert_grads_close, assert_same_bits, dw_by_groups, reference, tensor

POLICIES = [("full", {}), ("every", {}), ("every", {"every": 3}), ("selective", {})]


class Counting(nn.Cell):
    """A block that counts its forwards; ``dropout`` is "nn", "ops" or None."""

    def __init__(self, dropout=None, width=8):
        super().__init__()
        self.norm = nn.LayerNorm((width,))
        self.up, self.down = nn.Dense(width, 2 * width), nn.Dense(2 * width, width)
        self.drop = nn.Dropout(p=0.4)
        self.dropout = dropout
        self.forwards = 0

    def construct(self, x):
        self.forwards += 1
        hidden = ops.gelu(self.up(self.norm(x)))
        if self.dropout == "nn":
            hidden = self.drop(hidden)
        elif self.dropout == "ops":
            hidden = ops.dropout(hidden, 0.3)
        return x + self.down(hidden)


def blocks(dropout=None, count=4):
    """A net of blocks whose random operations start from the same seed each time it is made."""
    ms.set_seed(7)
    net = nn.SequentialCell([Counting(dropout) for _ in range(count)])
    net.set_train()
    return net


def forwards(net):
    return [block.forwards for block in net.cells()]


def applied(net, policy, **kwargs):
    return contextlib.nullcontext() if policy is None else apply_recompute(net, policy, **kwargs)


def split_run(dropout, policy, groups="given", **kwargs):
    """``(out, dx, dw)`` and the net."""
    net = blocks(dropout)
    with applied(net, policy, **kwargs):
        out, grad_fn = forward_and_gradfn(net, tensor(3, 8), weights=net.trainable_params())
    dx = grad_fn.compute_input_grad(tensor(3, 8, seed=1))
    return (out, dx, dw_by_groups(grad_fn, groups)), net


# --- bytes ------------------------------------------------------------------------------------------------------------

def transformer_bytes(policy, every=1, count=4, number=2 * 8 * 16 * 4):
    """Bytes after the forward, in closed form: block inputs, and for "selective" the results of qkv, proj, up, down."""
    return number * {"full": count, "every": -(-count // every), "selective": count * (1 + 3 + 1 + 4 + 1)}[policy]


@pytest.mark.parametrize("policy, kwargs, every", [("full", {}, 1), ("every", {}, 2), ("every", {"every": 3}, 3),
                                                   ("every", {"every": 9}, 9), ("selective", {}, 1)])
def test_bytes_by_formula(policy, kwargs, every):
    bench = bench_nets.transformer(4, 16, 2, 8)
    weights = bench.net.trainable_params()
    ledger = SavedTensorLedger(ignore=weights)
    gc.collect()
    gc.disable()  # freeing must not need the collector
    try:
        with apply_recompute(bench.net, policy, **kwargs), ledger.watch():
            out, grad_fn = forward_and_gradfn(bench.net, bench.x, weights=weights)
        assert ledger.alive_bytes() == pytest.approx(transformer_bytes(policy, every), rel=0.05)
        grad_fn.compute_input_grad()
        assert ledger.alive_bytes() == pytest.approx(bench.dw_bytes, rel=0.05)
        grad_fn.compute_weight_grad()
        assert ledger.alive_bytes() == 0
    finally:
        gc.enable()
    assert out is not None


def test_an_abandoned_forward_leaves_nothing():
    net = blocks("nn")
    ledger = SavedTensorLedger(ignore=net.trainable_params())
    with apply_recompute(net, "every"), ledger.watch():
        _, grad_fn = forward_and_gradfn(net, tensor(3, 8), weights=net.trainable_params())
        assert ledger.alive_bytes() > 0
        grad_fn.release()
        del grad_fn
        assert ledger.alive_bytes() == 0


# --- values -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dropout", [None, "nn", "ops"])
@pytest.mark.parametrize("policy, kwargs", POLICIES)
def test_same_bits_and_one_more_forward(dropout, policy, kwargs):
    expected, net = split_run(dropout, None)
    assert forwards(net) == [1] * 4
    for groups in ("given", "reversed", 1):
        found, net = split_run(dropout, policy, groups, **kwargs)
        assert_same_bits(found, expected)
        assert forwards(net) == [2] * 4


def test_the_mask_matters():
    """The comparison above can fail: other masks give other gradients."""
    one, _ = split_run("nn", None)
    net = blocks("nn")
    net(tensor(3, 8))  # draws the first masks
    out, _ = forward_and_gradfn(net, tensor(3, 8), weights=net.trainable_params())
    assert not np.array_equal(out.asnumpy(), one[0].asnumpy())


@pytest.mark.parametrize("policy, kwargs", POLICIES)
def test_plain_value_and_grad(policy, kwargs):
    def run(net):
        return ms.value_and_grad(lambda x: net(x).sum(), 0, net.trainable_params())(tensor(3, 8))

    expected = run(blocks("nn"))
    net = blocks("nn")
    with apply_recompute(net, policy, **kwargs):
        assert_same_bits(run(net), expected)
        assert forwards(net) == [2] * 4


@pytest.mark.parametrize("policy, kwargs", POLICIES)
def test_unsplit_again_and_again(policy, kwargs):
    net = blocks()
    expected = reference(net, [tensor(3, 8)], net.trainable_params())
    before = forwards(net)[0]
    with apply_recompute(net, policy, **kwargs):
        _, grad_fn = forward_and_gradfn(net, tensor(3, 8), weights=net.trainable_params())
        assert_grads_close(grad_fn(keep_graph=True), expected)
        assert_grads_close(grad_fn(), expected)
    assert forwards(net) == [before + 2] * 4


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("policy, kwargs", POLICIES)
def test_micro_batches_in_flight(policy, kwargs, early):
    net = blocks()
    batches = [tensor(3, 8, seed=seed) for seed in range(3)]
    expected = [reference(net, [batch], net.trainable_params()) for batch in batches]
    with apply_recompute(net, policy, **kwargs), options(free_early=early):
        grad_fns = [forward_and_gradfn(net, batch, weights=net.trainable_params())[1] for batch in batches]
    dx = {place: grad_fns[place].compute_input_grad() for place in (0, 2, 1)}
    dw = {place: grad_fns[place].compute_weight_grad() for place in (1, 0, 2)}
    assert_grads_close([(dx[place], dw[place]) for place in range(3)], expected)


class AllKinds(nn.Cell):
    """Keyword arguments, nested results, integers, a residual that skips, a weight used twice, batch normalisation."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.dense = nn.Dense(6, 6)
        self.scale = Parameter(tensor(6, seed=3), name="scale")

    def construct(self, x, *, state, factor=1.0):
        hidden = self.norm(self.dense(x) * self.scale)
        return hidden + self.scale, {"sum": state["sum"] + hidden * factor, "count": state["count"] + 1}


@pytest.mark.parametrize("policy", ["full", "every", "selective"])
def test_nested_arguments_and_statistics(policy):
    ms.set_seed(1)
    cells = [AllKinds() for _ in range(4)]
    for cell in cells:
        cell.set_train()

    def fn(x, y):
        state = {"sum": y, "count": 0}
        for cell in cells:
            x, state = cell(x, state=state, factor=0.5)
        return x, state

    weights = [weight for cell in cells for weight in cell.trainable_params()]
    statistics = [weight for cell in cells for weight in cell.get_parameters() if not weight.requires_grad]
    start = [weight.asnumpy().copy() for weight in statistics]

    def run(recompute):
        for weight, values in zip(statistics, start):
            weight.set_data(ms.Tensor(values))
        with recompute:
            out, grad_fn = forward_and_gradfn(fn, tensor(5, 6), tensor(5, 6, seed=2), weights=weights,
                                              grad_position=(0, 1))
        return out[0], grad_fn.compute_input_grad(), grad_fn.compute_weight_grad(), \
            [weight.copy() for weight in statistics]

    expected = run(contextlib.nullcontext())
    assert not np.array_equal(expected[3][0].asnumpy(), start[0])
    assert_same_bits(run(apply_recompute(cells, policy)), expected)


class Odd(nn.Cell):
    """Optional arguments, strings and None among results, an input passed on as it is."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x, mask=None, *, names=("a",)):
        if mask is not None:
            x = x + mask
        return {"hidden": ops.gelu(self.dense(x)), "x": x, "names": names, "none": None}


def odd_results():
    first, second = Odd(), Odd()

    def fn(x):
        result = first(x)
        result = second(result["hidden"], result["x"], names=["b"])
        return result["hidden"], result["x"]

    return fn, [first, second]


def tied_and_called_twice():
    dense = nn.Dense(4, 4)
    one, two = nn.SequentialCell(dense, nn.Tanh()), nn.SequentialCell(dense, nn.GELU())
    return lambda x: two(one(two(one(x)))), [one, two]


def frozen_block():
    net = nn.SequentialCell(*[nn.SequentialCell(nn.Dense(4, 4), nn.GELU()) for _ in range(3)])
    for weight in net[1].get_parameters():
        weight.requires_grad = False
    return net, net


@pytest.mark.parametrize("make", [odd_results, tied_and_called_twice, frozen_block])
@pytest.mark.parametrize("policy, kwargs", [("full", {}), ("every", {"every": 3}), ("selective", {})])
def test_awkward_blocks(make, policy, kwargs):
    fn, cells = make()
    weights = {id(weight): weight for cell in (cells if isinstance(cells, list) else [cells])
               for weight in cell.trainable_params()}.values()
    expected = reference(fn, [tensor(3, 4)], weights)
    with apply_recompute(cells, policy, **kwargs):
        _, grad_fn = forward_and_gradfn(fn, tensor(3, 4), weights=weights)
    assert_grads_close((grad_fn.compute_input_grad(), dw_by_groups(grad_fn, "reversed")), expected)


def test_a_block_that_gives_back_its_input():
    class Nothing(nn.Cell):
        """Returns what it gets."""

        def construct(self, x):
            return x

    net = nn.SequentialCell(nn.Dense(4, 4), Nothing(), nn.Dense(4, 4))
    expected = reference(net, [tensor(3, 4)], net.trainable_params())
    for every in (1, 3):
        with apply_recompute(net, "every", every=every):
            _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=net.trainable_params())
            assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)


def test_graph_mode_chosen_before_the_backward():
    net = blocks()
    expected = reference(net, [tensor(3, 8)], net.trainable_params())
    with apply_recompute(net, "every"):
        _, grad_fn = forward_and_gradfn(net, tensor(3, 8), weights=net.trainable_params())
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        found = grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert_grads_close(found, expected)


@ms.jit
def compiled_dropout(x):
    """What it draws, nobody sees."""
    return ops.dropout(x, 0.5)


RANDOM = {
    "compiled": compiled_dropout,
    "dropout": lambda x: ops.dropout(x, 0.5), "dropout2d": lambda x: ops.dropout2d(x.reshape(1, 6, 2, 3), 0.5),
    "rand": lambda x: ops.rand(6, 6) * x, "rand_like": lambda x: ops.rand_like(x) * x,
    "randn": lambda x: ops.randn(6, 6) * x, "bernoulli": lambda x: ops.bernoulli(ops.sigmoid(x)) * x,
    "uniform": lambda x: ops.uniform((6, 6), ms.Tensor(0., ms.float32), ms.Tensor(1., ms.float32)) * x,
    "normal": lambda x: ops.normal((6, 6), ms.Tensor(0.), ms.Tensor(1.)) * x, "rrelu": ops.rrelu,
    "randint": lambda x: ops.randint(0, 50, (6, 6)) * x, "randperm": lambda x: x[ops.randperm(6)],
    "laplace": lambda x: ops.laplace((6, 6), ms.Tensor(0.), ms.Tensor(1.)) * x,
    "numpy": lambda x: x * ms.Tensor(np.random.randn(6, 6).astype(np.float32)),
    "python": lambda x: x * (1 + random.random()),
}


class Randomly(nn.Cell):
    """A block whose result shows what it drew; ``seen`` has what each run gave."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.seen = []

    def construct(self, x):
        drawn = self.draw(ops.tanh(x)).reshape(6, 6)
        self.seen.append(drawn.asnumpy().copy())
        return ops.exp(drawn) * drawn


@pytest.mark.parametrize("name", RANDOM)
def test_random_operations_draw_the_same_again(name):
    block = Randomly(RANDOM[name])
    with apply_recompute([block]):
        for seed in range(2):
            _, grad_fn = forward_and_gradfn(block, tensor(6, 6, seed=seed))
            RANDOM[name](tensor(6, 6))  # draws in between
            drawn = np.random.get_state()[2], random.random()
            random.seed(drawn[1])
            grad_fn()
            assert np.random.get_state()[2] == drawn[0] and random.random() == random.Random(drawn[1]).random()
    first, again, second, second_again = block.seen
    assert first.tobytes() == again.tobytes() and second.tobytes() == second_again.tobytes()
    assert not np.array_equal(first, second)


def _to_float(net):
    return net.to_float(ms.float16)


def _amp(net):
    return ms.amp.auto_mixed_precision(lambda x: net(x), "auto", ms.float16)


@pytest.mark.parametrize("lower", [_to_float, _amp])
@pytest.mark.parametrize("policy", ["full", "every", "selective"])
def test_lower_precision_inside(lower, policy):
    results = []
    for recompute in (None, policy):
        net = blocks("nn")
        fn = lower(net)
        with applied(net, recompute):
            out, grad_fn = forward_and_gradfn(fn, tensor(3, 8), weights=net.trainable_params())
        results.append((out, grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()))
    assert_same_bits(results[1], results[0])
    exact, _ = split_run("nn", None)
    assert not np.array_equal(results[0][0].asnumpy(), exact[0].asnumpy())


# --- the Cell stays the caller's --------------------------------------------------------------------------------------

def test_the_cell_stays_the_callers():
    net = blocks("nn")
    names = [(weight.name, id(weight)) for weight in net.get_parameters()]
    kinds = [(type(cell), cell.construct, list(vars(cell))) for _, cell in net.cells_and_names()]
    text, state = repr(net), pickle.dumps([weight.asnumpy() for weight in net.get_parameters()])
    with apply_recompute(net, "selective") as handle:
        for when in ("applied", "used", "removed"):
            assert [(weight.name, id(weight)) for weight in net.get_parameters()] == names, when
            assert [(type(cell), cell.construct, list(vars(cell))) for _, cell in net.cells_and_names()] == kinds
            assert repr(net) == text
            assert pickle.dumps([weight.asnumpy() for weight in net.get_parameters()]) == state
            assert set(net.parameters_dict()) == {name for name, _ in names}
            if when == "applied":
                forward_and_gradfn(net, tensor(3, 8), weights=net.trainable_params())[1]()
            else:
                handle.remove()


def test_copies_are_not_recomputed():
    net = blocks()
    with apply_recompute(net):
        other = copy.deepcopy(net)
    for cells, times in ((net, 1), (other, 1)):
        before = forwards(cells)[0]
        forward_and_gradfn(cells, tensor(3, 8), weights=cells.trainable_params())[1]()
        assert forwards(cells) == [before + times] * 4


def test_removed_while_in_flight():
    net = blocks()
    expected = reference(net, [tensor(3, 8)], net.trainable_params())
    handle = apply_recompute(net, "selective")
    _, grad_fn = forward_and_gradfn(net, tensor(3, 8), weights=net.trainable_params())
    handle.remove()
    handle.remove()
    assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)
    before = forwards(net)[0]
    forward_and_gradfn(net, tensor(3, 8), weights=net.trainable_params())[1]()
    assert forwards(net) == [before + 1] * 4
    apply_recompute(net, "full").remove()


def test_without_gradients_it_runs_plainly():
    net = blocks()
    expected = net(tensor(3, 8))
    with apply_recompute(net, "every"):
        assert_same_bits(net(tensor(3, 8)), expected)
    assert forwards(net) == [2] * 4


@pytest.mark.parametrize("policy", ["full", "every", "selective"])
def test_hooks_run_as_ever(policy):
    seen = []
    net = blocks()
    net[1].register_forward_hook(lambda cell, args, out: seen.append("forward"))
    net[2].register_backward_hook(lambda cell, grad_in, grad_out: seen.append("backward"))
    results = []
    for recompute in (None, policy):
        with applied(net, recompute):
            _, grad_fn = forward_and_gradfn(net, tensor(3, 8), weights=net.trainable_params())
        results.append((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad(), tuple(seen)))
        del seen[:]
    assert results[0][2] == results[1][2] and set(results[0][2]) == {"forward", "backward"}
    assert_same_bits(results[1][:2], results[0][:2])


# --- errors -----------------------------------------------------------------------------------------------------------

class Failing(nn.Cell):
    """Raises in the runs that are told."""

    def __init__(self, runs):
        super().__init__()
        self.dense = nn.Dense(4, 4)
        self.runs, self.done = runs, 0

    def construct(self, x):
        self.done += 1
        hidden = ops.tanh(self.dense(x))
        if self.done in self.runs:
            raise ValueError("on purpose")
        return ops.tanh(hidden)


@pytest.mark.parametrize("run", [1, 2])
@pytest.mark.parametrize("policy", ["full", "every", "selective"])
def test_exceptions_leave_nothing_behind(run, policy):
    net = nn.SequentialCell(Failing(()), Failing((run,)))
    weights = net.trainable_params()
    ledger = SavedTensorLedger(ignore=weights)
    with apply_recompute(net, policy), ledger.watch():
        with pytest.raises(ValueError, match="on purpose"):
            forward_and_gradfn(net, tensor(3, 4), weights=weights)[1].compute_input_grad()
        assert ledger.alive_bytes() == 0
        out, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=weights)
        found = grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()
    assert_grads_close(found, reference(net, [tensor(3, 4)], weights))
    assert out is not None


@pytest.mark.parametrize("norm", [nn.Tanh(), nn.LayerNorm((4,))], ids=["tanh", "norm"])
def test_a_block_that_does_something_else_the_second_time(norm):
    class Moody(nn.Cell):
        """Does one operation more each time."""

        def __init__(self):
            super().__init__()
            self.dense, self.norm, self.times = nn.Dense(4, 4), norm, 0

        def construct(self, x):
            self.times += 1
            for _ in range(self.times):
                x = ops.tanh(self.dense(self.norm(x)))
            return x

    moody = Moody()
    with apply_recompute([moody]):
        _, grad_fn = forward_and_gradfn(moody, tensor(3, 4), weights=moody.trainable_params())
        with pytest.raises(UnsupportedError, match=r"blocks\[0\] \(Moody\) did other operations"):
            grad_fn.compute_input_grad()


def test_a_block_that_gives_another_shape_the_second_time():
    class Growing(nn.Cell):
        """Twice as long each time."""

        def __init__(self):
            super().__init__()
            self.times = 0

        def construct(self, x):
            self.times += 1
            return ops.exp(ops.tile(x, (self.times, 1)))

    growing = Growing()
    with apply_recompute([growing]):
        _, grad_fn = forward_and_gradfn(growing, tensor(3, 4))
        with pytest.raises(UnsupportedError, match="did other operations"):
            grad_fn()


def test_switched_to_inference_in_between():
    net = blocks("nn")
    with apply_recompute(net):
        _, grad_fn = forward_and_gradfn(net, tensor(3, 8), weights=net.trainable_params())
        net.set_train(False)
        with pytest.raises(StateError, match="between training and inference"):
            grad_fn.compute_input_grad()


class Custom(nn.Cell):
    """A Cell with a backward of its own."""

    def construct(self, x):
        return x * x

    def bprop(self, x, out, dout):
        return (2 * x * dout,)


@pytest.mark.parametrize("make, arguments, error, message", [
    (lambda: "blocks", {}, ArgumentTypeError, "blocks must be Cells, not a str"),
    (lambda: 3, {}, ArgumentTypeError, "not a int"),
    (lambda: [], {}, ArgumentValueError, "nothing to recompute"),
    (lambda: [nn.Dense(2, 2), ops.tanh], {}, ArgumentTypeError, r"blocks\[1\] must be a Cell"),
    (lambda: blocks(), {"policy": "half"}, ArgumentValueError, "full, every, selective, not 'half'"),
    (lambda: blocks(), {"policy": "every", "every": 0}, ArgumentValueError, "not 0"),
    (lambda: blocks(), {"policy": "every", "every": 1.5}, ArgumentTypeError, "not 1.5"),
    (lambda: blocks(), {"policy": "full", "every": 2}, ArgumentValueError, "every is for the policy 'every'"),
    (lambda: blocks(), {"keep": (nn.LayerNorm,)}, ArgumentValueError, "keep is for the policy 'selective'"),
    (lambda: blocks(), {"policy": "selective", "keep": "Dense"}, ArgumentTypeError, "keep must be classes"),
    (lambda: [nn.GELU()], {"policy": "selective"}, ArgumentValueError, "no linear layer"),
    (lambda: [Custom()], {}, UnsupportedError, "bprop"),
    (lambda: 2 * [nn.Dense(2, 2)], {}, ArgumentValueError, r"blocks\[1\] is the same Cell as blocks\[0\]"),
    (lambda: (lambda net: [net, net[1]])(blocks()), {}, ArgumentValueError, "is a part of"),
    (lambda: (lambda net: (net[1].recompute(), net)[1])(blocks()), {}, StateError, "recomputed already"),
    (lambda: (lambda net: (apply_recompute(net), net)[1])(blocks()), {}, StateError, "recomputed already"),
    (lambda: [zero_bubble(nn.Dense(2, 2), mode="graph")], {}, UnsupportedError, "graph_recompute")])
def test_refused(make, arguments, error, message):
    with pytest.raises(error, match=message):
        apply_recompute(make(), **arguments)


def test_refused_as_a_whole():
    net = blocks()
    with pytest.raises(UnsupportedError):
        apply_recompute([*net.cells(), Custom()])
    apply_recompute(net).remove()  # nothing was applied


# --- beside other things ----------------------------------------------------------------------------------------------

class Compiled(nn.Cell):
    """A compiled block."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    @ms.jit
    def construct(self, x):
        return ops.tanh(self.dense(x))


def test_compiled_blocks_are_refused():
    with pytest.raises(UnsupportedError, match=r"blocks\[0\].* is compiled"):
        apply_recompute([Compiled()])


def test_compiled_block_beside_recomputed_ones():
    net = nn.SequentialCell(nn.Dense(4, 4), Compiled(), nn.SequentialCell(nn.Dense(4, 4), nn.GELU()))
    weights = net.trainable_params()
    expected = reference(net, [tensor(3, 4)], weights)
    with apply_recompute([net[0], net[2]]):
        _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=weights)
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)


def test_custom_bprop_and_function_inside_a_block():
    class Double(ms.common._grad_function._Function):
        """Twice its input."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    class Inside(nn.Cell):
        """A Dense between both."""

        def __init__(self):
            super().__init__()
            self.custom, self.dense = Custom(), nn.Dense(4, 4)

        def construct(self, x):
            return ops.tanh(Double.apply(self.dense(ops.tanh(self.custom(x)))))

    net = nn.SequentialCell(Inside(), Inside())
    weights = net.trainable_params()
    expected = reference(net, [tensor(3, 4)], weights)
    for policy in ("full", "every", "selective"):
        with apply_recompute(net, policy):
            _, grad_fn = forward_and_gradfn(net, tensor(3, 4), weights=weights)
            assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)
            assert_grads_close(reference(net, [tensor(3, 4)], weights), expected)


def test_inside_mindspores_own_recompute():
    net = blocks()
    weights = net.trainable_params()
    expected = reference(net, [tensor(3, 8)], weights)
    with apply_recompute(net):
        _, grad_fn = forward_and_gradfn(lambda x: ms.recompute(net, x, use_reentrant=False), tensor(3, 8),
                                        weights=weights)
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)


def test_recompute_inside_recompute():
    net = blocks("nn", count=2)
    expected = ms.value_and_grad(lambda x: net(x).sum(), 0, net.trainable_params())(tensor(3, 8))
    net = blocks("nn", count=2)
    ledger = SavedTensorLedger(ignore=net.trainable_params())
    with apply_recompute([net[0]]), apply_recompute([net[1]]):
        with pytest.raises(StateError):
            apply_recompute([net])
    outer = nn.SequentialCell(net)
    with apply_recompute([outer[0]]), apply_recompute([net[0]]), ledger.watch():
        out, grad_fn = forward_and_gradfn(lambda x: outer(x).sum(), tensor(3, 8), weights=net.trainable_params())
        assert ledger.alive_bytes() == 4 * 3 * 8 + 2 * 4 * 3 * 16  # the input and, of each block, the mask
        assert_same_bits((out, (grad_fn.compute_input_grad(), grad_fn.compute_weight_grad())), expected)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["graph", "jit"])
def test_under_the_graph_engine_values_are_right(mode):
    net = nn.SequentialCell(*[nn.SequentialCell(nn.Dense(4, 4), nn.GELU()) for _ in range(3)])
    weights = net.trainable_params()
    expected = reference(net, [tensor(3, 4)], weights)
    with apply_recompute(net, "every"):
        if mode == "graph":
            zero_bubble(net, mode="graph")
            _, grad_fn = net.forward_and_gradfn(tensor(3, 4))
        else:
            @ms.jit
            def compiled(x):
                return net(x)

            _, grad_fn = forward_and_gradfn(compiled, tensor(3, 4), weights=weights)
        assert grad_fn.engine == "graph"
        assert_grads_close((grad_fn.compute_input_grad(), grad_fn.compute_weight_grad()), expected)
