"""The table of doctor's findings: all of it is used, and every text is filled in with what the check passes."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator

from fakes import CHECKOUT

from rlbox.doctor.catalogue import TRANSLATED_KEYS, load_finding_texts

TABLE = load_finding_texts()
OPTIONS = {"id", "level", "seen", "where", "remedy", "repair", "breaks", "covers"}
COMPUTED = ("directory-", "cuinit")  # by the directory and the code of cuInit


def nodes() -> Iterator[ast.AST]:
    for path in sorted((CHECKOUT / "rlbox/doctor").glob("*.py")):
        yield from ast.walk(ast.parse(path.read_text("utf-8")))


def calls() -> Iterator[ast.Call]:
    for node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "make_finding":
            yield node


def test_every_text_gets_the_values_that_it_names() -> None:
    wrong = []
    for call in calls():
        names = {keyword.arg for keyword in call.keywords}
        for text_id in [node.value for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)]:
            if text_id not in TABLE or str(text_id).startswith(COMPUTED):
                continue
            texts = [TABLE[text_id][key] for key in {*TRANSLATED_KEYS, "where"} & TABLE[text_id].keys() - names]
            wanted = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
            if not wanted <= names:
                wrong.append((text_id, wanted - names))
    assert wrong == []


def test_every_finding_of_the_table_is_made() -> None:
    used = {node.value for node in nodes() if isinstance(node, ast.Constant)}
    assert [text_id for text_id in TABLE if text_id not in used and not text_id.startswith(COMPUTED)] == []
