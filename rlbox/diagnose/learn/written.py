"""The file of a lesson: a fix as `templates/fixes` has them, with nothing of the log in it but a template's words."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rlbox.diagnose.learn.lesson import Lesson

_HEAD = "# Made by `rlbox diagnose --teach`. Write what helped as its remedy; `--signatures DIR` reads its folder."
_WHY = "learnt from a log whose cause no signature knew"
_SOURCE = "a log of this machine"
_REMEDY = "not known yet: write here what helped"
_UNTESTED = "learnt from a log"


def file_text(lesson: Lesson, told: str) -> str:
    """Return the whole file; `told` says what the log is of (`vllm 0.12.0`), empty where it does not say."""
    one = lesson.signature
    fix = {
        "title": _text(one.title),
        "why": _text(_WHY),
        "source": f"[{_text(told or _SOURCE)}]",
        "heals": f"[{_text(lesson.id)}]",
        "remedy": _text(_REMEDY),
        "untested": _text(_UNTESTED),
    }
    signature = {"pattern": _literal(one.pattern)}
    signature |= {"near": _literal(one.near)} if one.near else {}
    signature |= {"anchor": f"[{', '.join(map(_text, one.anchor))}]"} if one.anchor else {}
    signature["example"] = _text(lesson.example)
    signature |= {"unlike": _text(lesson.near_miss)} if lesson.near_miss else {}
    return "\n".join((_HEAD, *_rows(fix), "", "[[signature]]", *_rows(signature), ""))


def _rows(table: Mapping[str, str]) -> list[str]:
    return [f"{key} = {value}" for key, value in table.items()]


def _literal(text: str) -> str:
    """Return a text as TOML, backslashes as they are where that can be written."""
    return f"'{text}'" if "'" not in text and text.isprintable() else _text(text)


def _text(text: str) -> str:
    """Return a text as TOML's basic string, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
