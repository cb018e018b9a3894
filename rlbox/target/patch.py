"""A source patch of a fix: a diff with what it was made for, why, and how upstream's own repair is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from rlbox.config.kinds import Line, Name
from rlbox.target.target import PatchFacts

_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class FixPatch(PatchFacts):
    """One diff of a fix, matched on content; it leaves its mark in every file, so that it can be found and listed."""

    name: Name
    into: Line = Field("", description="folder that the diff's paths start in; empty: that of the package")
    made_for: Annotated[Line, StringConstraints(min_length=1)] = Field(
        description="commit or version that the diff was made from"
    )
    reason: Annotated[Line, StringConstraints(min_length=1)] = Field(description="what goes wrong without it")
    marker: Annotated[Line, StringConstraints(min_length=1)] = Field(description="text that each patched file holds")
    diff: Annotated[str, StringConstraints(min_length=1)] = Field(description="unified diff")

    @model_validator(mode="after")
    def _diff_is_marked(self) -> FixPatch:
        added = added_lines(self.diff)
        problems = [] if added else ["diff: this is no unified diff"]
        problems += [f"diff: {path} does not get the marker" for path, text in added.items() if self.marker not in text]
        problems += [f"diff: line {number} is in no hunk: a head counts too few" for number in stray_lines(self.diff)]
        known = ["/".join(path.split("/")[self.strip :]) for path in added]
        problems += [f"files: the diff does not change {path}" for path in self.files if path not in known]
        if problems:
            raise ValueError("\n".join(problems))
        return self


def added_lines(diff: str) -> dict[str, str]:
    """Return what a diff adds to each file, by the name in its `+++` line."""
    found: dict[str, str] = {}
    name = ""
    for _, line, inside in _lines(diff):
        if not inside and line.startswith("+++ "):
            name = line[4:].split("\t")[0].strip()
            found[name] = ""
        elif inside and line.startswith("+"):
            found[name] += line[1:] + "\n"
    return found


def stray_lines(diff: str) -> tuple[int, ...]:
    heads = ("+++ ", "--- ")
    return tuple(
        number
        for number, line, inside in _lines(diff)
        if not inside and re.match(r"\+|-(?!-)", line) and not line.startswith(heads)
    )


def _lines(diff: str) -> Iterator[tuple[int, str, bool]]:
    """Yield number and text of each line, and whether it is in a hunk of a file."""
    old = new = 0
    named = False
    for number, line in enumerate(diff.split("\n"), 1):
        inside = old > 0 or new > 0
        yield number, line, inside
        if inside:
            old, new = old - (line[:1] in " -"), new - (line[:1] in " +")
        elif (head := _HUNK.match(line)) and named:
            old, new = int(head[1] or 1), int(head[2] or 1)
        named = named or line.startswith("+++ ")
