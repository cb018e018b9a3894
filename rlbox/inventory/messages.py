"""The messages in a Python source: what it raises, asserts and logs, with holes where values are put in."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

HOLE = "\x00"
"""What stands in a template where a value is put in."""
LEAST = 10
"""Letters and digits that a template must have to be worth keeping."""
MOST = 140
"""Characters that a template keeps: the first ones tell a message, and a log may cut the rest."""
Kind = Literal["raise", "assert", "log", "exit", "native"]
_LEVELS = {"error", "critical", "exception", "fatal", "error_once"}
_LOGGERS = re.compile(r"log", re.IGNORECASE)
_COMMON = {name for name in dir(builtins) if name.endswith(("Error", "Exception"))} | {
    "NotImplementedError",
    "SystemExit",
}
_HANDED = re.compile(r"err(?:or)?_(?:msg|message|prefix)|^message$")
"""Keywords by which a text is handed to what raises it."""
_PERCENT = re.compile(r"%(?:\(\w+\))?[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[hlLqjzt]{0,2}[a-zA-Z]|%%")
_BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}")


_ALIASES = {"EnvironmentError": "OSError", "IOError": "OSError"}
_LEAST_NAME = 8
"""Letters of an exception's name that is known by it alone."""
_WAYS = 4
"""Texts of one name that are remembered."""
Names = dict[str, tuple[ast.expr, ...]]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message and where it stands.

    `template` is one line of it with `HOLE` for each value; `name` is the exception's class, or the level of a log;
    `where` is `file.py: function`, the file below its package's folder; `file` alone for what a library holds.
    """

    template: str
    kind: Kind
    name: str
    where: str


def source_messages(text: str, file: str) -> Iterator[Message]:
    """Yield the messages of a Python source; nothing of one that this Python cannot parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from _Walk(file, _own_names(tree)).of(tree.body, "", {})


def _own_names(tree: ast.Module) -> set[str]:
    """The names that a source makes or imports: they may hide those of Python's own exceptions."""
    made = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return made | {name.asname or name.name for node in imports for name in node.names}


class _Walk:
    """Goes through a source, remembering which function it is in and which text its names were given."""

    def __init__(self, file: str, own_names: set[str]) -> None:
        self._file = file
        self._wordless = _COMMON - own_names

    def of(self, body: list[ast.stmt], inside: str, names: Names) -> Iterator[Message]:
        for statement in body:
            yield from self._statement(statement, inside, names)

    def _statement(self, node: ast.stmt, inside: str, names: Names) -> Iterator[Message]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from self.of(node.body, f"{inside}.{node.name}" if inside else node.name, dict(names))
            return
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    names[target.id] = (*names.get(target.id, ())[-_WAYS:], node.value)
        yield from self._told(node, inside, names)
        for part in ("body", "orelse", "finalbody"):
            yield from self.of(getattr(node, part, []), inside, names)
        for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            yield from self.of(handler.body, inside, names)

    def _told(self, node: ast.stmt, inside: str, names: Names) -> Iterator[Message]:
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from self._call(node.exc, "raise", _raised_name(node.exc), inside, names)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name) and node.exc.id[:1].isupper():
            yield from self._call(ast.Call(func=node.exc, args=[], keywords=[]), "raise", node.exc.id, inside, names)
        elif isinstance(node, ast.Assert) and node.msg is not None:
            yield from self._messages(node.msg, "assert", "AssertionError", inside, names)
        elif isinstance(node, ast.Expr | ast.Assign | ast.Return):
            for call in [part for part in ast.walk(node) if isinstance(part, ast.Call)]:
                if kind := _kind_of(call):
                    yield from self._call(call, kind, _last_name(call.func), inside, names)
                else:
                    handed = [word.value for word in call.keywords if _HANDED.search(word.arg or "")]
                    for value in handed:
                        yield from self._messages(value, "raise", "", inside, names)

    def _call(self, call: ast.Call, kind: Kind, name: str, inside: str, names: Names) -> Iterator[Message]:
        values = [*call.args, *(word.value for word in call.keywords if word.arg in ("message", "msg", "detail"))]
        for value in values:
            if found := list(self._messages(value, kind, name, inside, names)):
                yield from found
                firsts = [text.strip().partition("\n")[0] for text in texts_of(value, names) if text.strip()]
                if all(template_lines(first) for first in firsts):
                    return
                break  # its first line, which a log shows behind the name, has no words of its own
        if kind == "raise" and len(name) >= _LEAST_NAME and name not in self._wordless and name != "__init__":
            yield Message(template="", kind=kind, name=name, where=self._where(inside))

    def _messages(self, value: ast.expr, kind: Kind, name: str, inside: str, names: Names) -> Iterator[Message]:
        for template in sorted({line for text in texts_of(value, names) for line in template_lines(text)}):
            yield Message(template=template, kind=kind, name=name, where=self._where(inside))

    def _where(self, inside: str) -> str:
        return f"{self._file}: {inside}" if inside else self._file


