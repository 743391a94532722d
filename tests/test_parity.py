"""Parity: right engines pass, wrong ones do not, and the caller's net is afterwards as it was."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindspore_zb.engines.graph.recording import GraphRecording
from mindspore_zb.engines.pynative import recording as pynative_recording
from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.parity import Difference, EngineRun, ParityReport, compare_engines
from mindspore_zb.parity.task import prepare
from mindspore_zb.parity.unsplit import unsplit_backward
from mindspore_zb.parity.values import Distance, Value, distances, judge
from tests.networks.compare import assert_same, unsplit_grads
from tests.networks.zoo import build, normal

PYNATIVE, GRAPH = "split pynative", "split graph"


def perceptron():
    return nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 3))


def compare(net, *shapes, weights=None, **changes):
    inputs = tuple(normal(shape, place) for place, shape in enumerate(shapes))
    changes.setdefault("micro_batches", 1)
    return compare_engines(net, inputs, net.trainable_params() if weights is None else weights, **changes)


def verdicts(report):
    return [run.verdict for run in report.runs[1:]]


def recording_class():
    """The class whose methods the PyNative engine computes gradients by."""
    return next(kind for kind in vars(pynative_recording).values()
                if isinstance(kind, type) and "weight_grads" in vars(kind) and kind.__module__ ==
                pynative_recording.__name__)


def scale_dw(monkeypatch, kind, factor):
    """Make an engine's dw wrong."""
    right = kind.weight_grads
    monkeypatch.setattr(kind, "weight_grads", lambda self, *args: [
        (place, None if grad is None else grad * factor) for place, grad in right(self, *args)])


def scale_dx(monkeypatch, kind, factor):
    """Make an engine's dx wrong."""
    right = kind.input_grads
    monkeypatch.setattr(kind, "input_grads", lambda self, *args: [grad * factor for grad in right(self, *args)])


def test_right_engines_pass():
    net = perceptron()
    report = compare(net, (2, 4), micro_batches=2)
    assert report.passed and report.exit_code == 0 and not report.random and not report.notes
    assert [(run.way, run.engine, run.verdict) for run in report.runs] == [
        ("unsplit", "mindspore", "within"), (PYNATIVE, "pynative", "within"), (GRAPH, "graph", "within")]
    for run in report.runs[1:]:
        assert [(one.kind, one.name) for one in run.differences] == [
            ("out", "out"), ("dx", "dx"), *(("dw", weight.name) for weight in net.trainable_params())]
        assert all(one.relative <= one.allowed == 1e-5 for one in run.differences)
    assert all(run.first_seconds > 0 and run.seconds > 0 for run in report.runs)


@pytest.mark.parametrize("spoil, named", [(scale_dw, "dw"), (scale_dx, "dx")])
@pytest.mark.parametrize("way", [PYNATIVE, GRAPH])
def test_a_wrong_gradient_fails(way, spoil, named, monkeypatch):
    spoil(monkeypatch, GraphRecording if way == GRAPH else recording_class(), 1.001)
    report = compare(perceptron(), (2, 4))
    assert report.exit_code == 1 and not report.passed
    beyond = {one.kind for one in report.run(way).differences if one.verdict == "beyond"}
    assert beyond == {named}
    assert report.run(way).worst().relative == pytest.approx(1e-3, rel=1e-2)
    assert report.run(GRAPH if way == PYNATIVE else PYNATIVE).verdict == "within"


def test_a_tolerance_admits_what_is_within_it(monkeypatch):
    scale_dw(monkeypatch, GraphRecording, 1.001)
    assert compare(perceptron(), (2, 4), tolerance=1e-2).passed
    assert not compare(perceptron(), (2, 4), tolerance=1e-4).passed


class Faint(nn.Cell):
    """A weight whose gradient is 1e-8 of the other's, but is not rounding."""

    def __init__(self):
        super().__init__()
        self.strong = Parameter(normal((4, 3), 1), name="strong")
        self.faint = Parameter(normal((4, 3), 2), name="faint")

    def construct(self, x):
        return ops.matmul(x, self.strong) + 1e-8 * ops.matmul(x, self.faint)


