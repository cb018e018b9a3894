"""Programs of a node that its own program starts: a few, short, each with an end."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from rlbox.cluster.programs.node_wire import NodeFailed

if TYPE_CHECKING:
    from collections.abc import Iterator


def run(words: list[str], patience: float, given: str = "") -> str:
    """Return what a program prints; `NodeFailed` with its last words where it fails, or takes too long."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(os.environ, LC_ALL="C"))
    except OSError as error:
        raise NodeFailed(f"{words[0]}: {error.strerror}", "program") from error
    try:
        said, why = process.communicate(given.encode(), timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        raise NodeFailed(f"{words[0]} does not end", "program") from None
    if process.returncode:
        lines = why.decode("utf-8", "replace").strip().splitlines()
        raise NodeFailed(lines[-1] if lines else f"{words[0]} ended with {process.returncode}", "program")
    return said.decode("utf-8", "replace")


def tried(words: list[str], patience: float) -> str | None:
    """Return what a program prints, None where it fails."""
    try:
        return run(words, patience)
    except NodeFailed:
        return None


def begun(words: list[str], env: dict[str, str], output: int) -> int:
    """Start a program in a session of its own that writes to the handle `output`, and return its number."""
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd="/", start_new_session=True
    )
    process.returncode = 0  # who started it collects it by itself
    return process.pid


def first_line(words: list[str], given: bytes) -> bytes:
    """Start a program that stays, in a session of its own; return the first line that it prints."""
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True
    )
    if process.stdin is None or process.stdout is None:
        return b""
    try:
        process.stdin.write(given)
        process.stdin.close()
    except OSError:  # it has ended, and prints nothing
        pass
    with process.stdout as said:
        return said.readline()


class HeardProgram:
    """A program that runs while it is read."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, cwd="/"
        )

    def lines(self) -> Iterator[str]:
        """Yield the lines that it prints, until it ends."""
        for line in self._process.stdout or ():
            yield line.decode("utf-8", "replace").rstrip("\n")
        self._process.wait()

    def end(self) -> None:
        """Have it end."""
        self._process.kill()
