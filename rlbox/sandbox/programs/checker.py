"""Check a program that runs in another process, and say the last word over a line that the program does not hold.

Descriptor 3 leads to the program, 4 takes the word, 5 has what is to be checked: `before` (source that is trusted, such
as the head of a task), `check` (source of the tests), `names` (functions of the program that the tests call) and the
number that was drawn for this word. The tests run here; each call of the program's functions goes to it as plain values
and comes back as such. Tests that end well without having asked the program anything say nothing about it, and once it
is gone no test counts, whatever the tests themselves catch. Run by the stack's interpreter, which has no rlbox.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import wire  # type: ignore[import-not-found]  # beside it, where it runs

_LINE, _WORD, _GIVEN = 3, 4, 5
_SHORT = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot"}
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)  # what runs when it is called


class _Gone(BaseException):
    """The program is not there any more, or does not answer as it must."""


class _Talk:
    """What was said with the program so far: one question at a time, whichever thread of the tests has it."""

    lock = threading.Lock()
    asked = False
    gone: _Gone | None = None


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
        with _Talk.lock:
            if asked:
                wire.send(_LINE, asked)
                _Talk.asked = _Talk.asked or asked["do"] != "name"
            answer = wire.receive(_LINE)
        if "raised" not in answer:
            return wire.decode(answer.get("value"), _find)
        name, text = map(str, answer["raised"])
    except (wire.WireError, OSError, RecursionError, TypeError, ValueError, MemoryError) as error:
        _Talk.gone = _Gone(f"the program does not answer: {error}")
        raise _Talk.gone from error
    raise _error(name, text)


def _error(name: str, text: str) -> BaseException:
    """Return what the tests get to see of an exception of the program."""
    if name in ("StopIteration", "StopAsyncIteration"):  # would end a loop of the tests, as if all were well
        return RuntimeError(f"the program raised {name}")
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            raised: BaseException = kind(text)
        except TypeError:  # UnicodeDecodeError wants more words
            raised = ValueError(text)
        return raised
    if name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit"):
        _Talk.gone = _Gone(f"the program ended itself: {name}")
        return _Talk.gone
    made: type[Exception] = type(name.replace("\0", ""), (Exception,), {})
    return made(text)


def _asked_names(tree: ast.AST, space: dict[str, Any]) -> Iterable[str]:
    """Return the names that the tests use and neither they nor what stands before them define."""
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


def _own_modules(tree: ast.AST, names: Iterable[str]) -> dict[str, str]:
    """Return those of the names that stand for modules here: tests take nothing but attributes of them.

    A program that brought a `math` of its own would answer for `math.isclose`.
    """
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    plain = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in bases}
    full = {name: _SHORT.get(name, name) for name in names if name not in plain}
    return {name: module for name, module in full.items() if name in _SHORT or importlib.util.find_spec(name)}


def _read_at_once(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are read when a source is carried out, whether or not its functions are called."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Name):
            yield node.id
        if not isinstance(node, _INNER):
            yield from _read_at_once(node)


def _take_names(given: dict[str, Any], space: dict[str, Any]) -> str:
    """Put what the tests use of the program into `space`; return a word where it lacks something, else nothing."""
    tree = ast.parse(given["tests"])
    names = given["names"] or _asked_names(tree, space)
    modules = {} if given["names"] else _own_modules(tree, names)
    read = set(_read_at_once(tree))
    for name in names:
        if name in modules:
            space[name] = importlib.import_module(modules[name])
            continue
        try:
            space[name] = _ask({"do": "name", "name": name})
        except KeyError:
            return f"failed NameError: the program does not define {name}"
        _Talk.asked = _Talk.asked or (name in read and not isinstance(space[name], _Thing))
    return ""


def _judge(given: dict[str, Any]) -> str:
    word = _carry_out(given)
    if word == "passed" and _Talk.gone:
        return f"failed {_Talk.gone}"
    if word == "passed" and not _Talk.asked:
        return "failed the tests ended without a call of the program: do they call what they define?"
    return word


def _carry_out(given: dict[str, Any]) -> str:
    """Return how the tests ended."""
    sys.modules["__main__"] = module = ModuleType("__main__")  # where unittest.main looks for tests
    space = module.__dict__
    try:
        _ask(None)  # the program is loaded
        exec(compile(given["before"], "before", "exec"), space)  # noqa: S102 trusted, as all that is given
        if word := _take_names(given, space):
            return word
        exec(compile(given["tests"], "check", "exec"), space)  # noqa: S102
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
    """Check the program, and give the word."""
    del sys.path[0], sys.modules["wire"]  # what lies here is no module of the tests
    with os.fdopen(_GIVEN, "rb") as stream:
        given = json.load(stream)
    os.write(_WORD, f"{given['nonce']} {_judge(given)[:2000]}".encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
