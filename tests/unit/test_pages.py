"""What the tool sends people to is there for who has the wheel alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from fakes import CHECKOUT

from rlbox.errors import get_main_docs_url

CODE = [path for path in sorted((CHECKOUT / "rlbox").rglob("*.py")) if path.parts[-2] != "docs"]


def _told(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield the texts of a module that are no docstrings, and its calls of `get_main_docs_url`."""
    tree = ast.parse(path.read_text("utf-8"))
    quiet = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in quiet:
            yield node.value, node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "get_main_docs_url":
            yield "", node


def test_nobody_is_sent_to_a_file_of_the_checkout() -> None:
    found = {
        path.name: text for path in CODE for text, _ in _told(path) if re.search(r"(?<!main/)docs/[\w-]+\.md", text)
    }
    assert not found


def test_every_page_is_there() -> None:
    asked = {ast.literal_eval(node.args[0]) for path in CODE for _, node in _told(path) if isinstance(node, ast.Call)}
    assert {"compile", "vast", "hangs"} <= asked
    for name in asked:
        assert (CHECKOUT / f"docs/{name}.md").is_file()
        assert get_main_docs_url(name).endswith(f"/docs/{name}.md")
