"""Formulas of job files: arithmetic and comparisons on a job's parameters, and nothing else."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, StringConstraints

from rlbox.i18n import _

Amount = bool | int | float | str
_Program = Callable[[Mapping[str, Amount]], Any]

_LONGEST = 400
_TWO: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda part, whole: str(part) in str(whole),
}


def _parts(lists: Iterable[Amount]) -> list[str]:
    return [part.strip() for text in lists for part in str(text).split(",") if part.strip()]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "floor": math.floor,
    "count": lambda *lists: len(_parts(lists)),
    "distinct": lambda *lists: len(set(_parts(lists))),
    "highest": lambda *lists: max((int(part) for part in _parts(lists) if part.isdecimal()), default=-1),
}
"""What a formula may call. Of lists with commas: how many parts, how many different ones, the highest (-1: none)."""


def names_in(formula: str) -> frozenset[str]:
    """Return the names that a formula asks for, its functions left out; `ValueError` when it is none."""
    return frozenset(
        node.id for node in ast.walk(_tree(formula)) if isinstance(node, ast.Name) and node.id not in FUNCTIONS
    )


def evaluate(formula: str, names: Mapping[str, Amount]) -> Amount:
    """Return the value of a formula; `ValueError` when it has none, as for a division by zero."""
    try:
        found: Amount = _program(formula)(names)
        return found
    except (ArithmeticError, TypeError, KeyError) as error:
        raise ValueError(_("{formula}: {error}").format(formula=formula, error=error)) from error


@functools.lru_cache(maxsize=1024)
def _program(formula: str) -> _Program:
    """Return a formula as a function of its names: a search for what fits asks it thousands of times."""
    return _made(_tree(formula))


@functools.lru_cache(maxsize=1024)
def _tree(formula: str) -> ast.expr:
    if len(formula) > _LONGEST:
        raise ValueError(_("is longer than {longest} characters").format(longest=_LONGEST))
    try:
        tree = ast.parse(formula.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(_("is no formula: {error}").format(error=error)) from error
    _check(tree)
    return tree


def _check(node: ast.expr) -> None:
    """Refuse what is not arithmetic: `ValueError` names it."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str()) | ast.Name():
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _TWO:
            parts = [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            parts = [operand]
        case ast.BoolOp(values=values):
            parts = values
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            parts = [left, right]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            parts = [test, body, orelse]
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in FUNCTIONS:
            parts = args
        case _:
            raise ValueError(
                _("{unparse!r} is no arithmetic; functions are {functions}").format(
                    unparse=ast.unparse(node), functions=", ".join(FUNCTIONS)
                )
            )
    for part in parts:
        _check(part)


def _made(node: ast.expr) -> _Program:
    match node:
        case ast.Constant(value=value):
            return lambda names: value
        case ast.Name(id=name):
            return operator.itemgetter(name)
        case ast.BinOp(left=left, op=op, right=right):
            return _of_two(_TWO[type(op)], _made(left), _made(right))
        case ast.UnaryOp(op=op, operand=operand):
            inner = _made(operand)
            return (lambda names: not inner(names)) if isinstance(op, ast.Not) else lambda names: -_number(inner(names))
        case ast.BoolOp(op=op, values=values):
            joined, parts = all if isinstance(op, ast.And) else any, [_made(part) for part in values]
            return lambda names: joined(part(names) for part in parts)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            compare, one, other = _COMPARE[type(op)], _made(left), _made(right)
            return lambda names: compare(one(names), other(names))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            holds, then, otherwise = _made(test), _made(body), _made(orelse)
            return lambda names: (then if holds(names) else otherwise)(names)
        case ast.Call(func=ast.Name(id=name), args=args):
            function, given = FUNCTIONS[name], [_made(part) for part in args]
            return lambda names: function(*[part(names) for part in given])
    raise TypeError(f"{ast.unparse(node)} is no arithmetic")


def _of_two(function: Callable[[Any, Any], Any], left: _Program, right: _Program) -> _Program:
    return lambda names: function(_number(left(names)), _number(right(names)))


def _number(value: Amount) -> int | float:
    """Return a number: a text, which could be multiplied into gigabytes, is none."""
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no number")
    return value


def _formula(text: str) -> str:
    names_in(text)
    return text


Formula = Annotated[str, StringConstraints(min_length=1), AfterValidator(_formula)]
"""Arithmetic on parameters and amounts, such as `4 * params / gpus`."""
