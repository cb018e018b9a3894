"""The languages that run in the sandbox, a row each."""

from __future__ import annotations

from dataclasses import dataclass


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
