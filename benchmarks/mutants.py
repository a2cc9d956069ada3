"""Mutants: small changes of the functions of a module, made in its syntax tree and installed in a running process.

Installing replaces the code of the functions that exist, wherever they were imported to; no file is written. So what
runs on import (tables, columns, constants of a module) is not mutated.
"""

import ast
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any", "and_": "or_", "or_": "and_"}
_CONDITIONS = {"where", "filter", "and_"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: that with this number in the file, in the statement that begins on this line."""

    path: str
    number: int
    line: int
    change: str

    @property
    def title(self) -> str:
        """The place and the change."""
        return f"{self.path}:{self.line}: {self.change}"

    def install(self, root: Path) -> bool:
        """Replace the code of the functions that differ; return whether there was one."""
        tree = ast.parse((root / self.path).read_text())
        list(_changes(tree))[self.number].apply()
        return _replace_code(root / self.path, tree)


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """Return every mutant of a file."""
    tree = ast.parse((root / path).read_text())
    described = [(each.line, each.describe()) for each in list(_changes(tree))]
    return [Mutant(path, number, line, change) for number, (line, change) in enumerate(described) if change]


def record_lines(root: Path, path: str, covered: set[tuple[str, int]], module: dict[str, Any]) -> None:
    """Let the functions of a module add the line of each statement that they reach to `covered`."""
    tree = ast.parse((root / path).read_text())
    for function in [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]:
        for _, _, statements in _blocks(function):
            marks = [ast.parse(f"__covered__({each.lineno})").body[0] for each in statements]
            for mark, each in zip(marks, statements, strict=True):
                for node in ast.walk(mark):
                    ast.copy_location(node, each)
            pairs = zip(marks, list(statements), strict=True)
            statements[:] = [node for pair in pairs for node in pair]
    module["__covered__"] = lambda line: covered.add((path, line))
    _replace_code(root / path, tree)


def _blocks(owner: ast.AST) -> Iterator[tuple[ast.AST, str, list[ast.stmt]]]:
    """Yield the lists of statements in a function, with their owners; not those of functions inside it."""
    for name, value in ast.iter_fields(owner):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield owner, name, value
        for child in value if isinstance(value, list) else ():
            if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                yield from () if isinstance(child, _FUNCTIONS) else _blocks(child)


@dataclass(slots=True)
class _Change:
    line: int
    node: ast.AST
    field: str
    value: Any
    text: str = ""

    def apply(self) -> None:
        setattr(self.node, self.field, self.value)
        ast.fix_missing_locations(self.node)

    def describe(self) -> str:
        if self.text:
            return self.text
        before, kept = ast.unparse(self.node), getattr(self.node, self.field)
        self.apply()
        after = ast.unparse(self.node)
        setattr(self.node, self.field, kept)
        return f"`{before}` → `{after}`" if before != after else ""


def _changes(tree: ast.Module) -> Iterator[_Change]:
    """Yield the changes of all functions: in the order of the file, the same ones each time."""
    outer = [node for node in tree.body if isinstance(node, (*_FUNCTIONS, ast.ClassDef))]
    while outer:
        node = outer.pop(0)
        if isinstance(node, ast.ClassDef):
            outer[:0] = [child for child in node.body if isinstance(child, (*_FUNCTIONS, ast.ClassDef))]
            continue
        yield from _statements(node)


def _statements(function: ast.AST) -> Iterator[_Change]:
    for owner, field, statements in _blocks(function):
        for place, statement in enumerate(statements):
            if _is_text(statement):
                continue
            if _can_be_dropped(statement):
                rest = [*statements[:place], ast.Pass(), *statements[place + 1 :]]
                yield _Change(statement.lineno, owner, field, rest, f"without `{ast.unparse(statement)}`")
            if isinstance(statement, _FUNCTIONS):
                yield from _statements(statement)
            else:
                yield from _in_expressions(statement, statement.lineno)


def _is_text(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr):
        return False
    called = statement.value.func if isinstance(statement.value, ast.Call) else None
    is_logged = isinstance(called, ast.Attribute) and ast.unparse(called.value) in {"_log", "log", "logger"}
    return isinstance(statement.value, ast.Constant) or is_logged


def _can_be_dropped(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return isinstance(statement.targets[0], (ast.Attribute, ast.Subscript))
    return isinstance(statement, (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete, ast.Continue, ast.Break))


def _in_expressions(node: ast.AST, line: int) -> Iterator[_Change]:
    """Yield the changes of a statement's own expressions; those of the statements inside it have their own turn."""
    yield from _of_node(node, line)
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_skipped = isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case, ast.JoinedStr))
            if isinstance(child, ast.AST) and not is_skipped and name != "annotation":
                yield from _in_expressions(child, line)


