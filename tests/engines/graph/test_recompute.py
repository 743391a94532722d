"""The minimum cut against brute force, against closed formulas, and on large graphs."""

import ast
import doctest
import inspect
import itertools
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_zb.engines.graph import recompute
from mindspore_zb.engines.graph.recompute import RECOMPUTE_LEVELS, choose_saved
from mindspore_zb.errors import ArgumentValueError, ZeroBubbleError


def computed_from(problem, saved):
    """The values computed again if ``saved`` is kept, in order; None if the needs cannot be met."""
    inputs, needed, _, recomputable, free = problem
    order, seen = [], set()

    def have(value):
        if value in free or value in saved or value in seen:
            return True
        if not recomputable.get(value, False) or not all(have(item) for item in inputs.get(value, ())):
            return False
        seen.add(value)
        order.append(value)
        return True

    return order if all([have(value) for value in needed]) else None


def brute_force(problem):
    """Fewest bytes, and of all sets of as many the fewest values computed again; None if nothing will do."""
    nbytes = problem[2]
    can_be_kept = [value for value, size in nbytes.items() if size is not None and value not in problem[4]]
    best = None
    for count in range(len(can_be_kept) + 1):
        for saved in itertools.combinations(can_be_kept, count):
            order = computed_from(problem, set(saved))
            if order is not None:
                price = sum(nbytes[value] for value in saved), len(order)
                best = price if best is None else min(best, price)
    return best


@st.composite
def problems(draw):
    """Small graphs with everything: values that cannot be kept, free ones, repeated inputs, equal and zero sizes."""
    wiring = Random(draw(st.integers(0, 2 ** 64)))
    size = draw(st.integers(1, 9))
    names = [f"v{number}" for number in range(size)]
    inputs = {name: [wiring.choice(names[:place]) for _ in range(wiring.choice((1, 1, 2, 2, 3)))] if place else []
              for place, name in enumerate(names)}
    unit = wiring.choice((1, 3, 2 ** 32))
    nbytes = {name: wiring.choice((0, 1, 1, 2, 3, 5, None, None)) for name in names}
    nbytes = {name: None if count is None else unit * count for name, count in nbytes.items()}
    recomputable = {name: wiring.random() < 0.7 for name in names}
    needed = [wiring.choice(names) for _ in range(wiring.choice((1, 2, 3, 4)))]
    free = [name for name in names if wiring.random() < 0.15]
    return inputs, needed, nbytes, recomputable, free


def check_choice(problem, choice):
    """The choice can be carried out, and says the truth about itself."""
    inputs, needed, nbytes, recomputable, free = problem
    there = {*free, *choice.saved}
    assert not set(choice.saved) & {*free, *choice.recomputed}
    for value in choice.recomputed:
        assert recomputable[value] and value not in there
        assert there.issuperset(inputs.get(value, ())), value
        there.add(value)
    assert there.issuperset(needed)
    assert len(set(choice.saved)) == len(choice.saved)
    assert choice.saved_bytes == sum(nbytes[value] for value in choice.saved)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(problems())
def test_no_choice_is_cheaper(problem):
    best = brute_force(problem)
    if best is None:
        with pytest.raises(ArgumentValueError, match="can neither be kept nor computed again"):
            choose_saved(*problem)
        return
    choice = choose_saved(*problem)
    check_choice(problem, choice)
    assert (choice.saved_bytes, len(choice.recomputed)) == best
    assert choice == choose_saved(*problem)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_graph_changes_only_the_order_of_the_choice(problem, shuffle):
    if brute_force(problem) is None:
        return
    inputs, needed, nbytes, recomputable, free = problem
    items = shuffle.sample(list(inputs.items()), len(inputs))
    one = choose_saved(*problem)
    other = choose_saved(dict(items), shuffle.sample(needed, len(needed)), nbytes, recomputable, free)
    assert (set(one.saved), set(one.recomputed)) == (set(other.saved), set(other.recomputed))


def test_the_problems_are_worth_trying():
    """Among them are many with a real choice, and some without any."""
    found = {"impossible": 0, "again": 0, "not the needed": 0}

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(problems())
    def count(problem):
        best = brute_force(problem)
        if best is None:
            found["impossible"] += 1
            return
        choice = choose_saved(*problem)
        found["again"] += bool(choice.recomputed)
        found["not the needed"] += bool(set(choice.saved) - set(problem[1]))

    count()
    assert min(found.values()) >= 20, found


