"""Requests to the sandbox: languages, limits, and which requests are refused."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple


class Language(NamedTuple):
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
_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(("code", "language", "stdin", "tests", "before"), (str, "no text")),
    **dict.fromkeys(("run_timeout", "compile_timeout", "memory_limit_MB"), ((int, float), "no number")),
    **dict.fromkeys(("names", "fetch_files"), (list, "no list of names")),
    "files": (dict, "no object"),
}


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What one request may take, all its programs and their children together; a request can only lower it.

    `cpu_s`: programs that sleep that long without using processor time are stopped too; waiting for a processor is not
    sleeping, so that no verdict depends on what else the machine does. `memory_mb` and `disk_mb` are in MiB, `tasks`
    counts processes and threads, `output_bytes` is for standard output and standard error each.
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


def compute_wall_limit_s(cpu_s: float) -> float:
    """Return the seconds after which programs end that neither sleep nor get a processor, or hide what they use."""
    return 20 * cpu_s + 10


def _lower(limit: float, requested: float | None) -> float:
    if requested is None or not math.isfinite(requested) or requested <= 0:
        return limit
    return min(limit, requested)


@dataclass(frozen=True, kw_only=True)
class ProgramRequest:
    """A program to run, or with a `check`, whose keys are those of `SandboxPlan.check`, to be tested by functions."""

    code: str
    limits: RequestLimits
    language: str = "python"
    stdin: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: tuple[str, ...] = ()
    check: Mapping[str, Any] | None = None


def parse_program_request(document: object, limits: RequestLimits, *, has_tests: bool = False) -> ProgramRequest:
    """Return a request from its JSON, which can lower the limits; unknown keys are ignored, as SandboxFusion does.

    Raises ValueError, whose text says which field is wrong.
    """
    if not isinstance(document, dict):
        raise ValueError("a request is a JSON object")
    fields = {name: value for name, value in document.items() if value is not None and value != []}
    for name in ("code", *(["tests"] if has_tests else [])):
        fields.setdefault(name, None)
    for name, value in fields.items():
        if name in _TYPES:
            _check_field(name, value)
    return ProgramRequest(
        code=fields["code"],
        limits=limits.lower_to_request(
            fields.get("run_timeout"), fields.get("compile_timeout"), fields.get("memory_limit_MB")
        ),
        language=fields.get("language", "python"),
        stdin=fields.get("stdin", ""),
        files=_decode_files(fields.get("files", {})),
        fetch=tuple(_check_path(name) for name in fields.get("fetch_files", ())),
        check=_build_check(fields) if has_tests else None,
    )


def _check_field(name: str, value: Any) -> None:
    kind, fault = _TYPES[name]
    is_finite = not isinstance(value, (int, float)) or abs(value) < 1e308
    is_names = not isinstance(value, list) or all(isinstance(item, str) for item in value)
    if not isinstance(value, kind) or isinstance(value, bool) or not is_finite or not is_names:
        raise ValueError(f"{name}: {fault}")
    if isinstance(value, (list, dict)) and len(value) > _MAX_FILES:
        raise ValueError(f"{name}: more than {_MAX_FILES}")
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        raise ValueError(f"{name}: longer than {_MAX_TEXT} characters")


def _build_check(fields: Mapping[str, Any]) -> dict[str, Any]:
    names = fields.get("names", [])
    if invalid := [name for name in names if not name.isidentifier()]:
        raise ValueError(f"names: {invalid[0]!r} is not a valid name")
    return {"tests": fields["tests"], "before": fields.get("before", ""), "called_functions": names}


def _decode_files(base64_by_name: Mapping[str, Any]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for name, text in base64_by_name.items():
        path = _check_path(name)
        try:
            files[path] = base64.b64decode(text or "", validate=True)
        except (TypeError, ValueError) as error:
            raise ValueError(f"files: {name!r} is not base64") from error
    if sum(map(len, files.values())) > _MAX_TEXT:
        raise ValueError(f"files: more than {_MAX_TEXT} bytes")
    return files


def _check_path(name: str) -> str:
    """Return the name of a file without a leading `./`; refuse one that may lead out of the program's folder."""
    parts = name.removeprefix("./").split("/")
    is_text = name == name.encode("utf-8", "ignore").decode()  # a lone surrogate names no file
    if not is_text or "\0" in name or any(part in ("", ".", "..") for part in parts) or len(name) > 500:
        raise ValueError(f"{name!r} is not a path below the program's folder")
    return "/".join(parts)
