"""Random programs: the split backward equals the unsplit one.

``python -m tests.networks.generator SEED`` prints the program of a seed that fails.
"""

import traceback
from collections import Counter

import mindspore as ms
import numpy as np
import pytest

import mindspore_zb
from mindspore_zb import forward_and_gradfn

from tests.networks.compare import assert_same, unsplit_grads
from tests.networks.compiled import function_of
from tests.networks.generator import generate
from tests.networks.program import features, unused
from tests.networks.requests import make_request

SEEDS = 200
CHUNK = 10


CHUNKS = pytest.mark.parametrize("first", range(0, SEEDS, CHUNK),
                                 ids=lambda first: f"seeds{first}to{first + CHUNK - 1}")


@CHUNKS
def test_random_programs(first):
    def interpreted(program, weights):
        return lambda *values: program.run(weights, values)

    check_all(first, interpreted)


@pytest.mark.slow
@pytest.mark.one_engine  # whichever is asked for: these are compiled anyway
@pytest.mark.filterwarnings("ignore::mindspore_zb.fallback.FallbackWarning")
@CHUNKS
def test_compiled_random_programs(first, tmp_path):
    def compiled(program, weights):
        return ms.jit(function_of(program, weights, tmp_path))

    for seed, (engine, reason) in check_all(first, compiled, NOT_COMPILED).items():
        assert engine == "graph", f"seed {seed}: {reason}"


NOT_COMPILED = {"custom_bprop", "custom_function", "hooked"}
"""Operations that MindSpore cannot compile, at least not with their gradients."""


def check_all(first, make_fn, without=frozenset()):
    """Check a chunk of programs, those ``without`` some operations; returns by seed which engine it was, and why."""
    failures, engines = [], {}
    for seed in range(first, first + CHUNK):
        if without & {step.op for step in generate(seed).steps}:
            continue
        try:
            engines[seed] = check(seed, make_fn)
        except Exception as error:  # all seeds of the chunk are to be named
            place = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(f"seed {seed}: {type(error).__name__} in {place.name}: {error}")
    assert not failures, "\n".join(failures)
    return engines


def check(seed, make_fn):
    """Unsplit, split, and another micro-batch in flight, against MindSpore's own backward."""
    program = generate(seed)
    request = make_request(program)
    weights = program.make_weights()
    inputs = request.inputs(program)
    asked = [weights[number] for number in request.weights]
    split_fn = make_fn(program, weights)

    def fn(*values):
        return program.run(weights, values)

    def forward(values, order=slice(None)):
        given = asked[0] if request.single else asked[order]
        with mindspore_zb.options(free_early=request.free_early):
            return forward_and_gradfn(split_fn, *values, weights=given, grad_position=request.grad_position)

    out, grad_fn = forward(inputs)
    engine = grad_fn.engine, grad_fn.fallback_reason
    sens = request.sens(out)
    expected = unsplit_grads(fn, inputs, asked, sens, grad_position=request.grad_position)
    assert_same(out, expected.out, "out")
    check_unsplit(grad_fn, request, sens, expected)
    if request.grad_position is None:
        return engine
    other = None
    if seed % 2:
        other_inputs = program.make_inputs(batch=1)
        other_out, other = forward(other_inputs, slice(None, None, -1))
    dx = grad_fn.compute_input_grad(sens)
    if other is not None:
        other_sens = request.sens(other_out)
        other_dx = other.compute_input_grad(other_sens)
    assert_same(dx, expected.dx, "dx")
    assert_same(weight_grads(grad_fn, request), expected.dw, "dw")
    if other is not None:
        right = unsplit_grads(fn, other_inputs, asked, other_sens, grad_position=request.grad_position)
        assert_same(other_dx, right.dx, "dx of the second micro-batch")
        other_dw = as_tuple(other.compute_weight_grad(), request)[::-1]
        assert_same(other_dw, right.dw, "dw of the second micro-batch")
    check_zeros(program, request, expected)
    assert all(weight.requires_grad == (number not in program.frozen) for number, weight in weights.items())
    return engine