def test_the_bytes_of_keeping_what_is_needed():
    sizes = {"a": 4, "b": 6, "t": None}
    assert choose_saved({"b": ["a"]}, ["a", "b", "a"], sizes, {}).needed_bytes == 10
    assert choose_saved({"t": ["a"]}, ["a", "t"], sizes, {"t": True}).needed_bytes is None
    assert choose_saved({}, ["x"], {}, {}, free=["x"]) == recompute.Choice((), (), 0, 0)


def test_equal_bytes_are_kept_as_late_as_possible():
    inputs = {name: [before] for before, name in zip("abcd", "bcde")}
    choice = choose_saved(inputs, ["e"], dict.fromkeys("abcde", 4), dict.fromkeys("bcde", True))
    assert (choice.saved, choice.recomputed) == (("e",), ())


def test_a_narrow_value_far_above_is_kept():
    inputs = {name: [before] for before, name in zip("abcd", "bcde")}
    sizes = {"a": 9, "b": 1, "c": 9, "d": 9, "e": 9}
    choice = choose_saved(inputs, ["e", "c"], sizes, dict.fromkeys("bcde", True))
    assert (choice.saved, choice.recomputed) == (("b",), ("c", "d", "e"))


def test_what_is_computed_from_nothing_needs_nothing():
    assert choose_saved({"zeros": []}, ["zeros"], {"zeros": 4}, {"zeros": True}).recomputed == ("zeros",)


def test_sizes_beyond_32_bits_lose_nearly_nothing():
    """Sizes without a common divisor whose sum is far above what the flow can count: the best of independent pairs."""
    wiring = Random(5)
    inputs, sizes, recomputable, best = {}, {}, {}, 0
    for number in range(500):
        sizes[f"a{number}"], sizes[f"b{number}"] = wiring.randrange(2 ** 31), wiring.randrange(2 ** 31)
        inputs[f"b{number}"] = [f"a{number}"]
        recomputable[f"b{number}"] = True
        best += min(sizes[f"a{number}"], sizes[f"b{number}"])
    choice = choose_saved(inputs, [f"b{number}" for number in range(500)], sizes, recomputable)
    assert best <= choice.saved_bytes <= best * (1 + 1e-5)


def test_large_multiples_of_one_size_are_exact():
    """Five hundred values together are one unit smaller than the one they come from."""
    unit = 2 ** 20 + 7
    names = [f"b{number}" for number in range(500)]
    sizes = {name: unit * (500_000 + number) for number, name in enumerate(names)}
    sizes["a"] = sum(sizes.values()) + unit
    choice = choose_saved({name: ["a"] for name in names}, names, sizes, dict.fromkeys(names, True))
    assert set(choice.saved) == set(names)


def test_many_values_that_cannot_be_kept_do_not_overflow():
    names = [f"t{number}" for number in range(64)]
    with pytest.raises(ArgumentValueError, match="'t0' is needed, but 't0' can neither"):
        choose_saved({}, [*names, "x"], {"x": 2 ** 40}, {})


def test_errors_name_the_value():
    with pytest.raises(ArgumentValueError, match="value 'a' is computed from itself"):
        choose_saved({"a": ["b"], "b": ["a"]}, ["a"], {"a": 1, "b": 1}, {"a": True, "b": True})
    with pytest.raises(ArgumentValueError, match="value 'a' has -1 bytes"):
        choose_saved({}, ["a"], {"a": -1}, {})
    with pytest.raises(ArgumentValueError, match="value 'c' is needed, but 'a' can neither"):
        choose_saved({"c": ["b"], "b": ["a"]}, ["c"], {}, {"b": True, "c": True})
    assert issubclass(ArgumentValueError, ZeroBubbleError)


def test_arguments_stay_as_they_were():
    problem = ({"b": ["a"]}, ["b"], {"a": 1, "b": 2}, {"b": True}, ["x"])
    choose_saved(*problem)
    assert problem == ({"b": ["a"]}, ["b"], {"a": 1, "b": 2}, {"b": True}, ["x"])


# --- large graphs -----------------------------------------------------------------------------------------------------

def chain(size):
    """Each value but the first may be computed from the one before; later ones are smaller."""
    return ({value: [value - 1] for value in range(1, size)}, range(size),
            {value: 4 * (size - value) for value in range(size)}, {value: value > 0 for value in range(size)})


