"""Programs of a node that its own program starts: a few, short, each with an end."""

from __future__ import annotations

import os
import subprocess

from rlbox.cluster.act.programs.node_wire import NodeFailed


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
