"""Check a program that runs in another process, and say the last word over a line that the program does not hold.

Descriptor 3 leads to the program, 4 takes the word, 5 has what is to be checked: `before` (source that is trusted, such
as the head of a task), `check` (source of the tests), `names` (functions of the program that the tests call) and the
number that was drawn for this word. The tests run here; each call of the program's functions goes to it as plain values
and comes back as such. Run by the stack's interpreter, which has no rlbox.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
from collections.abc import Iterable
from typing import Any

import wire  # type: ignore[import-not-found]  # beside it, where it runs

_LINE, _WORD, _GIVEN = 3, 4, 5


class _Gone(BaseException):
    """The program is not there any more, or does not answer as it must."""


class _Thing:
    """A thing of the program: it can be called, asked for its attributes, and handed back; it equals only itself."""

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "_number", number)

    def __call__(self, *words: Any, **names: Any) -> Any:
        return _ask(
            {
                "do": "call",
                "at": self._number,
                "words": [wire.encode(word, _keep) for word in words],
                "names": {name: wire.encode(value, _keep) for name, value in names.items()},
            }
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ask({"do": "get", "at": self._number, "name": name})


def _keep(thing: Any) -> dict[str, Any]:
    if isinstance(thing, _Thing):
        return {"k": "kept", "v": thing._number}
    raise TypeError(f"a {type(thing).__name__} cannot be handed to a program that is checked from outside")


def _find(value: dict[str, Any]) -> Any:
    number = value.get("v")
    if value.get("k") != "kept" or not isinstance(number, int):
        raise wire.WireError("no value")
    return _Thing(number)


def _ask(asked: dict[str, Any] | None) -> Any:
    try:
        if asked:
            wire.send(_LINE, asked)
        answer = wire.receive(_LINE)
        if "raised" not in answer:
            return wire.decode(answer.get("value"), _find)
        name, text = map(str, answer["raised"])
    except (wire.WireError, OSError, RecursionError, ValueError, MemoryError) as error:
        raise _Gone(f"the program does not answer: {error}") from error
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            raised = kind(text)
        except TypeError:  # UnicodeDecodeError wants more words
            raised = ValueError(text)
        raise raised
    if name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit"):
        raise _Gone(f"the program ended itself: {name}")
    raise type(name, (Exception,), {})(text)


def _asked_names(source: str, space: dict[str, Any]) -> Iterable[str]:
    """Return the names that the tests use and neither they nor what stands before them define."""
    tree = ast.parse(source)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return sorted(used - bound - set(space) - set(dir(builtins)))


def _judge(given: dict[str, Any]) -> str:
    space: dict[str, Any] = {"__name__": "__main__"}
    try:
        _ask(None)  # the program is loaded
        exec(compile(given["before"], "before", "exec"), space)  # noqa: S102 trusted, as all that is given
        for name in given["names"] or _asked_names(given["check"], space):
            try:
                space[name] = _ask({"do": "name", "name": name})
            except KeyError:
                return f"failed NameError: the program does not define {name}"
        exec(compile(given["check"], "check", "exec"), space)  # noqa: S102
    except AssertionError as error:
        return f"wrong {error}"
    except SystemExit as error:
        return f"failed SystemExit: {error}" if error.code else "passed"
    except _Gone as error:
        return f"failed {error}"
    except BaseException as error:
        return f"failed {type(error).__name__}: {error}"
    return "passed"


def main() -> None:
    """ProgramCheck, and give the word."""
    with os.fdopen(_GIVEN, "rb") as stream:
        given = json.load(stream)
    os.write(_WORD, f"{given['nonce']} {_judge(given)[:2000]}".encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