def _kind_of(call: ast.Call) -> Kind | None:
    """What a call tells, if it is one that tells something."""
    name, owner = _last_name(call.func), _owner(call.func)
    if name in _LEVELS and (_LOGGERS.search(owner) or owner == "cls"):
        return "log"
    if name == "exit" or (name == "error" and "parser" in owner):
        return "exit"
    if name.endswith(("Error", "Exception")) or (name == "__init__" and owner == "super"):
        return "raise"
    return None


def _raised_name(call: ast.Call) -> str:
    """The class that a call makes, or that a helper is handed: `raise _format(HfHubHTTPError, message, response)`."""
    name = _ALIASES.get(_last_name(call.func), _last_name(call.func))
    handed = [_last_name(value) for value in call.args if isinstance(value, ast.Name)]
    return name if name[:1].isupper() else next((one for one in handed if one.endswith("Error")), name)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.id if isinstance(node, ast.Name) else ""


def _owner(node: ast.expr) -> str:
    return _last_name(node.value) if isinstance(node, ast.Attribute) else ""


def texts_of(value: ast.expr, names: Names) -> list[str]:
    """Return the texts that an expression may make: a name may have been given several, one in each branch."""
    if isinstance(value, ast.Name) and value.id in names:
        rest = {key: texts for key, texts in names.items() if key != value.id}
        return [text for given in names[value.id] for text in texts_of(given, rest)]
    if isinstance(value, ast.IfExp):
        return [*texts_of(value.body, names), *texts_of(value.orelse, names)]
    return [text_of(value, names)]


def text_of(value: ast.expr, names: Names, depth: int = 0) -> str:
    """Return the text that an expression makes, with `HOLE` for what is not written in the source."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part, names, depth) for part in parts)
        case ast.FormattedValue(value=ast.Name() as name, conversion=-1, format_spec=None):
            return text_of(name, names, depth)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left, names, depth) + text_of(right, names, depth)
        case ast.BinOp(left=left, op=ast.Mod()):
            return holes_of(text_of(left, names, depth))
        case ast.Call(func=ast.Attribute(attr="format", value=left)):
            return _BRACES.sub(
                lambda hit: hit.group()[0] if hit.group() in ("{{", "}}") else HOLE, text_of(left, names)
            )
        case ast.Call(func=ast.Attribute(attr="strip" | "dedent", value=left)) if depth < 3:
            return text_of(left, names, depth + 1)
        case ast.Name(id=name) if depth < 3 and name in names:
            return text_of(names[name][-1], {key: it for key, it in names.items() if key != name}, depth + 1)
    return HOLE


def _brace(hit: re.Match[str]) -> str:
    return hit.group()[0] if hit.group() in ("{{", "}}") else HOLE


def settled(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages of a package with those of its own exceptions' classes laid where these are raised.

    A class may write its text in `__init__`: then that is what each `raise` of it without a text says. One that writes
    none is known by its name alone.
    """
    kept = list(messages)
    written: dict[str, list[str]] = {}
    for message in kept:
        if message.template and message.where.endswith(".__init__") and message.name == "__init__":
            written.setdefault(message.where.split(": ")[1].split(".")[-2], []).append(message.template)
    for message in kept:
        if message.template:
            yield message
            continue
        for template in written.get(message.name, [f"{message.name}:"]):
            yield replace(message, template=template)


def holes_of(text: str) -> str:
    """Return a text of C's or Python's % with `HOLE` for each directive."""
    return _PERCENT.sub(lambda hit: "%" if hit.group() == "%%" else HOLE, text)


def template_lines(text: str) -> list[str]:
    """Return the first line of a message that can be told from others; nothing when none can."""
    for line in text.split("\n"):
        squeezed = re.sub(f"{HOLE}+", HOLE, " ".join(line.split()))
        if "%" in squeezed:
            squeezed = holes_of(squeezed)
        squeezed = shortened(squeezed)
        if len(re.sub(r"\W", "", squeezed)) >= LEAST and re.search(r"[A-Za-z]{4}", squeezed):
            return [squeezed]
    return []


def shortened(template: str) -> str:
    """Return the part of a template that is kept."""
    return template if len(template) <= MOST else template[:MOST].rpartition(" ")[0]
