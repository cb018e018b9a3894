"""The expressions of specs: arithmetic and comparisons on named values, and nothing else.

A job's `[fits]` computes needs with them, a fix's `applies` compares numbers of a machine.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, StringConstraints

from rlbox.i18n import _

ExpressionValue = bool | int | float | str

_LONGEST = 400
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Not, ast.USub, ast.And, ast.Or)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In)
_PARTS = (ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call)


FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "ceil": math.ceil, "floor": math.floor}


class _Compiled(NamedTuple):
    code: CodeType
    names: frozenset[str]


def find_variable_names(expression: str) -> frozenset[str]:
    """Return the names that an expression reads, without functions; `ValueError` when it is not an expression."""
    return _compile(expression).names


def evaluate_expression(expression: str, values: Mapping[str, ExpressionValue]) -> ExpressionValue:
    """Return the value of an expression; `ValueError` when it has none, as for a division by zero."""
    try:
        result: ExpressionValue = eval(  # noqa: S307 - `_compile` lets nothing but arithmetic through
            _compile(expression).code, {"__builtins__": {}}, {**values, **FUNCTIONS}
        )
        return result
    except (ArithmeticError, TypeError, NameError) as error:
        raise ValueError(_("{formula}: {error}").format(formula=expression, error=error)) from error


def satisfies_comparison(value: float, comparison: str) -> bool:
    return bool(evaluate_expression(f"value {comparison}", {"value": value}))


@functools.lru_cache(maxsize=1024)  # a search for what fits evaluates it thousands of times
def _compile(expression: str) -> _Compiled:
    if len(expression) > _LONGEST:
        raise ValueError(_("is longer than {longest} characters").format(longest=_LONGEST))
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(_("invalid formula: {error}").format(error=error)) from error
    if not all(map(_is_arithmetic, ast.walk(tree.body))):
        raise ValueError(
            _("{unparse!r} is not arithmetic; functions are {functions}").format(
                unparse=expression, functions=", ".join(FUNCTIONS)
            )
        )
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return _Compiled(compile(tree, "formula", "eval"), frozenset(names - FUNCTIONS.keys()))


def _is_arithmetic(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, bool | int | float | str)
        case ast.Compare(ops=ops):
            return len(ops) == 1
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in FUNCTIONS and len(args) > 0
    return isinstance(node, (*_PARTS, *_OPERATORS, *_COMPARISONS)) and not isinstance(node, ast.Call)


def _check_expression(text: str) -> str:
    _compile(text)
    return text


Expression = Annotated[str, StringConstraints(min_length=1), AfterValidator(_check_expression)]
"""Arithmetic on parameters and amounts, such as `4 * params / gpus`."""
