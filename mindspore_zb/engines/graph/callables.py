"""Give MindSpore's compiler what it can read: it finds the source of functions and methods, but not of most lambdas."""

import ast
import functools
import inspect
import os
import types
from typing import Any, Callable, Optional, Tuple

from mindspore import nn

from mindspore_zb.errors import UnsupportedError


def plain_call(fn: Callable[..., Any], args: tuple, kwargs: dict) -> Tuple[Callable[..., Any], tuple, dict]:
    """The Cell, function or bound method behind ``functools.partial`` and callable objects, and all its arguments.

    >>> fn, args, kwargs = plain_call(functools.partial(sorted, [2, 1]), (), {"reverse": True})
    >>> fn.__name__, args, kwargs
    ('sorted', ([2, 1],), {'reverse': True})
    """
    while isinstance(fn, functools.partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    if not isinstance(fn, (nn.Cell, types.FunctionType, types.MethodType)) and \
            isinstance(getattr(type(fn), "__call__", None), types.FunctionType):
        fn = fn.__call__
    return fn, args, kwargs


def readable(fn: Callable[..., Any], directory: str) -> Callable[..., Any]:
    """``fn`` itself, or for a lambda the same as a function whose source stands in a file of ``directory``.

    Raises:
        UnsupportedError: the source of a lambda cannot be found.
    """
    if not isinstance(fn, types.FunctionType) or fn.__name__ != "<lambda>":
        return fn
    source = _source_of_lambda(fn)
    if source is None:
        raise UnsupportedError(f"the source of the lambda in {fn.__code__.co_filename}:{fn.__code__.co_firstlineno} "
                               "cannot be found: write it as a function")
    path = os.path.join(directory, f"lambda{len(os.listdir(directory))}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    code = _inner_code(_inner_code(compile(source, path, "exec")))
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    found = types.FunctionType(code, fn.__globals__, code.co_name, fn.__defaults__,
                               tuple(cells[name] for name in code.co_freevars))
    found.__kwdefaults__ = fn.__kwdefaults__
    found.__module__ = fn.__module__
    return found


def _source_of_lambda(fn: types.FunctionType) -> Optional[str]:
    """A function inside of a function that binds its free variables, as source text."""
    try:
        lines, _ = inspect.findsource(fn)
        tree = ast.parse("".join(lines))
    except (OSError, SyntaxError):
        return None
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and _may_be(node, fn.__code__)]
    if not nodes:
        return None
    node = min(nodes, key=lambda node: (node.end_lineno - node.lineno, node.end_col_offset))  # the innermost
    if len(nodes) > 1 and not hasattr(fn.__code__, "co_positions"):
        return None
    return (f"def bind({', '.join(fn.__code__.co_freevars)}):\n    def from_lambda({ast.unparse(node.args)}):\n"
            f"        return {ast.unparse(node.body)}\n    return from_lambda\n")


def _may_be(node: ast.Lambda, code: types.CodeType) -> bool:
    """Whether this lambda may have been compiled to this code; from Python 3.11 on only one and those around it may."""
    arguments = node.args
    names = [entry.arg for entry in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if tuple(names) != code.co_varnames[:len(names)] or len(names) != code.co_argcount + code.co_kwonlyargcount:
        return False
    if not hasattr(code, "co_positions"):
        return node.lineno == code.co_firstlineno
    body = node.body
    start, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    places = [place for place in code.co_positions() if None not in place and place[3] > place[2]]
    return bool(places) and all(start <= (line, column) and (end_line, end_column) <= end
                                for line, end_line, column, end_column in places)


def _inner_code(code: types.CodeType) -> types.CodeType:
    return next(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
