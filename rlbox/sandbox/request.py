"""Requests to the sandbox: languages, files, limits of one program; what is wrong with one."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlbox.i18n import _


@dataclass(frozen=True, kw_only=True)
class Language:
    """How programs of a language are run: `file` holds the code; `python` in a command is the programs' interpreter."""

    file: str
    run: tuple[str, ...]
    build: tuple[str, ...] = ()


_CC = ("-O2", "-o", "main")
LANGUAGES = {
    "python": Language(file="main.py", run=("python", "-B", "main.py")),
    "bash": Language(file="main.sh", run=("/bin/bash", "main.sh")),
    "c": Language(file="main.c", build=("/usr/bin/gcc", "main.c", *_CC, "-lm"), run=("./main",)),
    "cpp": Language(file="main.cpp", build=("/usr/bin/g++", "-std=c++17", "main.cpp", *_CC), run=("./main",)),
}


_LONGEST = 8 << 20
"""Characters of code, input and tests, each; and bytes of files together."""
_MOST = 1000
"""Files that are given, and names of those that are wanted, each."""


class InvalidRequestError(Exception):
    """A request is none; the text says what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class ProgramCheck:
    """What a program is checked with.

    Attributes
    ----------
    tests
        Source that calls the program's functions and asserts.
    before
        Source that the tests build upon and that is trusted, such as the imports and helpers of a task.
    names
        The program's functions that the tests call; empty: all that neither of the sources defines.
    """

    tests: str
    before: str = ""
    names: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what the checker reads."""
        return {"check": self.tests, "before": self.before, "names": self.names}


@dataclass(frozen=True, kw_only=True)
class ProgramRequest:
    """One request. Limits are None where nothing was asked; they can only lower the server's."""

    code: str
    language: str = "python"
    stdin: str = ""
    run_s: float | None = None
    compile_s: float | None = None
    memory_mb: float | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: tuple[str, ...] = ()
    check: ProgramCheck | None = None


def read_request(document: object, *, checks: bool = False) -> ProgramRequest:
    """Return a request from its JSON; keys that are not known are left aside, as SandboxFusion does.

    Raises
    ------
    AskedWrong
        With the field that is wrong.
    """
    if not isinstance(document, dict):
        raise InvalidRequestError(_("a request is a JSON object"))
    files = document.get("files") or {}
    if not isinstance(files, dict):
        raise InvalidRequestError(_("files: no object"))
    return ProgramRequest(
        code=_text(document, "code", None),
        language=_text(document, "language", "python"),
        stdin=_text(document, "stdin", ""),
        run_s=_number(document, "run_timeout"),
        compile_s=_number(document, "compile_timeout"),
        memory_mb=_number(document, "memory_limit_MB"),
        files=_files(files),
        fetch=tuple(_path(name) for name in _list(document, "fetch_files")),
        check=_check(document) if checks else None,
    )


def _check(asked: Mapping[str, Any]) -> ProgramCheck:
    names = tuple(_list(asked, "names"))
    if wrong := [name for name in names if not name.isidentifier()]:
        raise InvalidRequestError(_("names: {wrong!r} is no name").format(wrong=wrong[0]))
    return ProgramCheck(tests=_text(asked, "tests", None), before=_text(asked, "before", ""), names=names)


def _text(asked: Mapping[str, Any], name: str, default: str | None) -> str:
    value = asked.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise InvalidRequestError(_("{name}: no text").format(name=name))
    if len(value) > _LONGEST:
        raise InvalidRequestError(_("{name}: longer than {longest} characters").format(name=name, longest=_LONGEST))
    return value


def _number(asked: Mapping[str, Any], name: str) -> float | None:
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidRequestError(_("{name}: no number").format(name=name))
    return float(value)


def _list(asked: Mapping[str, Any], name: str) -> list[str]:
    value = asked.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidRequestError(_("{name}: no list of names").format(name=name))
    if len(value) > _MOST:
        raise InvalidRequestError(_("{name}: more than {most}").format(name=name, most=_MOST))
    return value


def _files(asked: Mapping[str, Any]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    if len(asked) > _MOST:
        raise InvalidRequestError(_("files: more than {most}").format(most=_MOST))
    for name, text in asked.items():
        try:
            found[_path(name)] = base64.b64decode(text or "", validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidRequestError(_("files: {name!r} is no base64").format(name=name)) from error
    if sum(map(len, found.values())) > _LONGEST:
        raise InvalidRequestError(_("files: more than {longest} bytes").format(longest=_LONGEST))
    return found


def _path(name: str) -> str:
    """Return a name of a file if it stays below the folder it is meant for."""
    parts = name.removeprefix("./").split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts) or len(name) > 500:
        raise InvalidRequestError(_("{name!r} is no path below the program's folder").format(name=name))
    return "/".join(parts)
