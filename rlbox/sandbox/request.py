"""Requests to the sandbox: languages, limits, and which requests are refused."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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

_MAX_TEXT = 8 << 20
"""Characters of code, input and tests, each; and bytes of files together."""
_MAX_FILES = 1000


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What one request may take, all its programs and their children together; a request can only lower it.

    Attributes
    ----------
    cpu_s
        Seconds of processor time. Programs that sleep that long without using any are stopped too; waiting for a
        processor is not sleeping, so that no verdict depends on what else the machine does.
    compile_s
        The same for the compiler, where the language has one.
    memory_mb, disk_mb
        MiB of memory, and of files.
    tasks
        Processes and threads at a time.
    output_bytes
        Bytes of standard output, and of standard error, each.
    """

    cpu_s: float = 30.0
    compile_s: float = 30.0
    memory_mb: int = 1024
    disk_mb: int = 64
    tasks: int = 64
    output_bytes: int = 1 << 20

    def lower_to_request(self, cpu_s: float | None, compile_s: float | None, memory_mb: float | None) -> RequestLimits:
        """Return these limits lowered to what is requested; what is no number above zero changes nothing."""
        return replace(
            self,
            cpu_s=_lower(self.cpu_s, cpu_s),
            compile_s=_lower(self.compile_s, compile_s),
            memory_mb=int(_lower(self.memory_mb, memory_mb)) or 1,
        )


def compute_wall_limit(cpu_s: float) -> float:
    """Return the seconds after which programs end that neither sleep nor get a processor, or hide what they use."""
    return 20 * cpu_s + 10


def _lower(limit: float, requested: float | None) -> float:
    if requested is None or not math.isfinite(requested) or requested <= 0:
        return limit
    return min(limit, requested)


class InvalidRequestError(Exception):
    """The text says which field is wrong."""


@dataclass(frozen=True, kw_only=True)
class ProgramCheck:
    """What a program is checked with.

    Attributes
    ----------
    tests
        Source that calls the program's functions and asserts.
    before
        Trusted source that the tests build upon, such as the imports and helpers of a task.
    called_functions
        The program's functions that the tests call; empty: all that neither of the sources defines.
    """

    tests: str
    before: str = ""
    called_functions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProgramRequest:
    code: str
    language: str = "python"
    stdin: str = ""
    run_cpu_s: float | None = None
    compile_cpu_s: float | None = None
    memory_mb: float | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: tuple[str, ...] = ()
    check: ProgramCheck | None = None


def parse_request(document: object, *, has_tests: bool = False) -> ProgramRequest:
    """Return a request from its JSON; unknown keys are ignored, as SandboxFusion does.

    Raises
    ------
    InvalidRequestError
        With the field that is wrong.
    """
    if not isinstance(document, dict):
        raise InvalidRequestError(_("a request is a JSON object"))
    files = document.get("files") or {}
    if not isinstance(files, dict):
        raise InvalidRequestError(_("files: no object"))
    return ProgramRequest(
        code=_parse_text(document, "code", None),
        language=_parse_text(document, "language", "python"),
        stdin=_parse_text(document, "stdin", ""),
        run_cpu_s=_parse_number(document, "run_timeout"),
        compile_cpu_s=_parse_number(document, "compile_timeout"),
        memory_mb=_parse_number(document, "memory_limit_MB"),
        files=_parse_files(files),
        fetch=tuple(_check_path(name) for name in _parse_names(document, "fetch_files")),
        check=_parse_check(document) if has_tests else None,
    )


def _parse_check(document: Mapping[str, Any]) -> ProgramCheck:
    names = tuple(_parse_names(document, "names"))
    if invalid := [name for name in names if not name.isidentifier()]:
        raise InvalidRequestError(_("names: {name!r} is not a valid name").format(name=invalid[0]))
    tests = _parse_text(document, "tests", None)
    return ProgramCheck(tests=tests, before=_parse_text(document, "before", ""), called_functions=names)


def _parse_text(document: Mapping[str, Any], key: str, default: str | None) -> str:
    value = document.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise InvalidRequestError(_("{name}: no text").format(name=key))
    if len(value) > _MAX_TEXT:
        raise InvalidRequestError(_("{name}: longer than {longest} characters").format(name=key, longest=_MAX_TEXT))
    return value


def _parse_number(document: Mapping[str, Any], key: str) -> float | None:
    value = document.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidRequestError(_("{name}: no number").format(name=key))
    return float(value)


def _parse_names(document: Mapping[str, Any], key: str) -> list[str]:
    value = document.get(key) or []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidRequestError(_("{name}: no list of names").format(name=key))
    if len(value) > _MAX_FILES:
        raise InvalidRequestError(_("{name}: more than {most}").format(name=key, most=_MAX_FILES))
    return value


def _parse_files(document: Mapping[str, Any]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    if len(document) > _MAX_FILES:
        raise InvalidRequestError(_("files: more than {most}").format(most=_MAX_FILES))
    for name, text in document.items():
        try:
            files[_check_path(name)] = base64.b64decode(text or "", validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidRequestError(_("files: {name!r} is not base64").format(name=name)) from error
    if sum(map(len, files.values())) > _MAX_TEXT:
        raise InvalidRequestError(_("files: more than {longest} bytes").format(longest=_MAX_TEXT))
    return files


def _check_path(name: str) -> str:
    """Return the name of a file without a leading `./`; refuse one that may lead out of the program's folder."""
    parts = name.removeprefix("./").split("/")
    is_text = name == name.encode("utf-8", "ignore").decode()  # a lone surrogate names no file
    if not is_text or "\0" in name or any(part in ("", ".", "..") for part in parts) or len(name) > 500:
        raise InvalidRequestError(_("{name!r} is not a path below the program's folder").format(name=name))
    return "/".join(parts)
