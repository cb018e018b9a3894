"""A source patch of a fix: a diff with what it was made for, why, and how upstream's own repair is known."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from rlbox.spec.target import Line, Name, PatchFacts

_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")


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
        if not added:
            raise ValueError("diff: this is no unified diff")
        problems = [f"diff: {path} does not get the marker" for path, text in added.items() if self.marker not in text]
        known = ["/".join(path.split("/")[self.strip :]) for path in added]
        problems += [f"files: the diff does not change {path}" for path in self.files if path not in known]
        if problems:
            raise ValueError("\n".join(problems))
        return self


def added_lines(diff: str) -> dict[str, str]:
    """Return what a diff adds to each file, by the name in its `+++` line."""
    found: dict[str, str] = {}
    name = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            name = line[4:].split("\t")[0].strip()
            found[name] = ""
        elif _HUNK.match(line) or not name:
            continue
        elif line.startswith("+"):
            found[name] += line[1:] + "\n"
    return found
