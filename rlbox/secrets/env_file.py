r"""Read a `.env` file as a shell would, without carrying anything out.

`NAME=value` lines; blanks around `=`, `export `, comments, Windows line ends and a byte order mark are understood.
'Single quotes' keep everything as it is. In "double quotes" a backslash before `"`, `\`, `$`, a backquote or a line end
takes its meaning away, and `\n`, `\r`, `\t` are the characters they name. Both may hold several lines. A value without
quotes ends before ` #`. `$NAME` stays as it is written: nothing is expanded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlbox.i18n import _

_SKIPPED = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_ASSIGN = re.compile(r"[ \t]*(?:export[ \t]+)?(?P<name>[^=\n]*?)[ \t]*=(?P<blank>[ \t]*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PIECE = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s'"]+)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$", "`": "`", "\n": ""}
_COMMENT = re.compile(r"[ \t]#")
_SECOND = re.compile(r"[ \t][A-Za-z_][A-Za-z0-9_]*=", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ParsedEnvFile:
    """What a `.env` file says: name to value, and what is wrong with it, by line number, never with a value."""

    values: dict[str, str]
    problems: tuple[str, ...] = ()


class _BadLine(Exception):
    """What is wrong with one line."""


def parse_env_with_problems(data: bytes) -> ParsedEnvFile:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = _(" (it looks like UTF-16)") if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        return ParsedEnvFile(
            values={},
            problems=(
                _("line {count}: not UTF-8 text{hint}").format(count=data.count(10, 0, error.start) + 1, hint=hint),
            ),
        )
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    problems: list[str] = []
    place, line = 0, 1
    while place < len(text):
        begun = place
        if skipped := _SKIPPED.match(text, place):
            place = skipped.end()
        else:
            try:
                name, value, place = _read(text, place)
                _check(name, value, values, lines)
                values[name], lines[name] = value, line
            except _BadLine as problem:
                problems.append(_("line {line}: {problem}").format(line=line, problem=problem))
                place = text.find("\n", begun) + 1 or len(text)
        line += text.count("\n", begun, place)
    return ParsedEnvFile(values=values, problems=tuple(problems))


def _read(text: str, place: int) -> tuple[str, str, int]:
    """Return name and value of the assignment at `place`, and where the next line begins."""
    assign = _ASSIGN.match(text, place)
    if assign is None:
        raise _BadLine(_("no '=' in it: write NAME=value"))
    name = assign["name"]
    if not _NAME.fullmatch(name):
        raise _BadLine(_("the text before '=' is not a name: letters, digits and _, no digit first"))
    if text[assign.end() : assign.end() + 1] in ("'", '"'):
        return (name, *_read_quoted(name, text, assign.end()))
    end = text.find("\n", assign.end())
    begin = assign.end() - len(assign["blank"])  # a comment may begin right after blanks
    value = _COMMENT.split(text[begin : len(text) if end < 0 else end], maxsplit=1)[0].strip(" \t")
    if "'" in value or '"' in value:
        raise _BadLine(_("a quote inside the value of {name}: put quotes around the complete value").format(name=name))
    if _SECOND.search(value):
        raise _BadLine(_("two assignments on one line: part them, or quote the value"))
    return name, value, len(text) if end < 0 else end + 1


def _read_quoted(name: str, text: str, place: int) -> tuple[str, int]:
    """Return a value of quoted pieces beside each other, and where the next line begins."""
    value = ""
    while piece := _PIECE.match(text, place):
        value += (piece["single"] or "") + (piece["bare"] or "")
        value += _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[0]), piece["double"] or "")
        place = piece.end()
    if text[place : place + 1] in ("'", '"'):
        raise _BadLine(_("the quote that begins the value of {name} is never closed").format(name=name))
    rest = _SKIPPED.match(text, place)
    if rest is None:
        raise _BadLine(
            _("text follows the closing quote of {name}: put quotes around the complete value").format(name=name)
        )
    return value, rest.end()


def _check(name: str, value: str, values: dict[str, str], lines: dict[str, int]) -> None:
    if "\0" in value:
        raise _BadLine(_("the value of {name} holds a NUL character, which no environment can").format(name=name))
    if values.get(name, value) != value:
        raise _BadLine(_("{name} has another value on line {lines} already").format(name=name, lines=lines[name]))
