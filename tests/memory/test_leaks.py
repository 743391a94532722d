"""The leak finder names who holds graphs over steps, is silent on a clean loop, and holds nothing itself."""

import dataclasses
import gc
import weakref

import mindspore as ms
import pytest
from mindspore import nn, ops

from mindspore_zb import forward_and_gradfn
from mindspore_zb.errors import StateError, UnsupportedError
from mindspore_zb.memory import LeakFinder, LeakReport, SavedTensorLedger
from mindspore_zb.memory.leaks import UNKNOWN

from tests.helpers import tensor

WIDTH, BATCH = 8, 4
ACTIVATIONS = 4 * BATCH * WIDTH  # bytes of the input, and of what tanh saves


@pytest.fixture(autouse=True)
def without_collector():
    """The finder must not need it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(name="net")
def fixture_net():
    return nn.Dense(WIDTH, WIDTH)


@pytest.fixture(name="loss_of")
def fixture_loss_of(net, recording):
    """A loss with a history, as of a caller who records by himself."""
    def loss_of(x):
        with recording():
            return ops.tanh(net(x)).sum()
    return loss_of


def leaks_of(finder):
    """What was found, as ``{holder: leak}``."""
    return {leak.holder: leak for leak in finder.report().leaks}


def test_a_list_of_losses(loss_of):
    finder, losses, x = LeakFinder(), [], tensor(BATCH, WIDTH)
    for _ in range(4):
        with finder.step():
            loss = loss_of(x)
            losses.append(loss)
    report = finder.report()
    assert [leak.holder for leak in report.leaks] == [
        "losses[...] (a list; losses is a local variable of test_a_list_of_losses)"]
    leak = report.leaks[0]
    assert (leak.what, leak.count, leak.steps) == ("tensor", 4, (0, 1, 2, 3))
    assert leak.nbytes == ACTIVATIONS + 4 * ACTIVATIONS  # the input once, and of each step what tanh saved
    assert report.alive_bytes == tuple(ACTIVATIONS * (1 + count) for count in (1, 2, 3, 4))
    losses.clear()
    assert finder.report().leaks == ()


def test_an_attribute(loss_of):
    class Trainer:
        """Keeps what it should not."""

        def __init__(self):
            self.history = {}

        def train(self, steps):
            for step in range(steps):
                with finder.step():
                    self.history["loss", step] = loss_of(tensor(BATCH, WIDTH, seed=step))

    finder, trainer = LeakFinder(), Trainer()
    trainer.train(3)
    found = leaks_of(finder)
    assert list(found) == [
        "trainer.history[...] (Trainer.history, a dict; trainer is a local variable of test_an_attribute)"]
    assert [leak.nbytes for leak in found.values()] == [3 * 2 * ACTIVATIONS]


def test_a_forgotten_grad_function(net):
    """One of three micro-batches of each step is never finished."""
    finder, waiting = LeakFinder(), []
    for step in range(3):
        with finder.step():
            for number in range(3):
                _, grad_fn = forward_and_gradfn(net, tensor(BATCH, WIDTH, seed=(step, number)),
                                                weights=net.trainable_params())
                grad_fn.compute_input_grad()
                if number == 1:
                    waiting.append(grad_fn)
                else:
                    grad_fn.compute_weight_grad()
    found = leaks_of(finder)
    assert list(found) == [
        "waiting[...] (a list; waiting is a local variable of test_a_forgotten_grad_function)"]
    leak = found.popitem()[1]
    assert (leak.what, leak.count, leak.steps, leak.nbytes) == ("GradFunction", 3, (0, 1, 2), 3 * ACTIVATIONS)
    for grad_fn in waiting:
        grad_fn.compute_weight_grad()
    assert finder.report().leaks == ()


@ms.jit
def compiled(x):
    """A compiled function whose backward reads its output."""
    return ops.tanh(x)


def test_forgotten_grad_functions_of_the_graph_engine():
    finder, waiting = LeakFinder(), []
    for seed in range(2):
        with finder.step():
            waiting.append(forward_and_gradfn(compiled, tensor(BATCH, WIDTH, seed=seed))[1])
    assert waiting[0].engine == "graph"
    leak, = finder.report().leaks
    assert leak.holder.startswith("waiting[...]") and leak.steps == (0, 1)
    assert leak.nbytes >= 2 * ACTIVATIONS


def test_a_running_total(loss_of, recording):
    """One tensor leads to the graphs of all steps."""
    finder, total = LeakFinder(), 0.0
    with recording():
        for seed in range(4):
            with finder.step():
                total = total + loss_of(tensor(BATCH, WIDTH, seed=seed))
    found = leaks_of(finder)
    assert list(found) == ["total (a local variable of test_a_running_total)"]
    leak = found.popitem()[1]
    assert (leak.count, leak.steps, leak.nbytes) == (1, (0, 1, 2, 3), 4 * 2 * ACTIVATIONS)


def test_a_cycle_of_references(loss_of):
    class Box:
        """Holds itself."""

    finder = LeakFinder()
    for seed in range(3):
        with finder.step():
            box = Box()
            box.itself, box.loss = box, loss_of(tensor(BATCH, WIDTH, seed=seed))
    del box
    assert [holder for holder in leaks_of(finder) if "cycle" in holder] == [
        "a cycle of references, which only Python's garbage collector frees"]
    gc.collect()
    assert finder.report().leaks == ()


def test_what_no_tensor_leads_to_is_told_as_well(loss_of):
    from mindspore_zb.engines.pynative.native import grad_edge
    finder, nodes = LeakFinder(), []
    for seed in range(3):
        with finder.step():
            nodes.append(grad_edge(loss_of(tensor(BATCH, WIDTH, seed=seed))))
    leak, = finder.report().leaks
    assert (leak.holder, leak.count, leak.steps, leak.nbytes) == (UNKNOWN, 2, (0, 1), 2 * 2 * ACTIVATIONS)


def test_a_clean_loop_of_fifty_steps(net, loss_of):
    """With our split, with MindSpore's value_and_grad, and with a loss that lives until the next one."""
    weights, finder = net.trainable_params(), LeakFinder()
    optimizer = nn.SGD(weights, learning_rate=0.01)
    values = []
    for seed in range(50):
        x = tensor(BATCH, WIDTH, seed=seed)
        with finder.step():
            loss = loss_of(x)
            values.append(float(loss))
            _, grad_fn = forward_and_gradfn(net, x, weights=weights)
            grad_fn.compute_input_grad()
            grads = grad_fn.compute_weight_grad()
            ms.value_and_grad(lambda value: net(value).sum(), None, weights)(x)
            optimizer(grads)
    report = finder.report()
    assert report.leaks == ()
    assert report.alive_bytes[49] == report.alive_bytes[1] == 2 * ACTIVATIONS
    assert "50 steps, no graph outlives the step after its own" in str(report)


