"""What a function does besides computing, read from its source: writes to the outside, clocks, chance, hooks.

*Outer* is what lives longer than the call: ``self`` and other objects reached through it, globals, closure variables,
and locals that are never anything but another name for such a thing. Arguments other than ``self`` are not outer: the
compiler refuses to change those.
"""

import ast
import inspect
import textwrap
import types
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Tuple

Effect = Tuple[int, str]
"""Line number and description."""

MUTATORS = frozenset(("append", "extend", "insert", "pop", "popitem", "remove", "clear", "update", "setdefault", "add",
                      "discard", "sort", "reverse", "appendleft", "popleft"))
AMBIGUOUS_MUTATORS = frozenset(("add", "sort", "reverse"))
"""Also methods of tensors that change nothing; a mutator only if the result is thrown away."""

ASSIGNING = frozenset(("assign", "assign_add", "assign_sub"))
TENSOR_TO_PYTHON = frozenset(("asnumpy", "item", "tolist"))
IMPURE_MODULES = frozenset(("random", "numpy.random", "time", "uuid", "secrets"))
CLOCKS = frozenset(("now", "today", "utcnow"))
SEEDING = frozenset(("manual_seed", "set_seed", "seed", "set_rng_state", "get_rng_state", "initial_seed"))


def effects_of(function: types.FunctionType, parameters: FrozenSet[str],
               draws: Callable[[Any], bool]) -> Iterator[Effect]:
    """The effects of a function, in the order of its source; none if it has no readable source.

    Args:
        function: a plain Python function.
        parameters: attribute names of Parameters, to which ``ops.assign`` is right.
        draws: whether a resolved function uses MindSpore's generators.
    """
    tree, first_line = _tree_of(function)
    if tree is None:
        return
    visitor = _Visitor(function, tree, parameters, draws)
    visitor.visit(tree)
    for line, effect in (*visitor.effects, *_late_bindings(tree), *_changes_from_inside(tree)):
        yield line + first_line - 1, effect


def _tree_of(function: types.FunctionType) -> Tuple[Optional[ast.AST], int]:
    """The function's own node, and the line its source starts at."""
    try:
        lines, first_line = inspect.getsourcelines(function.__code__)
        module = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None, 0
    kinds = ast.Lambda if function.__name__ == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(module) if isinstance(node, kinds)]
    return (found[0] if found else None), max(first_line, 1)


def _parameters_of(tree: ast.AST) -> List[str]:
    arguments = tree.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [one.arg for one in (*every, *filter(None, (arguments.vararg, arguments.kwarg)))]


def root_of(node: ast.AST) -> Optional[str]:
    """``a`` of ``a.b[c].d``; None for anything else."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _targets(node: ast.AST) -> Iterator[ast.AST]:
    """The single targets of an assignment, tuples taken apart."""
    if isinstance(node, (ast.Tuple, ast.List)):
        for element in node.elts:
            yield from _targets(element)
    else:
        yield node.value if isinstance(node, ast.Starred) else node


def _assignments(tree: ast.AST) -> Iterator[Tuple[ast.AST, Optional[ast.AST]]]:
    """All (target, value) pairs below ``tree``; the value is None where it is not an expression of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                single = not isinstance(target, (ast.Tuple, ast.List))
                yield from ((one, node.value if single else None) for one in _targets(target))
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            yield node.target, node.value if isinstance(node, ast.NamedExpr) else None
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield from ((one, None) for one in _targets(node.target))
        elif isinstance(node, ast.With):
            yield from ((item.optional_vars, None) for item in node.items if item.optional_vars is not None)


