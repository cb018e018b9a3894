"""The checks that rows of the table may name: every public function of the modules below, by its name."""

from __future__ import annotations

import inspect

from rlbox.lint.checks import packages, python, ray, shell, values
from rlbox.lint.hits import Check

CHECKS: dict[str, Check] = {
    name: one
    for module in (packages, python, ray, shell, values)
    for name, one in inspect.getmembers(module, inspect.isfunction)
    if one.__module__ == module.__name__ and not name.startswith("_")
}
