"""The one object that lives as long as a command: where specs are, how to speak, what was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.errors import SpecError
from rlbox.printable import printable
from rlbox.spec.project import Project


@dataclass(frozen=True, kw_only=True)
class App:
    """Options that every verb shares, and the plans they start from."""

    project: Project
    as_json: bool = False
    dry_run: bool = False
    verbosity: int = 0
    colour: bool = True

    @property
    def interactive(self) -> bool:
        """Whether progress may move: a person looks at stderr."""
        return sys.stderr.isatty() and not self.as_json and self.verbosity >= 0

    def say(self, text: str) -> None:
        """Write a line of talk to stderr."""
        if self.verbosity >= 0:
            sys.stderr.write(printable(text) + "\n")
            sys.stderr.flush()

    def result(self, data: Mapping[str, Any], text: str) -> None:
        """Write the result to stdout: `data` as one JSON object with `--json`, else `text`."""
        if self.as_json:
            write_json(data)
        elif text:
            sys.stdout.write(printable(text) + "\n")
            sys.stdout.flush()


def write_json(data: Mapping[str, Any]) -> None:
    """Write one JSON object to stdout; characters that its encoding lacks are escaped as JSON does."""
    import json

    escaped = not sys.stdout.encoding.lower().startswith("utf")
    sys.stdout.write(printable(json.dumps({"schema": 1, **data}, indent=2, ensure_ascii=escaped)) + "\n")
    sys.stdout.flush()


def own_requirements() -> tuple[str, ...]:
    """Return rlbox's own requirements as its distribution declares them, sorted."""
    from importlib.metadata import requires

    return tuple(sorted(line for line in requires("rlbox") or () if "extra ==" not in line))


def project_of(folder: str | None) -> Project:
    """Return the project of `--project`, `RLBOX_PROJECT`, or the working directory; `SpecError` when that is gone."""
    try:
        here = os.getcwd()
    except FileNotFoundError as error:  # which no verb, and no program that one starts, can do without
        raise SpecError("the working directory has been removed", next_step="cd to a folder that is there") from error
    return Project(folder=Path(os.path.realpath(folder or os.environ.get("RLBOX_PROJECT") or here)))