def test_a_faint_gradient_that_is_wrong_is_no_rounding(monkeypatch):
    scale_dw(monkeypatch, GraphRecording, 0.5)
    report = compare(Faint(), (2, 4))
    assert {one.name for one in report.run(GRAPH).differences if one.verdict == "beyond"} == {"strong", "faint"}


class Normalised(nn.Cell):
    """The gradient of the first bias is zero but for rounding."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, has_bias=True, pad_mode="same")
        self.norm = nn.BatchNorm2d(4)

    def construct(self, x):
        return ops.tanh(self.norm(self.first(x)))


def test_rounding_is_no_alarm(monkeypatch):
    def other_rounding(self, *args):
        return [(place, grad + 1e-8 * ops.ones_like(grad) if grad.shape == (4,) else grad)
                for place, grad in right(self, *args)]

    right = GraphRecording.weight_grads
    monkeypatch.setattr(GraphRecording, "weight_grads", other_rounding)
    net = Normalised().set_train()
    report = compare(net, (3, 2, 8, 8))
    found = {one.name: one.verdict for one in report.run(GRAPH).differences}
    assert report.passed
    assert found["first.bias"] == "rounding" and found["first.weight"] == "within"


def test_state_is_compared_and_restored():
    net = Normalised().set_train()
    before = {parameter.name: parameter.asnumpy().copy() for parameter in net.get_parameters()}
    report = compare(net, (3, 2, 8, 8), micro_batches=2)
    assert report.passed
    assert [one.name for one in report.run(GRAPH).differences if one.kind == "state"] == [
        "norm.moving_mean", "norm.moving_variance"]
    after = {parameter.name: parameter.asnumpy() for parameter in net.get_parameters()}
    assert list(before) == list(after)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_state_that_an_engine_does_not_write_is_found(monkeypatch):
    from mindspore_zb.parity import compare as module

    right = module.run_forward

    def forgetful(fn, inputs, kwargs, weights, has_aux, grad_position, mode):
        kept = fn.norm.moving_mean.asnumpy().copy()
        result = right(fn, inputs, kwargs, weights, has_aux, grad_position, mode)
        if mode == "graph":
            fn.norm.moving_mean.set_data(Tensor(kept))
        return result

    monkeypatch.setattr(module, "run_forward", forgetful)
    report = compare(Normalised().set_train(), (3, 2, 8, 8))
    assert verdicts(report) == ["within", "beyond"]
    assert [one.name for one in report.run(GRAPH).differences if one.verdict == "beyond"] == ["norm.moving_mean"]


def test_names_that_the_first_call_of_a_cell_changes_do_not_make_it_fall_back():
    case = build("residual_mlp")
    names = [weight.name for weight in case.weights]
    report = compare_engines(case.fn, case.inputs, case.weights, micro_batches=1)
    assert report.run(GRAPH).engine == "graph" and report.passed
    assert [weight.name for weight in case.weights] == names


def test_a_random_net_neither_passes_nor_fails():
    net = nn.SequentialCell(nn.Dense(4, 64), nn.Dropout(p=0.5), nn.Dense(64, 3)).set_train()
    report = compare(net, (8, 4))
    assert report.random and report.exit_code == 2 and not report.passed
    assert verdicts(report) == ["random", "random"]
    assert not any(run.differences for run in report.runs)
    assert "set_train(False)" in report.notes[0]
    assert compare(net.set_train(False), (8, 4)).passed


def test_the_reason_of_a_fallback():
    net = perceptron()

    def looping(x):
        for _ in range(int(x.shape[0])):
            if float(x.sum()) > -1e9:
                x = net(x)
                break
        return x

    report = compare(net, (2, 4), weights=net.trainable_params())
    assert report.run(GRAPH).fallback_reason is None
    report = compare_engines(looping, (normal((2, 4)),), net.trainable_params(), micro_batches=1)
    assert report.passed
    assert report.run(GRAPH).engine == "pynative" and "control flow" in report.run(GRAPH).fallback_reason


def test_an_engine_that_raises_has_failed(monkeypatch):
    def broken(*_):
        raise RuntimeError("no\n kernel")

    monkeypatch.setattr(GraphRecording, "input_grads", broken)
    report = compare(perceptron(), (2, 4))
    assert report.exit_code == 1
    assert report.run(GRAPH).verdict == "failed" and report.run(GRAPH).error == "RuntimeError: no kernel"


def test_what_fn_raises_passes_through_and_the_state_is_restored():
    net = Normalised().set_train()
    calls = []

    def failing(x):
        out = net(x)
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("a mistake of the net")
        return out

    before = net.norm.moving_mean.asnumpy().copy()
    with pytest.raises(KeyError):
        compare_engines(failing, (normal((3, 2, 8, 8)),), net.trainable_params())
    assert np.array_equal(before, net.norm.moving_mean.asnumpy())


def test_the_unsplit_run_is_pynative_even_if_fn_is_compiled():
    seen = []

    @ms.jit
    def fn(x):
        note(seen)
        return ops.tanh(x)

    report = compare_engines(fn, (normal((2, 3)),), micro_batches=1)
    assert report.run(PYNATIVE).verdict == "within"
    assert seen


def note(seen):
    """What the compiler does not do."""
    seen.append(1)


def test_inputs_are_not_changed_by_fn():
    x, scratch = normal((2, 3)), normal((2, 3), 1)
    before = scratch.asnumpy().copy()

    def fn(x, scratch):
        y = x * scratch
        scratch[0] = 0.0
        return ops.tanh(y)

    assert verdicts(compare_engines(fn, (x, scratch), micro_batches=2))[0] == "within"
    assert np.array_equal(before, scratch.asnumpy())


@pytest.mark.parametrize("name", ["auxiliary", "keyword_tensors", "two_positions_of_three", "only_weights_asked_for",
                                  "several_heads", "unused_weights"])
def test_all_kinds_of_requests(name):
    case = build(name)
    report = compare_engines(case.fn, case.inputs, case.weights, kwargs=case.kwargs, has_aux=case.has_aux,
                             grad_position=case.grad_position, micro_batches=1)
    assert report.passed, report.table()


def test_given_sens():
    net = perceptron()
    right = compare(net, (2, 4), sens=normal((2, 3), 7))
    assert right.passed and compare(net, (2, 4), sens=None).passed
    zero = compare(net, (2, 4), sens=ops.zeros((2, 3)))
    assert zero.passed and "compares nothing" in zero.notes[0]


@pytest.mark.parametrize("name", ["mlp_silu", "keyword_tensors", "nested_inputs", "one_head_without_gradient",
                                  "several_heads", "only_unused_weights"])
def test_the_unsplit_run_agrees_with_the_reference_of_the_tests(name):
    case = build(name)
    sens = case.make_sens(case.fn(*case.inputs, **case.kwargs), 0)
    task = prepare(case.fn, case.inputs, case.weights, case.kwargs, case.grad_position, case.has_aux, sens, 1, None)
    for wanted, starts in ((sens, task.starts), (None, ())):
        _, dx, dw = unsplit_backward(case.fn, task.inputs, task.kwargs, task.weights, case.has_aux, case.grad_position,
                                     wanted, starts)
        expected = unsplit_grads(case.fn, case.inputs, case.weights, wanted, kwargs=case.kwargs, has_aux=case.has_aux,
                                 grad_position=case.grad_position)
        assert_same(dx, expected.dx, "dx", 1e-6)
        assert_same(tuple(dw), expected.dw, "dw", 1e-6)


@pytest.mark.parametrize("changes, error, message", [
    ({"fn": 3}, ArgumentTypeError, "fn must be callable, not a int"),
    ({"inputs": 3}, ArgumentTypeError, "inputs must be a tuple of the arguments of fn, not a int"),
    ({"kwargs": [1]}, ArgumentTypeError, "kwargs must be a dict, not a list"),
    ({"weights": [3]}, ArgumentTypeError, r"weights\[0\] must be a Parameter"),
    ({"grad_position": 5}, ArgumentValueError, "grad_position is 5, but fn got 1"),
    ({"grad_position": None}, ArgumentValueError, "there is nothing to compare"),
    ({"micro_batches": 0}, ArgumentValueError, "micro_batches must be an int from 1, not 0"),
    ({"tolerance": -1}, ArgumentValueError, "tolerance must be a number from 0, not -1"),
    ({"sens": "ones"}, ArgumentValueError, "sens must be 'random', None or nested tensors, not 'ones'"),
    ({"has_aux": True}, ArgumentTypeError, "with has_aux, fn must return a tuple"),
])
def test_bad_arguments(changes, error, message):
    arguments = {"fn": ops.tanh, "inputs": (normal((2, 3)),), **changes}
    with pytest.raises(error, match=message):
        compare_engines(arguments.pop("fn"), arguments.pop("inputs"), arguments.pop("weights", None), **arguments)


def value(array, dtype="Float32", name="a"):
    return Value("dw", name, None if array is None else np.asarray(array, np.float64), dtype)


@pytest.mark.parametrize("actual, expected, relative, note", [
    ([1.0, 2.0], [1.0, 2.0], 0.0, ""),
    ([1.0, 2.5], [1.0, 2.0], 0.25, ""),
    ([0.0, 1e-9], [0.0, 0.0], np.inf, ""),
    ([1.0], [1.0, 2.0], np.inf, "shape (1,), not (2,)"),
    ([1.0, np.nan], [1.0, np.nan], 0.0, ""),
    ([1.5, np.nan], [2.0, np.nan], 0.25, ""),
    ([1.0, np.nan], [1.0, 2.0], np.inf, "not finite in other places"),
    ([1.0, np.inf], [1.0, -np.inf], np.inf, "not finite in other places"),
    (None, [1.0], np.inf, "None"),
    ([1.0], None, np.inf, "should be None"),
    (None, None, 0.0, ""),
    ([], [], 0.0, ""),
])
def test_distances(actual, expected, relative, note):
    found = distances([value(actual)], [value(expected)])["dw", "a"]
    assert (found.relative, found.note) == (relative, note)


def test_values_that_only_one_side_has():
    found = distances([value([1.0], name="b")], [value([1.0], name="a")])
    assert [(key[1], distance.note) for key, distance in found.items()] == [("a", "missing"),
                                                                            ("b", "not in the unsplit run")]
    assert distances([value([1.0], "Float16")], [value([1.0])])["dw", "a"].note == "dtype Float16, not Float32"


def test_integers_must_be_equal_whatever_the_tolerance():
    found = {("out", "out"): Distance(0.1, 1.0, "Int32")}
    assert judge(found, 0.5)[0].verdict == "beyond"


def test_an_infinite_distance_is_never_rounding():
    found = {("dw", "a"): Distance(np.inf, np.inf, "Float32")}
    assert judge(found, None, found)[0].verdict == "beyond"


def test_a_report_is_strict_json_and_a_table():
    differences = (Difference("dx", "dx", np.inf, 1e-5, "beyond", "None"), Difference("dw", "w", 1e-7, 1e-5, "within"))
    report = ParityReport((EngineRun("unsplit", "mindspore", "within"), EngineRun(GRAPH, "graph", "beyond",
                                                                                differences)))
    read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert read["passed"] is False and read["runs"][1]["differences"][0]["relative"] is None
    assert report.table() == (("relative difference", GRAPH, "allowed"),
                              [("dx", "None BEYOND", "1e-05"), ("dw w", "1.0e-07", "1e-05")])
    with pytest.raises(KeyError):
        report.run("nothing")
