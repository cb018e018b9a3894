"""Lines of rlbox's in a file of NAME=value lines that a platform fills too, as /etc/environment is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from rlbox.values import OWN

_NAME = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def merged_text(theirs: str, ours: str) -> str:
    """Return a file of NAME=value lines with ours in it: other names stay, folders of a PATH are kept behind ours.

    Merging twice is merging once.
    """
    wanted = dict(_assignments(ours))
    lines, done = [], set()
    for line in _lines(theirs):
        match = _NAME.fullmatch(line)
        name = match[1] if match else ""
        if match and name in wanted:
            if name not in done:
                lines.append(f'{name}="{_joined(wanted[name], match[2])}"')
            done.add(name)
        else:
            lines.append(line)
    lines += [f'{name}="{value}"' for name, value in wanted.items() if name not in done]
    return "\n".join([*lines, ""])


def unmerged_text(now: str, ours: str, before: str) -> str:
    """Return a merged file without ours: names of ours have the lines that they had before, every other line stays."""
    wanted = {name for name, _ in _assignments(ours)}
    old = {match[1]: line for line in _lines(before) if (match := _NAME.fullmatch(line))}
    lines = []
    for line in _lines(now):
        match = _NAME.fullmatch(line)
        if not match or match[1] not in wanted:
            lines.append(line)
        elif match[1] in old:
            lines.append(old.pop(match[1]))
    return "\n".join([*lines, ""]) if lines else ""


def _lines(text: str) -> list[str]:
    """Return the lines as they are: what else ends a line for Python is part of it for pam_env and a shell."""
    return text.removesuffix("\n").split("\n") if text else []


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if match := _NAME.fullmatch(line):
            yield match[1], match[2].strip().strip("\"'")


def _joined(ours: str, theirs: str) -> str:
    """Return two PATHs as one, each folder once.

    One that has ours behind nothing but rlbox's own folders stays: rlbox-init writes the PATH that hooks have made.
    """
    theirs = theirs.strip().strip("\"'")
    mine, there = ours.split(":"), theirs.split(":") if "/" in theirs else []
    first = takewhile(lambda folder: folder not in mine, there)
    if [folder for folder in there if folder in mine] == mine and all(one.startswith(f"{OWN}/") for one in first):
        return theirs
    folders = [*mine, *there]
    return ":".join(dict.fromkeys(folder for folder in folders if folder and "$" not in folder))