def check_unsplit(grad_fn, request, sens, expected):
    """``grad_fn(sens)``, keeping the graph for the split."""
    grads = grad_fn(sens, keep_graph=request.grad_position is not None)
    if request.grad_position is None:
        grads = (None, grads)
    elif not request.weights:
        grads = (grads, ())
    assert_same(grads[0], expected.dx, "unsplit dx")
    assert_same(as_tuple(grads[1], request), expected.dw, "unsplit dw")


def as_tuple(dw, request):
    """dw as a tuple also if one bare Parameter was given."""
    return (dw,) if request.single else dw


def weight_grads(grad_fn, request):
    """dw in the way the request asks for, as a tuple in the order of the weights."""
    way = request.way_of_dw
    if way.startswith("at once"):
        dw = grad_fn.compute_weight_grad(keep_graph=way == "at once, twice")
        if way == "at once, twice":
            assert_same(grad_fn.compute_weight_grad(), dw, "dw again")
        return as_tuple(dw, request)
    groups = list(grad_fn.weight_groups)
    rng = np.random.default_rng(request.seed)
    order = {"groups reversed": range(len(groups))[::-1], "groups in order": range(len(groups))}.get(
        way, rng.permutation(len(groups)))
    if way == "some groups first":
        order = order[:len(groups) // 2]
    grads = [None] * len(request.weights)
    for number in order:
        for place, grad in zip(groups[number].positions, groups[number].compute()):
            assert grads[place] is None
            grads[place] = grad
    if way == "some groups first":
        rest = as_tuple(grad_fn.compute_weight_grad(), request)
        for place, grad in enumerate(rest):
            assert (grad is None) != (grads[place] is None)
            grads[place] = grads[place] if grad is None else grad
    return tuple(grads)


def check_zeros(program, request, expected):
    """The reference itself gives zeros to what no output depends on."""
    idle = set(unused(program))
    for number, grad in zip(request.weights, expected.dw):
        assert number not in idle or not grad.asnumpy().any()


def test_every_feature_occurs():
    """The random programs and requests hold what they are there for."""
    counts = Counter()
    for seed in range(SEEDS):
        program = generate(seed)
        counts.update(features(program) | make_request(program).features())
    rare = {name: counts[name] for name in NAMED if counts[name] < 3}
    assert not rare, f"too rare among {SEEDS} seeds: {rare}"


NAMED = """
    matmul; linear; bmm; scores; tanh; silu; gelu; relu; softmax; log_softmax; add; sub; mul; safe_div; maximum; minimum
    where_mask; layer_norm; rms_norm; prelu; split; chunk; unbind; topk; concat; stack; bias_add; embed; embed_where
    unit_rows; product; transpose; stop_gradient; mean_last; sum_scaled; max_last; mean_all; swap_last; merge_rows
    narrow; flip; cumsum_scaled; argmax; to_int; custom_bprop; custom_function; hooked
    unused weight; unused input; unused piece; pieces on different paths; dead step; frozen weight; shared weight
    weight-only branch; weight-only output; one value twice; several outputs; repeated output; integer output
    output inside another's graph; input returned; weight returned; nested outputs; several inputs; input not reached
    grad_position is None; grad_position is -1; grad_position is an int; grad_position is tuple; sens is None
    sens with None; sens of None only; one bare weight; weights out of order; no weights; one tensor for two inputs
    kept until dw; dw at once; dw at once, twice; dw groups in order; dw groups reversed; dw groups shuffled
    dw some groups first
""".replace("\n", ";").split(";")
NAMED = [name.strip() for name in NAMED if name.strip()]


def test_a_seed_always_gives_the_same_program():
    for seed in (3, 17):
        assert str(generate(seed)) == str(generate(seed))
        assert make_request(generate(seed)) == make_request(generate(seed))
        one, two = (generate(seed).run(generate(seed).make_weights(), generate(seed).make_inputs()) for _ in range(2))
        assert_same(one, two)