class _Visitor(ast.NodeVisitor):
    """Collects effects; nested functions are part of their function."""

    def __init__(self, function: types.FunctionType, tree: ast.AST, parameters: FrozenSet[str],
                 draws: Callable[[Any], bool]):
        self.effects: List[Effect] = []
        self._parameters, self._draws = parameters, draws
        self._outside = dict(function.__globals__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                self._outside[name] = cell.cell_contents
            except ValueError:
                self._outside[name] = None
        self._declared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        self._kept_defaults = _mutable_defaults(tree)
        self._locals = self._local_values(tree)

    def _local_values(self, tree: ast.AST) -> Dict[str, List[Optional[ast.AST]]]:
        """What each local is assigned; parameters, ``self`` excepted, are assigned something unknown."""
        found: Dict[str, List[Optional[ast.AST]]] = {}
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.Lambda)):
                for name in _parameters_of(node):
                    if name != "self" and name not in self._kept_defaults:
                        found.setdefault(name, []).append(None)
        for target, value in _assignments(tree):
            if isinstance(target, ast.Name) and target.id not in self._declared:
                found.setdefault(target.id, []).append(value)
        return found

    def _is_outer(self, node: ast.AST, depth: int = 0) -> bool:
        name = root_of(node)
        if name is None or depth > 4:
            return False
        if name in self._locals:
            values = self._locals[name]
            return all(value is not None and self._is_outer(value, depth + 1) for value in values)
        return name == "self" or name in self._outside or name in self._kept_defaults

    def _resolve(self, node: ast.AST) -> Any:
        """The global or closure value that a dotted name stands for; None if it is none."""
        if isinstance(node, ast.Name):
            return None if node.id in self._locals else self._outside.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._resolve(node.value)
            return getattr(owner, node.attr, None) if isinstance(owner, (types.ModuleType, type)) else None
        return None

    def _note(self, node: ast.AST, effect: str) -> None:
        self.effects.append((node.lineno, effect))

    def _check_target(self, node: ast.AST, target: ast.AST) -> None:
        if isinstance(target, ast.Name) and target.id in self._declared:
            self._note(node, f"write to global {target.id!r}")
        elif isinstance(target, ast.Attribute) and self._is_outer(target.value):
            if target.attr in self._parameters:  # a new value for the Parameter: compiled as an assignment
                return
            self._note(node, f"write to attribute {ast.unparse(target)!r}")
        elif isinstance(target, ast.Subscript) and self._is_outer(target.value):
            if getattr(target.value, "attr", None) in self._parameters:
                return
            self._note(node, f"write into {ast.unparse(target.value)!r}")

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            for one in _targets(target):
                self._check_target(node, one)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._check_target(node, node.target)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._check_target(node, node.target)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._check_target(node, target)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._note(node, f"nonlocal {', '.join(node.names)}")

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            if call.func.attr in AMBIGUOUS_MUTATORS and self._is_outer(call.func.value) and self._resolve(
                    call.func.value) is None:
                self._note(node, f"change of {ast.unparse(call.func.value)!r} by {call.func.attr!r}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        if isinstance(called, ast.Attribute):
            self._check_method(node, called)
        self._check_called(node, self._resolve(called), ast.unparse(called))
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in ASSIGNING and node.args and self._is_outer(node.args[0]):
            if getattr(node.args[0], "attr", None) not in self._parameters:
                self._note(node, f"{name} to {ast.unparse(node.args[0])!r}, which is no Parameter")
        self.generic_visit(node)

    def _check_method(self, node: ast.Call, called: ast.Attribute) -> None:
        name, owner = called.attr, called.value
        if name == "register_hook":
            self._note(node, "register_hook")
        elif name in TENSOR_TO_PYTHON and not self._is_outer(owner):
            self._note(node, f"{name!r} of a tensor")
        elif isinstance(self._resolve(owner), (types.ModuleType, type)) or not self._is_outer(owner):
            return
        elif name in MUTATORS - AMBIGUOUS_MUTATORS or (name.endswith("_") and not name.endswith("__")):
            self._note(node, f"change of {ast.unparse(owner)!r} by {name!r}")

    def _check_called(self, node: ast.Call, value: Any, text: str) -> None:
        if value is None:
            return
        source = getattr(value, "__self__", None)
        home = getattr(value, "__module__", None) or ""
        if isinstance(source, types.ModuleType):
            home = source.__name__
        elif source is not None and not isinstance(source, type):
            home = type(source).__module__
        if home in IMPURE_MODULES or home.startswith(("numpy.random", "mtrand")):
            self._note(node, f"{text}: one value for all runs")
        elif getattr(source, "__module__", None) == "datetime" and getattr(value, "__name__", "") in CLOCKS:
            self._note(node, f"{text}: one value for all runs")
        elif home.startswith("mindspore") and (getattr(value, "__name__", "") in SEEDING or self._draws(value)):
            self._note(node, f"{text}: MindSpore's generator would not advance as in PyNative")


def _mutable_defaults(tree: ast.AST) -> FrozenSet[str]:
    """Parameters whose default is a list, dict or set made once for all calls."""
    names = [one.arg for one in (*tree.args.posonlyargs, *tree.args.args)]
    pairs = [*zip(names[len(names) - len(tree.args.defaults):], tree.args.defaults),
             *zip((one.arg for one in tree.args.kwonlyargs), tree.args.kw_defaults)]
    return frozenset(name for name, default in pairs if isinstance(default, (ast.List, ast.Dict, ast.Set, ast.Call)))


def _inner_functions(tree: ast.AST) -> Iterator[Tuple[ast.AST, FrozenSet[str]]]:
    """The functions inside a function, and the names that they read from around them."""
    for inner in ast.walk(tree):
        if inner is not tree and isinstance(inner, (ast.FunctionDef, ast.Lambda)):
            own = {*_parameters_of(inner), *(target.id for target, _ in _assignments(inner)
                                             if isinstance(target, ast.Name))}
            yield inner, frozenset(node.id for node in ast.walk(inner) if isinstance(node, ast.Name)) - own


def _late_bindings(tree: ast.AST) -> List[Effect]:
    """Locals that change below an inner function which reads them."""
    assigned = [(target.id, target.lineno) for target, _ in _assignments(tree) if isinstance(target, ast.Name)]
    return [(line, f"{name!r} changes after an inner function was made of it")
            for inner, outside in _inner_functions(tree) for name, line in assigned
            if name in outside and line > inner.end_lineno]


def _changes_from_inside(tree: ast.AST) -> List[Effect]:
    """Lists and dicts of a function that an inner function changes: the outer one would see them as they were."""
    made = {target.id for target, value in _assignments(tree)
            if isinstance(target, ast.Name) and isinstance(value, (ast.List, ast.Dict, ast.Set))}
    effects = []
    for inner, outside in _inner_functions(tree):
        for node in ast.walk(inner):
            changed = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                changed = node.func.value
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                changed = node.value
            if isinstance(changed, ast.Name) and changed.id in outside & made:
                effects.append((node.lineno, f"change of {changed.id!r} from inside an inner function"))
    return effects