def transformer(size):
    """Blocks of ten values with a residual connection, of which the first and the sixth are products."""
    inputs, sizes, recomputable, before = {}, {}, {}, "x"
    for block in range(size // 10):
        names = [f"{block}.{place}" for place in range(10)]
        for place, (name, above) in enumerate(zip(names, [before, *names])):
            inputs[name] = [above, before] if place == 9 else [above]
            sizes[name] = 1024 * (place + 1)
            recomputable[name] = place not in (0, 5)
        before = names[-1]
    return inputs, list(inputs), sizes, recomputable, ["x"]


@pytest.mark.usefixtures("shallow_stack")
def test_a_chain_of_ten_thousand():
    choice = choose_saved(*chain(10_000))
    assert choice.saved == (0,)
    assert len(choice.recomputed) == 9_999


@pytest.mark.usefixtures("shallow_stack")
def test_a_transformer_of_ten_thousand_keeps_its_products():
    choice = choose_saved(*transformer(10_000))
    assert {name.split(".")[1] for name in choice.saved} == {"0", "5"}
    assert len(choice.saved) == 2_000
    assert choice.needed_bytes == 1_000 * 1024 * 55


@pytest.mark.parametrize("family", [chain, transformer], ids=lambda family: family.__name__)
def test_twice_the_size_is_twice_the_work(family):
    """Counted in lines of ours; the flow itself is scipy's."""
    small, large = lines_of(family(2_000)), lines_of(family(4_000))
    assert small > 2_000
    assert large < 2.2 * small


def lines_of(problem):
    """Lines that the choice runs in its own module."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename != recompute.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        choose_saved(*problem)
    finally:
        sys.settrace(before)
    return count


@pytest.fixture(name="shallow_stack")
def fixture_shallow_stack():
    """At most 150 calls deeper than here."""
    choose_saved({}, ["a"], {"a": 1}, {})  # scipy's import is deep
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 150)
    yield
    sys.setrecursionlimit(before)


# --- policies ---------------------------------------------------------------------------------------------------------

def test_each_policy_contains_the_one_before():
    assert list(RECOMPUTE_LEVELS) == ["none", "views", "elementwise", "cheap", "selective"]
    *levels, selective = RECOMPUTE_LEVELS.values()
    assert not levels[0]
    assert all(low < high for low, high in zip(levels, levels[1:]))
    assert selective == levels[-1]  # which products it has besides, depends on what they multiply


@pytest.mark.parametrize("operation, level", [
    ("Reshape", "views"), ("Transpose", "views"), ("Cast", "views"), ("TupleGetItem", "views"), ("Mul", "elementwise"),
    ("SiLU", "elementwise"), ("Erf", "elementwise"), ("Concat", "elementwise"), ("BiasAdd", "elementwise"),
    ("Softmax", "cheap"), ("LayerNorm", "cheap"), ("ReduceSum", "cheap")])
def test_policies_know_the_operations_of_networks(operation, level):
    levels = list(RECOMPUTE_LEVELS)
    assert [operation in RECOMPUTE_LEVELS[name] for name in levels] == [
        levels.index(name) >= levels.index(level) for name in levels]


@pytest.mark.parametrize("operation", [
    "Dropout", "DropoutExt", "Dropout2D", "Dropout3D", "StandardNormal", "UniformReal", "Randperm", "Multinomial",
    "Assign", "AssignAdd", "Print", "BatchNorm", "UpdateState", "TensorMove", "InplaceScatterSrc", "MatMul",
    "MatMulExt", "BatchMatMul", "Dense", "Conv2D", "LSTM", "Custom", "AllReduce", "FlashAttentionScore"])
def test_random_writing_and_dear_operations_are_in_no_policy(operation):
    assert all(operation not in operations for operations in RECOMPUTE_LEVELS.values())


# --- the module -------------------------------------------------------------------------------------------------------

def test_example_runs():
    results = doctest.testmod(recompute)
    assert results.attempted and not results.failed


def test_the_source_is_python_3_9_and_names_no_framework():
    tree = ast.parse(Path(recompute.__file__).read_text(encoding="utf-8"), feature_version=(3, 9))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in imported if name.split(".")[0] == "mindspore"]
    late = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not [node for node in late if "scipy" in ast.unparse(node) or "numpy" in ast.unparse(node)]


def test_importing_it_imports_nothing_large():
    script = ("import sys; import mindspore_zb.engines.graph.recompute; "
              "print([name for name in ('scipy', 'numpy', 'mindspore') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3], capture_output=True, text=True,
                          timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