def test_the_finder_holds_nothing(net, loss_of):
    finder, x = LeakFinder(), tensor(BATCH, WIDTH)
    kept = [loss_of(x)]
    with finder.step():
        loss = loss_of(x)
        _, grad_fn = forward_and_gradfn(net, x, weights=net.trainable_params())
    with finder.step():
        pass
    assert finder.report().alive_bytes[1] > 0
    gone = [weakref.ref(thing) for thing in (loss, grad_fn, x, kept[0])]
    report = finder.report()
    del loss, grad_fn, x
    kept.clear()
    assert [reference() for reference in gone] == [None] * 4
    assert LeakFinder.report(finder).leaks == ()
    assert report.leaks and all(isinstance(leak.holder, str) for leak in report.leaks)


def test_the_report_is_plain_data(loss_of):
    finder, losses = LeakFinder(), []
    assert str(finder.report()) == "no step was watched"
    for seed in range(3):
        with finder.step():
            losses.append(loss_of(tensor(BATCH, WIDTH, seed=seed)))
    report = finder.report()
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.steps = 0
    lines = str(report).splitlines()
    assert lines[0] == (f"3 steps, graphs of earlier ones are alive; {2 * ACTIVATIONS} bytes of saved tensors alive "
                        f"after step 0, {6 * ACTIVATIONS} after step 2")
    assert lines[2].split()[-4:] == ["tensor", "3", "0-2", str(6 * ACTIVATIONS)]
    assert isinstance(report, LeakReport)


def test_a_step_that_raises(loss_of):
    finder = LeakFinder()
    with pytest.raises(KeyError), finder.step():
        loss_of(tensor(BATCH, WIDTH))
        raise KeyError("no")
    with finder.step():
        loss_of(tensor(BATCH, WIDTH))
    assert finder.report().steps == 2


def test_recompute_that_is_broken_off(loss_of):
    """MindSpore 2.10 breaks off an operation whose result nobody then gets: asking for its history would never end."""
    block, finder, kept = nn.SequentialCell(nn.Tanh()), LeakFinder(), []
    block.append(nn.Tanh())

    def fn(value):
        return ms.recompute(block, value, use_reentrant=False) * 1.0

    for seed in range(2):
        with finder.step():
            _, grad_fn = forward_and_gradfn(fn, tensor(BATCH, WIDTH, seed=seed))
            grad_fn()
            kept.append(loss_of(tensor(BATCH, WIDTH, seed=seed)))
    assert [leak.steps for leak in finder.report().leaks] == [(0, 1)]


def test_what_cannot_be_watched_together_is_refused():
    finder, other = LeakFinder(), LeakFinder()
    with finder.step():
        with pytest.raises(StateError, match="a step is being watched already"):
            with finder.step():
                pass
        with pytest.raises(StateError, match="active already"):
            with other.step():
                pass
        with pytest.raises(UnsupportedError, match="would hide from it"):
            with SavedTensorLedger().watch():
                pass
    assert finder.report().steps == 1 and other.report().steps == 0


def test_values_are_those_without_it(net):
    x, weights = tensor(BATCH, WIDTH), net.trainable_params()
    with LeakFinder().step():
        watched = forward_and_gradfn(net, x, weights=weights)[1]()
    found = forward_and_gradfn(net, x, weights=weights)[1]()
    assert [grad.asnumpy().tobytes() for grad in (watched[0], *watched[1])] == [
        grad.asnumpy().tobytes() for grad in (found[0], *found[1])]
