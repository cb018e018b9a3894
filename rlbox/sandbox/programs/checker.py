"""Check a program that runs in another process, and give the verdict on a line that the program does not hold.

Descriptor 3 leads to the program, 4 takes the verdict, 5 has what is to be checked: `before` (source that is trusted,
such as the head of a task), `tests` (source), `called_functions` (of the program) and the number
that proves the verdict. The tests run here; each call of the program's functions goes to it as plain values and comes
back as such. Tests that end well without having asked the program anything say nothing about it, and once it is gone no
test counts, whatever the tests themselves catch. Run by the stack's interpreter, which has no rlbox.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import peer  # type: ignore[import-not-found]  # beside it, where it runs
import wire  # type: ignore[import-not-found]

_LINE, _VERDICT, _TESTS = 3, 4, 5
_SHORT = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot"}
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)  # what runs when it is called
_INTROSPECTION = (FrameType, TracebackType, CodeType, ModuleType)  # lead to what the tests expect


class _Gone(BaseException):
    """The program is not there any more, or does not answer as it must."""


class _Checker(peer.Peer):  # type: ignore[misc]
    """Asks the program, and lets it use what the tests hand to it."""

    side = "c"
    was_called = False
    ended = ""

    def ask(self, question: dict[str, Any]) -> Any:
        self.was_called = self.was_called or question["do"] not in ("load", "name")
        try:
            return super().ask(question)
        except wire.WireError as error:
            self.ended = f"the program does not answer: {error}"
            raise _Gone(self.ended) from error

    def _build_error(self, raised: Any) -> BaseException:
        builtin = raised["builtin"]
        if builtin in ("StopIteration", "StopAsyncIteration"):  # would end a loop of the tests, as if all were well
            return RuntimeError(f"the program raised {builtin}")
        if builtin in ("SystemExit", "KeyboardInterrupt", "GeneratorExit"):
            self.ended = f"the program ended itself: {builtin}"
            return _Gone(self.ended)
        error: BaseException = super()._build_error(raised)
        return error

    def apply_remote_operator(self, remote: Any, name: str, words: tuple[Any, ...]) -> Any:
        """Ask the program for an operator of one of its things.

        Its word must never decide a comparison with a value of the tests. So it is asked for classes alone that the
        tests name, compares its things with each other alone, and arithmetic must give a thing again.
        """
        is_known = type(remote).allow_operators
        if name in peer.COMPARISONS:
            if not (is_known and isinstance(words[0], peer.Remote)):
                return NotImplemented
            return super().apply_remote_operator(remote, name, words) is True
        if not is_known and name in ("bool", "hash", "repr", "str"):
            return {"bool": True, "hash": id(remote)}.get(name, object.__repr__(remote))
        if not is_known:
            raise TypeError(f"the tests do not name the class of this object of the program: no operator {name}")
        if name == "exit":  # a traceback would lead to the tests
            words = (words[0] and words[0].__name__, words[1] and str(words[1]), None)
        value = super().apply_remote_operator(remote, name, words)
        if name in (*peer.ARITHMETIC, *peer.REFLECTED, *peer.UNARY) and not isinstance(value, peer.Remote):
            raise TypeError(f"operator {name} of an object of the program gives no such object: compare attributes")
        return value

    def _refer(self, thing: Any) -> dict[str, Any]:
        if isinstance(thing, _INTROSPECTION):
            raise TypeError(f"a {type(thing).__name__} cannot be handed to a program that is checked from outside")
        reference: dict[str, Any] = super()._refer(thing)
        return reference

    def _find(self, reference: dict[str, Any]) -> Any:
        return self._await(reference.get("v")) if reference.get("k") == "coroutine" else super()._find(reference)

    async def _await(self, number: Any) -> Any:
        return self.ask({"do": "await", "at": number})

    def _carry_out(self, question: dict[str, Any]) -> Any:
        thing = self.things[question["at"]]
        if question["do"] == "set" and isinstance(thing, (type, FunctionType)):
            raise AttributeError(f"a program cannot change {thing.__name__} of the tests")
        return super()._carry_out(question)


def _list_used_names(tree: ast.AST, space: dict[str, Any]) -> Iterable[str]:
    """Return the names that the tests use and neither they nor what stands before them define."""
    bound: set[str | None]
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)):
            bound.add(node.name)  # None for a handler without a name
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return sorted(used - bound - set(space) - set(dir(builtins)))


def _find_own_modules(tree: ast.AST, names: Iterable[str]) -> dict[str, str]:
    """Return those of the names that stand for modules here: tests take nothing but attributes of them.

    A program that brought a `math` of its own would answer for `math.isclose`.
    """
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    plain = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in bases}
    full = {name: _SHORT.get(name, name) for name in names if name not in plain}
    return {name: module for name, module in full.items() if name in _SHORT or importlib.util.find_spec(name)}


def _list_names_read_at_once(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are read when a source is executed, whether or not its functions are called."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Name):
            yield node.id
        if not isinstance(node, _INNER):
            yield from _list_names_read_at_once(node)


def _take_names(given: dict[str, Any], space: dict[str, Any], checker: _Checker) -> str:
    """Put what the tests use of the program into `space`; return a verdict where it lacks something, else nothing."""
    tree = ast.parse(given["tests"])
    names = given["called_functions"] or _list_used_names(tree, space)
    modules = {} if given["called_functions"] else _find_own_modules(tree, names)
    read = set(_list_names_read_at_once(tree))
    for name in names:
        if name in modules:
            space[name] = importlib.import_module(modules[name])
            continue
        try:
            value = space[name] = checker.ask({"do": "name", "name": name})
        except KeyError:
            return f"failed NameError: the program does not define {name}"
        if isinstance(value, peer.RemoteClass):
            value.allow_operators = True
        is_plain = not isinstance(value, peer.Proxy)
        checker.was_called = checker.was_called or (name in read and is_plain)
    return ""


def _judge(given: dict[str, Any], checker: _Checker) -> str:
    sys.modules["__main__"] = module = ModuleType("__main__")  # where unittest.main looks for tests
    space = module.__dict__
    try:
        checker.ask({"do": "load"})
        exec(compile(given["before"], "before", "exec"), space)  # noqa: S102 trusted, as all that is given
        if verdict := _take_names(given, space, checker):
            return verdict
        exec(compile(given["tests"], "check", "exec"), space)  # noqa: S102
    except AssertionError as error:
        return f"wrong {error}"
    except SystemExit as error:
        if error.code:
            return f"failed SystemExit: {error}"
    except _Gone as error:
        return f"failed {error}"
    except BaseException as error:
        return f"failed {type(error).__name__}: {error}"
    if checker.ended:
        return f"failed {checker.ended}"
    if not checker.was_called:
        return "failed the tests ended without a call of the program: do they call what they define?"
    return "passed"


def _main() -> None:
    del sys.path[0], sys.modules["wire"], sys.modules["peer"]  # what lies here is no module of the tests
    with os.fdopen(_TESTS, "rb") as stream:
        given = json.load(stream)
    checker = _Checker(_LINE)
    checker.start_receiver_thread()
    verdict = _judge(given, checker)[:2000]
    os.write(_VERDICT, f"{given['nonce']} {verdict}".encode("utf-8", "replace"))
    sys.stdout.flush()
    os._exit(0)  # threads of the tests may still wait for the program


if __name__ == "__main__":
    _main()
