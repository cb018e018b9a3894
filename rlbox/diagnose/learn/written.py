"""The file of a lesson: a fix as `templates/fixes` has them, with nothing of the log in it but a template's words."""

from __future__ import annotations

import json

from rlbox.diagnose.learn.lesson import Lesson

_REMEDY = "not known yet: write here what helped"


def file_text(lesson: Lesson, told: str) -> str:
    """Return the whole file; `told` says what the log is of (`vllm 0.12.0`), empty where it does not say."""
    one = lesson.signature
    rows = [
        "# Made by `rlbox diagnose --teach`. Name it and write its remedy; `rlbox diagnose LOG --signatures DIR` knows it.",
        f"title = {_text(one.title)}",
        f"why = {_text(f'learnt from a log whose cause no signature knew: {lesson.template}')}",
        f"source = [{_text(told or 'a log of this machine')}]",
        f"heals = [{_text(lesson.id)}]",
        f"remedy = {_text(_REMEDY)}",
        'untested = "learnt from a log"',
        "",
        "[[signature]]",
        f"pattern = {_literal(one.pattern)}",
    ]
    rows += [f"near = {_literal(one.near)}"] if one.near else []
    rows += [f"anchor = [{', '.join(map(_text, one.anchor))}]"] if one.anchor else []
    rows.append(f"example = {_text(lesson.example)}")
    rows += [f"unlike = {_text(lesson.near_miss)}"] if lesson.near_miss else []
    return "\n".join(rows) + "\n"


def _literal(text: str) -> str:
    """Return a text as TOML, backslashes as they are where that can be written."""
    return f"'{text}'" if "'" not in text and text.isprintable() else _text(text)


def _text(text: str) -> str:
    """Return a text as TOML's basic string, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
