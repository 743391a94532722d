"""What a module of factories is for the tests of commands that run one forward."""

import sys
from types import ModuleType

import mindspore as ms
from mindspore import nn, ops


class Net(nn.Cell):
    """Two layers with a tanh between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(4, 8), nn.Dense(8, 3)

    def construct(self, x):
        return self.second(ops.tanh(self.first(x)))


def failing(_):
    """A net that raises two lines."""
    raise KeyError("a mistake\n of the net")


def branching(x):
    """What cannot be compiled."""
    return x * 2 if x.sum() > 0 else x


def install(monkeypatch):
    """Make the factories importable as ``factories_of_a_test``."""
    module = ModuleType("factories_of_a_test")
    x = ops.ones((2, 4))
    module.good = lambda: (Net(), (x,), None)
    module.extras = lambda: {"fn": lambda a, b: (ops.tanh(a) * b, 3), "inputs": [x], "weights": (), "has_aux": True,
                             "kwargs": {"b": ops.ones((4,))}, "grad_position": -1, "sens": ops.ones((2, 4))}
    module.no_weights = lambda: (ops.tanh, (x,), None)
    module.integer = lambda: (lambda a: a.argmax(), (x,), None)
    module.number = lambda: (lambda a: 3, (x,), None)
    module.failing = lambda: (failing, (x,), None)
    module.branching = lambda: (branching, (x,), None)
    module.raises = lambda: {}["missing"]
    module.stops = lambda: sys.exit(5)
    module.two_things = lambda: (ops.tanh, (x,))
    module.wrong_weights = lambda: (ops.tanh, (x,), [3])
    module.no_function = 3
    net = Net()
    module.compiled = lambda: (ms.jit(net), (x,), net.trainable_params())
    monkeypatch.setitem(sys.modules, module.__name__, module)


BAD_FACTORIES = [
    (["nothing"], "'nothing' must be package.module:factory"),
    (["no_such_module:f"], "module no_such_module cannot be imported: ModuleNotFoundError"),
    (["factories_of_a_test:nothing"], "module factories_of_a_test has no function nothing"),
    (["factories_of_a_test:no_function"], "module factories_of_a_test has no function no_function"),
    (["factories_of_a_test:raises"], "factories_of_a_test:raises raised KeyError: 'missing'"),
    (["factories_of_a_test:stops"], "factories_of_a_test:stops raised SystemExit: 5"),
    (["factories_of_a_test:two_things"], "returned a tuple: it must return (fn, inputs, weights)"),
    (["factories_of_a_test:wrong_weights"], "weights[0] must be a Parameter, not a int"),
    (["factories_of_a_test:failing"], "fn of factories_of_a_test:failing failed: KeyError: 'a mistake\\n of the net'"),
    (["factories_of_a_test:branching", "--mode", "graph"], "cannot be compiled and split: it has control flow"),
    (["factories_of_a_test:good", "--picture", "a.pdf"], "path must end in .png or .svg, but is 'a.pdf'"),
    (["factories_of_a_test:good", "--picture", "/no/such/place/a.png"],
     "argument --picture: '/no/such/place/a.png' cannot be written: No such file or directory"),
    (["factories_of_a_test:good", "--picture", ""], "argument --picture: '' cannot be written: No such file or directory"),
    (["factories_of_a_test:good", "--picture", "."], "argument --picture: '.' cannot be written: Is a directory"),
    (["factories_of_a_test:good", "--mode", "fast"], "argument --mode: invalid choice: 'fast'"),
]
"""Arguments that are refused, and what is said."""


def refused(main, command, arguments, capsys):
    """The one line with which a command refuses its arguments."""
    try:
        code = main([command, *arguments])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2 and captured.out == ""
    assert captured.err.startswith(f"mindspore_zb {command}: ") and captured.err.count("\n") == 1
    return captured.err
