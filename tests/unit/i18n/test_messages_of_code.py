"""Every message gets the values that its text names: a missing one is a KeyError where the message is made."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import rlbox

PACKAGE = Path(rlbox.__file__).parent


def formatted_messages(tree: ast.AST) -> Iterator[tuple[int, set[str], set[str]]]:
    """Yield the line of each `_("…").format(…)`, the names in its text, and those that it is given."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="format", value=ast.Call(func=ast.Name(id="_" | "ngettext"), args=[*texts])),
                keywords=given,
            ):
                named = {
                    field.partition(".")[0].partition("[")[0]
                    for text in texts
                    if isinstance(text, ast.Constant) and isinstance(text.value, str)
                    for _text, field, _spec, _conversion in string.Formatter().parse(text.value)
                    if field is not None
                }
                yield node.lineno, named, {keyword.arg or "" for keyword in given}


def test_messages_are_given_the_values_they_name() -> None:
    found, wrong = 0, []
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, named, given in formatted_messages(ast.parse(path.read_text("utf-8"))):
            found += 1
            if named != given and "" not in given:  # of `**values` nothing is known here
                wrong.append(f"{path.relative_to(PACKAGE)}:{line}: {sorted(named ^ given)}")
    assert found > 500
    assert wrong == []
