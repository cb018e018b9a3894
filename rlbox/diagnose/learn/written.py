"""The file of a lesson: a fix as `templates/fixes` has them, with nothing of the log in it but a template's words."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rlbox.diagnose.catalogue import LogSignature
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
    told_by = [_signature(one, lesson.example, lesson.near_miss)]
    told_by += [_signature(further.signature, further.example) for further in lesson.further]
    rows = [row for table in told_by for row in ("", "[[signature]]", *_rows(table))]
    return "\n".join((_HEAD, *_rows(fix), *rows, ""))


def _signature(one: LogSignature, example: str, near_miss: str = "") -> dict[str, str]:
    table = {"pattern": _literal(one.pattern)}
    table |= {"near": _literal(one.near)} if one.near else {}
    table |= {"anchor": f"[{', '.join(map(_text, one.anchor))}]"} if one.anchor else {}
    table["example"] = _text(example)
    return table | ({"unlike": _text(near_miss)} if near_miss else {})


def _rows(table: Mapping[str, str]) -> list[str]:
    return [f"{key} = {value}" for key, value in table.items()]


def _literal(text: str) -> str:
    """Return a text as TOML, backslashes as they are where that can be written."""
    return f"'{text}'" if "'" not in text and text.isprintable() else _text(text)


def _text(text: str) -> str:
    """Return a text as TOML's basic string, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
