"""A graph that the check accepts ends no process: real graphs, and hundreds of spoiled ones, run in a process apart."""

import ast
import doctest
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from mindspore.train.mind_ir_pb2 import AttributeProto, ModelProto

from mindspore_zb.engines.graph import attributes, checking, reading, verbatim
from mindspore_zb.engines.graph.checking import check_model, parse_model
from mindspore_zb.engines.graph.reading import index_model
from mindspore_zb.errors import MalformedGraphError, ZeroBubbleError

from . import models, mutations
from .mutations import BYTE_KINDS, KINDS

ROOT = Path(__file__).resolve().parents[3]
SEEDS = 8  # of each kind of mutation


@pytest.fixture(name="cases", scope="module")
def fixture_cases(tmp_path_factory):
    """All graphs; the compiler may write files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("compiled"))
        return models.cases()


@pytest.fixture(name="by_name", scope="module")
def fixture_by_name(cases):
    return {case.name: case for case in cases}


def outcomes(jobs, folder):
    """What became of each graph in a process of its own; one that ends the process "died", and another begins."""
    progress = folder / "progress"
    progress.touch()
    found = {}
    work = list(enumerate(jobs))
    while work:
        (folder / "jobs").write_bytes(pickle.dumps(work))
        child = subprocess.run([sys.executable, "-m", "tests.engines.graph.load_child", str(folder / "jobs"),
                                str(progress)], cwd=ROOT, capture_output=True, text=True, errors="replace",
                               timeout=300)
        last = None
        for line in progress.read_text(encoding="utf-8").splitlines():
            number, _, what = line.partition(" ")
            last = int(number)
            found[last] = what
        assert last is not None, child.stderr
        if found[last] == "begins":
            found[last] = f"died with {child.returncode}"
            with open(progress, "a", encoding="utf-8") as file:
                print(last, found[last], file=file)
        elif child.returncode:
            raise AssertionError(f"the process ended with {child.returncode} between two graphs: {child.stderr}")
        work = [job for job in work if job[0] > last]
    return [found[number] for number in range(len(jobs))]


def spoiled(cases, kind, seed):
    """A case, and a mutation of its model as bytes; None if the kind changes nothing there."""
    random = Random(f"{kind.__name__} {seed}")
    case = random.choice(cases)
    if kind in BYTE_KINDS:
        return case, kind(case.model.SerializeToString(), random)
    model = ModelProto()
    model.CopyFrom(case.model)
    try:
        kind(model, random)
    except IndexError:
        return case, None
    return case, None if model == case.model else model.SerializeToString()


# --- graphs as they are -----------------------------------------------------------------------------------------------

def test_real_graphs_are_accepted_and_run(cases, tmp_path):
    for case in cases:
        index = check_model(case.model)
        assert check_model(case.model, case.original) == index
        assert check_model(parse_model(case.model.SerializeToString()), index_model(case.original)) == index
    results = outcomes([(case.model.SerializeToString(), case.arguments) for case in cases], tmp_path)
    assert all(result.startswith("ran ") for result in results), results


def test_the_index_says_what_the_graph_holds(by_name):
    model = by_name["parts"].model
    index = check_model(model)
    split, = [name for name in index.nodes if index.operation(name).startswith("Split")]
    kind, elements = index.types[split]
    assert kind == "TUPLE" and sorted(elements) == [("tensor", "FLOAT", (2, width)) for width in (1, 2, 3)]
    elements = {index.sources[name] for name in index.nodes if index.operation(name) == "TupleGetItem"
                and index.nodes[name].input[0] == split}
    assert elements == {(split, (0,)), (split, (1,)), (split, (2,))}
    given = model.graph.input[0].name
    assert index.operation(given) is None
    assert index.types[given] == ("tensor", "FLOAT", (2, 6))
    loads = [name for name in index.nodes if index.operation(name) == "Load"]
    assert {index.sources[name] for name in loads} == {(model.graph.parameter[0].name, ())}


# --- spoiled graphs ---------------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_spoiled_graphs_are_refused_or_run(cases, tmp_path):
    """Against the original, a graph that is accepted even gives the same results, unless its data were changed."""
    indices = {case.name: index_model(case.original) for case in cases}
    counts, jobs, told = Counter(), [], []
    for kind in [*KINDS, *BYTE_KINDS]:
        for seed in range(SEEDS):
            case, data = spoiled(cases, kind, seed)
            if data is None:
                continue
            counts["tried"] += 1
            try:
                model = parse_model(data)
                check_model(model, indices[case.name])
            except MalformedGraphError as error:
                counts["refused"] += 1
                assert "\n" not in str(error) and len(str(error)) > 15
                continue
            jobs.append((model.SerializeToString(), case.arguments))
            told.append((kind.__name__, seed, case.name, without_data(model) == without_data(case.model)))
    assert counts["tried"] >= 400
    assert counts["refused"] >= 0.8 * counts["tried"]
    assert len(jobs) >= 10
    results = outcomes([(case.model.SerializeToString(), case.arguments) for case in cases] + jobs, tmp_path)
    right = {case.name: result for case, result in zip(cases, results)}
    for (kind, seed, name, only_data), result in zip(told, results[len(cases):]):
        assert result == right[name] or only_data and result.startswith("ran "), (kind, seed, name, result)


def without_data(model):
    """A model without the values of its constants."""
    stripped = ModelProto()
    stripped.CopyFrom(model)
    for tensor in mutations.data_tensors(stripped):
        tensor.raw_data = b""
    return stripped


@pytest.mark.slow
def test_spoiled_graphs_without_an_original_are_refused_or_load(cases, tmp_path):
    jobs, told = [], []
    for kind in [*KINDS, *BYTE_KINDS]:
        for seed in range(100, 100 + SEEDS):
            case, data = spoiled(cases, kind, seed)
            try:
                model = parse_model(data or b"?")
                check_model(model)
            except MalformedGraphError:
                continue
            jobs.append((model.SerializeToString(), None))
            told.append((kind.__name__, seed, case.name))
    assert len(jobs) >= 50
    assert [] == [(mutation, result) for mutation, result in zip(told, outcomes(jobs, tmp_path)) if result != "loaded"]


@pytest.mark.slow
def test_without_the_check_the_loader_fails_in_itself(by_name, tmp_path):
    """What all this is for."""
    case = by_name["layers"]
    jobs = []
    for spoil in (lambda model: model.graph.node[0].ClearField("attribute"),
                  lambda model: mutations.nodes(model)[0].attribute[0].ClearField("tensors")):
        model = ModelProto()
        model.CopyFrom(case.model)
        spoil(model)
        with pytest.raises(MalformedGraphError):
            check_model(model)
        jobs.append((model.SerializeToString(), case.arguments))
    jobs.append((case.model.SerializeToString(), case.arguments))
    *results, last = outcomes(jobs, tmp_path)
    assert last.startswith("ran ")
    # MindSpore 2.10 aborts; 2.9 was built with exceptions in the same places
    assert all(result.startswith(("died", "raised RuntimeError 'CHECK failed")) for result in results), results


@pytest.mark.slow
def test_a_graph_that_ends_the_process_is_noticed(by_name, tmp_path):
    good = by_name["steps"].model.SerializeToString(), None
    assert outcomes([good, (b"abort", None), good, (b"abort", None)], tmp_path) == [
        "loaded", "died with -6", "loaded", "died with -6"]


# --- what is refused, and in which words ------------------------------------------------------------------------------

def first(model, *operations):
    return mutations.of_kind(model, *operations)[0]


def of_type(model, kind):
    return [node.attribute[0] for node in mutations.constants(model) if node.attribute[0].type == kind][0]


def assign(holder, **values):
    for name, value in values.items():
        setattr(holder, name, value)


REFUSED = [
    ("layers", lambda m: m.ClearField("producer_name"), "the model has no 'producer_name'"),
    ("layers", lambda m: m.functions.add(name="f"), "the model has 1 sub-functions"),
    ("layers", lambda m: assign(m, little_endian=sys.byteorder != "little"), "of the other byte order"),
    ("layers", lambda m: assign(m, mind_ir_version=1), "the model has the version 1"),
    ("layers", lambda m: assign(m.graph, name=""), "the graph has no name"),
    ("layers", lambda m: assign(m.graph, name=m.primitives[0].name), "is also that of primitive"),
    ("layers", lambda m: m.parallel.layout.add(name="x"), "the model has a field 'parallel'"),
    ("layers", lambda m: m.primitives[0].ClearField("op_type"), "has no operation"),
    ("layers", lambda m: m.primitives[0].ClearField("prim_type"), "has no known primitive type"),
    ("layers", lambda m: m.graph.input[0].tensor.add(), "has 2 tensors instead of one"),
    ("layers", lambda m: assign(m.graph.input[0], denotation="UMonadType"), "has a field 'denotation'"),
    ("layers", lambda m: assign(m.graph.input[0].tensor[0], data_type=8), "the dtype STRING, which is not one of"),
    ("layers", lambda m: m.graph.input[0].tensor[0].dims.append(-1), r"has the dynamic shape \(2, 4, -1\)"),
    ("layers", lambda m: m.graph.input[0].tensor[0].dims.extend([2 ** 40] * 4), "is larger than any memory"),
    ("layers", lambda m: m.graph.input[0].tensor[0].min_dims.append(1), "has a field 'min_dims'"),
    ("layers", lambda m: assign(m.graph.parameter[1], name="x:" + m.graph.parameter[0].name.split(":")[1]),
     "parameter 'x:first.weight' is called 'first.weight' like parameter"),
    ("layers", lambda m: assign(m.graph.parameter[0], raw_data=b"123"), "has 3 bytes of data instead of 96"),
    ("layers", lambda m: assign(m.graph.parameter[0], compression_type=2), "is compressed"),
    ("layers", lambda m: m.graph.node[1].output.append("x"), "has 2 outputs instead of one"),
    ("layers", lambda m: assign(m.graph.node[1], name="x"), "node 'x' calls its output"),
    ("layers", lambda m: m.graph.node.add().CopyFrom(m.graph.node[0]), "is also that of node"),
    ("layers", lambda m: first(m, "LayerNorm").input.append("ClassType::x"), "reads 'ClassType::x', which is no input"),
    ("layers", lambda m: m.graph.node.insert(0, m.graph.node.pop()), "which is no input, parameter or earlier node"),
    ("layers", lambda m: assign(first(m, "LayerNorm"), op_type="LayerNorm"), "'LayerNorm', which is no primitive"),
    ("layers", lambda m: assign(first(m, "LayerNorm"), op_type=f"REF::{m.graph.name}"), "which is no primitive"),
    ("layers", lambda m: assign(first(m, "LayerNorm"), domain=""), "has no domain"),
    ("layers", lambda m: first(m, "LayerNorm").ClearField("input"), "has no input"),
    ("layers", lambda m: first(m, "LayerNorm").attribute.add(name="shape"), "instead of a single 'shape'"),
    ("layers", lambda m: first(m, "LayerNorm").attribute[0].ClearField("type"), "has no known type"),
    ("layers", lambda m: first(m, "LayerNorm").attribute[0].values[1].ClearField("tensors"),
     r"the shape of node '.*'\[1\] has 0 tensors instead of one"),
    ("layers", lambda m: assign(first(m, "LayerNorm").attribute[0], type=AttributeProto.DICT), "a field 'values'|DICT"),
    ("layers", lambda m: assign(first(m, "LayerNorm").attribute[0].seq_info, is_dyn_len=True), "dynamic length"),
    ("layers", lambda m: of_type(m, AttributeProto.INT64).ClearField("i"), "of type INT64 has no value"),
    ("layers", lambda m: of_type(m, AttributeProto.INT64).ints.append(1), "has a field 'ints'"),
    ("layers", lambda m: assign(of_type(m, AttributeProto.BOOL), i=2), "of type BOOL has the value 2"),
    ("layers", lambda m: assign(of_type(m, AttributeProto.UMONAD), type=AttributeProto.GRAPH), "of type GRAPH"),
    ("words", lambda m: of_type(m, AttributeProto.TUPLE).values[0].ClearField("ints"), "has 0 values instead of one"),
    ("words", lambda m: assign(of_type(m, AttributeProto.TUPLE).values[0], i=1), "has a field 'i'"),
    ("words", lambda m: mutations.nest_deeply(m, Random(0)), "is nested more than 16 deep"),
    ("words", lambda m: mutations.data_tensors(m)[0].ClearField("raw_data"), r"of shape \(5,\) has no data"),
    ("words", lambda m: assign(of_type(m, AttributeProto.TUPLE), ref_attr_name="scalar:]"),
     "has a field 'ref_attr_name'"),
    ("layers", lambda m: first(m, "LayerNorm").attribute[0].CopyFrom(
        AttributeProto(name="shape", type=AttributeProto.FUNCGRAPHCLOSURE)),
     "is of type FUNCGRAPHCLOSURE, which no value of a flat graph has"),
    ("layers", lambda m: assign(m.graph.input[0], name="MetaFuncGraph::add"), "which the loader does not look up"),
    ("layers", lambda m: assign(m.graph.node[0], name=""), "the node of output '.*' has no name"),
    ("layers", lambda m: m.graph.node[0].input.append(m.graph.input[0].name), "is a constant with inputs"),
    ("layers", lambda m: m.graph.node[0].ClearField("attribute"), "a constant with 0 values instead of one"),
    ("layers", lambda m: m.graph.attribute.add(type=AttributeProto.BOOL, i=1), "has an attribute without a name"),
    ("layers", lambda m: m.graph.attribute.add(name="training", type=AttributeProto.BOOL, i=1),
     "the graph has two attributes 'training'"),
    ("layers", lambda m: assign(first(m, "LayerNorm").node_attr[0], type=AttributeProto.TYPE_NULL),
     "of type TYPE_NULL, which has no value there"),
    ("parts", lambda m: m.graph.node.add().CopyFrom(ModelProto().graph.node.add()), "has 0 outputs instead of one"),
    ("parts", lambda m: assign([node for node in m.graph.node if node.name == first(m, "TupleGetItem").input[1]][0]
                               .attribute[0], i=3), r"takes element 3 of the 3 of"),
    ("parts", lambda m: first(m, "TupleGetItem").input.append(m.graph.input[0].name), "has 3 inputs instead of two"),
    ("parts", lambda m: first(m, "TupleGetItem").input.__setitem__(0, m.graph.input[0].name), "which is no tuple"),
    ("parts", lambda m: first(m, "TupleGetItem").input.__setitem__(1, m.graph.input[0].name),
     "which is no constant integer"),
    ("parts", lambda m: first(m, "TupleGetItem").attribute[0].tensors[0].dims.append(1), "states the type"),
    ("parts", lambda m: first(m, "MakeTuple").attribute[0].values.pop(), "states the type"),
    ("parts", lambda m: first(m, "Load").attribute[0].tensors[0].dims.append(1), "states the type"),
    ("parts", lambda m: first(m, "Load").input.__setitem__(1, m.graph.input[0].name), "load a parameter after a monad"),
    ("parts", lambda m: first(m, "UpdateState").input.pop(), "does not lead from a monad"),
    ("parts", lambda m: first(m, "UpdateState").input.__setitem__(0, m.graph.input[0].name), "does not lead from"),
    ("parts", lambda m: first(m, "Mul").input.__setitem__(0, first(m, "Load").input[1]), "has a monad where"),
    ("parts", lambda m: first(m, "Mul").attribute[0].CopyFrom(AttributeProto(name="shape", type=AttributeProto.UMONAD)),
     "gives a monad, though it is no UpdateState"),
    ("parts", lambda m: (assign(m.graph.output[0], name=first(m, "UpdateState").name),
                         m.graph.output[0].attr_info.CopyFrom(AttributeProto(type=AttributeProto.UMONAD))),
     "output .* holds a monad"),
    ("parts", lambda m: m.graph.output.add(name="x"), "has 2 outputs instead of one"),
    ("parts", lambda m: assign(m.graph.output[0], name="x"), "output 'x' is no value of the graph"),
    ("parts", lambda m: m.graph.output[0].ClearField("attr_info"), "does not have its type exactly once"),
    ("parts", lambda m: m.graph.output[0].attr_info.values.pop(), "output .* has the type"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=lambda number: REFUSED[number][2])
def test_the_error_names_the_place(by_name, number):
    name, spoil, message = REFUSED[number]
    model = ModelProto()
    model.CopyFrom(by_name[name].model)
    spoil(model)
    with pytest.raises(MalformedGraphError, match=message):
        check_model(model)


def swap_residuals(model):
    """The first use of one of two values of the same type reads the other."""
    names = [value.name for value in model.graph.input if value.tensor[0] == model.graph.input[-1].tensor[0]]
    users = [(node, place) for node in model.graph.node for place, name in enumerate(node.input) if name in names]
    for node, place in users:
        others = [name for name in names if name != node.input[place]]
        if sum(node.input[place] == other.input[at] for other, at in users) > 1:
            node.input[place] = others[0]
            return
    raise AssertionError("no value is used twice")


def rename(model, operation):
    """A node, where it stands and where it is read."""
    node = first(model, operation)
    old, node.name, node.output[0] = node.name, "new", "new"
    for other in model.graph.node:
        other.input[:] = ["new" if name == old else name for name in other.input]


NOT_VERBATIM = [
    ("layers backward", lambda m: assign(m.primitives[0], instance_name="x"), "is not that of the original graph"),
    ("layers backward", lambda m: assign(m.graph.attribute[0], type=AttributeProto.INT64),
     "attribute '.*' of the graph is not of the type of the original's"),
    ("layers forward", lambda m: first(m, "LayerNorm").attribute[0].values[0].tensors[0].dims.__setitem__(0, 700),
     "takes|states|has another shape or value"),
    ("steps forward", lambda m: first(m, "Gather").attribute[0].tensors[0].dims.__setitem__(0, 700),
     "has another shape or value than in the original graph"),
    ("steps forward", lambda m: assign(of_type(m, AttributeProto.TENSORS).tensors[0], raw_data=b"\7" * 8),
     "has another shape or value than in the original graph"),
    ("steps forward", lambda m: first(m, "Gather").input.pop(), "has 2 inputs|has 3 inputs"),
    ("steps forward", lambda m: m.graph.input[0].tensor[0].dims.__setitem__(0, 1), "has the type .* in the original"),
    ("steps forward", lambda m: first(m, "Gather").input.__setitem__(1, first(m, "Gather").input[0]),
     "has the type .* in the original"),
    ("steps forward", lambda m: rename(m, "Gather"), "node 'new' is Gather and no node of the original graph"),
    ("layers backward", swap_residuals, "elsewhere '.*' stands for"),
    ("layers", lambda m: first(m, "Load").input.__setitem__(0, m.graph.parameter[-1].name), "has the type|states|is '"),
    ("steps", lambda m: first(m, "Gather").input.__setitem__(0, m.graph.input[1].name),
     "is '.*', '.*' in the original"),
    ("steps", lambda m: assign(first(m, "Gather"), op_type=first(m, "Transpose", "MatMul", "MatMulExt").op_type),
     "is REF::.*, REF::Gather.* in the original"),
]


@pytest.mark.parametrize("number", range(len(NOT_VERBATIM)))
def test_what_differs_from_the_original_is_refused(by_name, number):
    name, spoil, message = NOT_VERBATIM[number]
    model = ModelProto()
    model.CopyFrom(by_name[name].model)
    spoil(model)
    with pytest.raises(MalformedGraphError, match=message):
        check_model(model, by_name[name].original)


def test_tuples_may_be_put_together_anew(by_name):
    """A cut may rebuild, for each use, a tuple of which only the elements cross."""
    case = by_name["parts backward"]
    model = ModelProto()
    model.CopyFrom(case.model)
    tuples = [node for node in mutations.of_kind(model, "MakeTuple") if node.name != "piece:result"]
    assert tuples
    nodes = []
    for number, user in enumerate(model.graph.node):
        for node in tuples:
            if node.name in user.input:
                copy = type(node)()
                copy.CopyFrom(node)
                copy.name = copy.output[0] = f"again{number}:{node.name}"
                user.input[:] = [copy.name if name == node.name else name for name in user.input]
                nodes.append(copy)
        nodes.append(user)
    nodes = [node.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    check_model(model, case.original)


def test_bytes_that_are_no_graph():
    with pytest.raises(MalformedGraphError, match="the bytes are no serialised graph"):
        parse_model(b"\xff\xff\xff")
    with pytest.raises(MalformedGraphError, match="no 'producer_name'"):
        check_model(parse_model(b""))
    assert issubclass(MalformedGraphError, ZeroBubbleError) and issubclass(MalformedGraphError, ValueError)


def test_unknown_fields_are_left_out(by_name):
    data = by_name["steps"].model.SerializeToString()
    assert parse_model(data + b"\xfa\x07\x01x").SerializeToString() == data


def test_a_model_is_not_changed_by_its_check(by_name):
    before = by_name["words backward"].model.SerializeToString()
    check_model(by_name["words backward"].model, by_name["words backward"].original)
    assert by_name["words backward"].model.SerializeToString() == before


# --- cost, examples, source -------------------------------------------------------------------------------------------

def long_model(case, copies):
    """The graph of a case, several times in one."""
    model = ModelProto()
    model.CopyFrom(case.model)
    given = {value.name for value in model.graph.input} | {value.name for value in model.graph.parameter}
    for number in range(copies):
        for node in case.model.graph.node:
            copy = model.graph.node.add()
            copy.CopyFrom(node)
            copy.name = copy.output[0] = f"{number}:{node.name}"
            copy.input[:] = [name if name in given else f"{number}:{name}" for name in node.input]
    return model


def lines_of(model):
    count = 0
    files = {module.__file__ for module in (attributes, checking, reading, verbatim)}

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check_model(model, model)
    finally:
        sys.settrace(before)
    return count


def test_twice_the_size_is_twice_the_work(by_name):
    small, large = (lines_of(long_model(by_name["steps"], copies)) for copies in (10, 20))
    assert small > 2_000
    assert large < 2.2 * small


@pytest.mark.parametrize("module", [checking], ids=lambda module: module.__name__)
def test_examples_run(module):
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


@pytest.mark.parametrize("path", sorted(Path(checking.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_sources_are_python_3_9(path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