def _of_node(node: ast.AST, line: int) -> Iterator[_Change]:
    change: Callable[..., _Change] = partial(_Change, line, node)
    match node:
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                for other in _COMPARISONS[type(operator)]:
                    yield change("ops", [*operators[:place], other(), *operators[place + 1 :]])
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _ARITHMETIC:
            yield change("op", _ARITHMETIC[type(operator)]())
        case ast.BoolOp(op=operation):
            yield change("op", ast.Or() if isinstance(operation, ast.And) else ast.And())
        case ast.Constant(value=int() as value):
            others = [not value] if isinstance(value, bool) else [value + 1, value - 1]
            yield from (change("value", other) for other in others)
        case ast.Return(value=ast.AST() as value) if not isinstance(value, ast.Constant):
            yield change("value", ast.Constant(value=None))
        case ast.Call():
            yield from _of_call(node, change)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield from _of_condition(test, change)


def _of_condition(test: ast.expr, change: Callable[..., _Change]) -> Iterator[_Change]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield change("test", test.operand, f"`{ast.unparse(test)}` without `not`")
    elif not isinstance(test, (ast.Compare, ast.Constant)):
        yield change("test", ast.UnaryOp(ast.Not(), test), f"`{ast.unparse(test)}` → its opposite")


def _of_call(node: ast.Call, change: Callable[..., _Change]) -> Iterator[_Change]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if isinstance(node.func, ast.Name) and name in _OPPOSITES:
        yield change("func", ast.Name(_OPPOSITES[name], ast.Load()))
    if name in _CONDITIONS:
        for dropped in range(len(node.args)):
            yield change("args", [each for place, each in enumerate(node.args) if place != dropped])
    elif name not in _OPPOSITES and name != "select" and not any(isinstance(each, ast.Starred) for each in node.args):
        # Any test notices the session in the wrong place.
        place = 1 if node.args and ast.unparse(node.args[0]) == "session" else 0
        if len(node.args) > place + 1:
            *before, first, second = node.args[: place + 2]
            yield change("args", [*before, second, first, *node.args[place + 2 :]])
    if len(node.keywords) > 1 and all(each.arg for each in node.keywords):
        first_value, second_value = (each.value for each in node.keywords[:2])
        swapped = [
            ast.keyword(each.arg, value)
            for each, value in zip(node.keywords, (second_value, first_value), strict=False)
        ]
        yield change("keywords", swapped + node.keywords[2:])


def _replace_code(path: Path, tree: ast.Module) -> bool:
    wanted: dict[tuple[str, int], CodeType] = {}
    pending = [compile(tree, str(path), "exec", dont_inherit=True)]
    while pending:
        for constant in pending.pop().co_consts:
            if isinstance(constant, CodeType):
                wanted[constant.co_qualname, constant.co_firstlineno] = constant
                pending.append(constant)
    replaced = False
    for function in gc.get_objects():
        # isinstance() would load the lazy objects of other libraries.
        if type(function) is not FunctionType or function.__code__.co_filename != str(path):
            continue
        code = wanted.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is not None and code != function.__code__ and code.co_freevars == function.__code__.co_freevars:
            function.__code__ = code
            replaced = True
    return replaced
