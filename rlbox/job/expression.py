"""The expressions of specs: arithmetic and comparisons on named values, and nothing else.

A job's `[fits]` computes needs with them, a fix's `applies` compares numbers of a machine.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, StringConstraints

from rlbox.i18n import _

ExpressionValue = bool | int | float | str
_Program = Callable[[Mapping[str, ExpressionValue]], Any]

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


def _parts(lists: Iterable[ExpressionValue]) -> list[str]:
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


class _Compiled(NamedTuple):
    program: _Program
    names: frozenset[str]


def find_names(expression: str) -> frozenset[str]:
    """Return the names that an expression reads, without functions; `ValueError` when it is not an expression."""
    return _compile(expression).names


def evaluate_expression(expression: str, values: Mapping[str, ExpressionValue]) -> ExpressionValue:
    """Return the value of an expression; `ValueError` when it has none, as for a division by zero."""
    try:
        result: ExpressionValue = _compile(expression).program(values)
        return result
    except (ArithmeticError, TypeError, KeyError) as error:
        raise ValueError(_("{formula}: {error}").format(formula=expression, error=error)) from error


def compare(value: float, comparison: str) -> bool:
    return bool(evaluate_expression(f"value {comparison}", {"value": value}))


@functools.lru_cache(maxsize=1024)
def _compile(expression: str) -> _Compiled:
    """Return an expression as a function of its names: a search for what fits evaluates it thousands of times."""
    if len(expression) > _LONGEST:
        raise ValueError(_("is longer than {longest} characters").format(longest=_LONGEST))
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(_("invalid formula: {error}").format(error=error)) from error
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return _Compiled(_build(tree), frozenset(names - FUNCTIONS.keys()))


def _build(node: ast.expr) -> _Program:
    """Return a part of an expression as a function; `ValueError` names what is not arithmetic."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return lambda names: value
        case ast.Name(id=name):
            return operator.itemgetter(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _TWO:
            return _of_two(_TWO[type(op)], _build(left), _build(right))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _build(operand)
            return lambda names: not inner(names)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _build(operand)
            return lambda names: -_number(inner(names))
        case ast.BoolOp(op=op, values=values):
            joined, parts = all if isinstance(op, ast.And) else any, [_build(part) for part in values]
            return lambda names: joined(part(names) for part in parts)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            relation, first, second = _COMPARE[type(op)], _build(left), _build(right)
            return lambda names: relation(first(names), second(names))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            holds, then, otherwise = _build(test), _build(body), _build(orelse)
            return lambda names: (then if holds(names) else otherwise)(names)
        case ast.Call(func=ast.Name(id=name), args=[_first, *_others] as args, keywords=[]) if name in FUNCTIONS:
            function, arguments = FUNCTIONS[name], [_build(part) for part in args]
            return lambda names: function(*[part(names) for part in arguments])
    raise ValueError(
        _("{unparse!r} is not arithmetic; functions are {functions}").format(
            unparse=ast.unparse(node), functions=", ".join(FUNCTIONS)
        )
    )


def _of_two(function: Callable[[Any, Any], Any], left: _Program, right: _Program) -> _Program:
    return lambda names: function(_number(left(names)), _number(right(names)))


def _number(value: ExpressionValue) -> int | float:
    """Return a number: a text, which could be multiplied into gigabytes, is none."""
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no number")
    return value


def _check_expression(text: str) -> str:
    _compile(text)
    return text


Expression = Annotated[str, StringConstraints(min_length=1), AfterValidator(_check_expression)]
"""Arithmetic on parameters and amounts, such as `4 * params / gpus`."""
