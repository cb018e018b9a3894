"""What Python sets in the environment, reads from it, runs and calls."""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from rlbox.lint.text import Fragment, LineIndex, join

_RUNNING = {"run", "call", "check_call", "check_output", "Popen", "system", "popen", "getoutput", "getstatusoutput"}
_HUB_USERS = {"huggingface_hub", "transformers", "datasets", "diffusers", "vllm", "sglang", "trl", "peft", "accelerate"}
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_\w+")


class Mention(NamedTuple):
    """A variable that is set or read, a keyword argument (or an attribute), or a command that is run as shell text.

    A late setting is below the first import of a library that reads the hub's variables.
    """

    kind: Literal["setting", "late-setting", "read", "keyword", "command"]
    name: str
    value: str
    start: int
    function: str = ""


def read_python(source: Fragment) -> list[Mention]:
    """Return what a text of Python mentions; nothing when it is none."""
    lines = source.lines()
    margin = min((len(line.text) - len(line.text.lstrip()) for line in lines if line.text.strip()), default=0)
    source = join(line.cut(min(margin, len(line.text) - 1)) for line in lines)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    index = LineIndex(source.text)
    late = min((node.lineno for node in tree.body if _imports_hub_user(node)), default=len(index.lines))
    mentions = []
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = _text(node.value, names)
        for kind, name, value, place, function in _mentions(node, names):
            before = index.line(place.lineno).encode()[: place.col_offset].decode("utf-8", "ignore")
            start = source.offsets[index.starts[place.lineno - 1] + len(before)]
            is_late = kind == "setting" and place.lineno > late
            mentions.append(Mention("late-setting" if is_late else kind, name, value, start, function))
    return mentions


_Found = tuple[Literal["setting", "read", "keyword", "command"], str, str, "ast.expr | ast.keyword", str]


def _mentions(node: ast.AST, names: Mapping[str, str]) -> Iterator[_Found]:
    match node:
        case ast.Assign(targets=[ast.Subscript(value=target, slice=ast.Constant(value=str(name))) as place]):
            if _is_environment(target):
                yield "setting", name, _text(node.value, names), place, ""
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and _VARIABLE.fullmatch(str(key.value)):
                    yield "setting", str(key.value), _text(value, names), key, ""
        case ast.Subscript(value=target, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
            if _is_environment(target):
                yield "read", name, "", node, ""
        case ast.Attribute(value=ast.Name() | ast.Attribute(), attr=name):
            yield "keyword", name, "", node, ""
        case ast.Call():
            yield from _mentions_in_call(node, names)


def _mentions_in_call(call: ast.Call, names: Mapping[str, str]) -> Iterator[_Found]:
    called = ast.unparse(call.func)
    verb = called.rpartition(".")[2]
    for keyword in call.keywords:
        is_variable = _VARIABLE.fullmatch(keyword.arg or "")
        yield (
            "setting" if is_variable else "keyword",
            keyword.arg or "",
            _text(keyword.value, names),
            keyword.value,
            called,
        )
    match call.args:
        case [ast.Constant(value=str(name)), value, *_] if verb in ("setdefault", "putenv", "setenv"):
            yield "setting", name, _text(value, names), call, ""
        case [ast.Constant(value=str(name)), *_] if verb == "getenv" or called.endswith("environ.get"):
            yield "read", name, "", call, ""
        case [ast.Constant(value=str(command)), *_] if verb in _RUNNING:
            yield "command", "", command, call.args[0], ""
        case [ast.List(elts=words), *_] if verb in _RUNNING:
            yield "command", "", " ".join(shlex.quote(_text(word, names)) for word in words), call.args[0], ""


def _text(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return the text of an expression, `${VARIABLE}` for what is read from the environment, `${_}` for the unknown."""
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, names) for part in parts)
        case ast.FormattedValue(value=value):
            return _text(value, names)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, names) + _text(right, names)
    variable = re.search(r"environ\W.*?['\"](\w+)|getenv\(['\"](\w+)", ast.unparse(node))
    return f"${{{variable[1] or variable[2]}}}" if variable else "${_}"


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node).endswith("environ")


def _imports_hub_user(node: ast.stmt) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
    return any(name.split(".")[0] in _HUB_USERS for name in names)
