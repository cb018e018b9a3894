"""The one object that lives as long as a command: where specs are, how to speak, what was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.config.project import Project
from rlbox.errors import NotAnswered, RlboxError, SpecError
from rlbox.foreign import parse_json
from rlbox.i18n import _, get_language, translate
from rlbox.terminal import remove_controls


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What a dry run has met on the real path: refusals, what nobody could tell by its reason, what is done first.

    `made` names what is there by then: the tag of an image that is built.
    """

    refused: list[RlboxError] = field(default_factory=list)
    unchecked: dict[str, list[str]] = field(default_factory=dict)
    first: list[str] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    codes: list[int] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """That of the real run as far as it is known: the first refusal ends it."""
        return self.refused[0].exit_code if self.refused else max(self.codes, default=0)

    def refused_by(self, error: RlboxError) -> DryRun:
        if str(error) not in map(str, self.refused):
            self.refused.append(error)
        return self

    def as_json(self, would: str) -> dict[str, Any]:
        """Return it as JSON types; `would` is what the real run does."""
        return {
            "would": "" if self.refused else would,
            "exit_code": self.exit_code,
            "refused": [error.as_json() for error in self.refused],
            "not_checked": [{"what": what, "why": why} for why, what in self.unchecked.items()],
            "first": self.first,
        }

    def lines(self, would: str) -> list[str]:
        """Return it for people, as comments of a shell; the last line is the verdict."""
        found = [f"# first: {text}" for text in self.first]
        found += [f"# not checked: {', '.join(what)}: {why}" for why, what in self.unchecked.items()]
        found += [f"# {line}" for error in self.refused for line in f"refused: {error}".splitlines()]
        count = len(self.refused)
        no = f"this would be refused: 1 refusal, exit code {self.exit_code}"
        no = no if count == 1 else f"this would be refused: {count} refusals, exit code {self.exit_code}"
        yes = f"this would {would}" + ", as far as it is checked" * bool(self.unchecked)
        yes += f"; exit code {self.exit_code}" if self.exit_code else ""
        return [*found, f"# verdict: {no if self.refused else yes}"]


@dataclass(frozen=True, kw_only=True)
class App:
    """Options that every command shares, and the plans they start from; `dry` collects what a dry run meets."""

    project: Project
    as_json: bool = False
    dry_run: bool = False
    verbosity: int = 0
    dry: DryRun = field(default_factory=DryRun)

    @property
    def interactive(self) -> bool:
        return sys.stderr.isatty() and not self.as_json and self.verbosity >= 0

    @property
    def words(self) -> tuple[str, ...]:

        spoken = () if get_language() == "en" else ("--lang", get_language())
        return (*["--json"] * self.as_json, *spoken, *["-v"] * self.verbosity, *["-q"] * (self.verbosity < 0))

    def say(self, text: str) -> None:
        if self.verbosity >= 0:
            sys.stderr.write(remove_controls(translate(text)) + "\n")
            sys.stderr.flush()

    @contextmanager
    def collecting_refusals(self, *what: str) -> Iterator[None]:
        """Check `what` in the block. A refusal ends a real run; a dry run keeps it for the verdict, and goes on."""
        try:
            yield
        except RlboxError as error:
            if not self.dry_run:
                raise
            if isinstance(error, NotAnswered):
                self.not_checked(error.what + (f" ({error.where})" if error.where else ""), *what)
            elif str(error) not in map(str, self.dry.refused):  # several checks may meet the same
                self.dry.refused.append(error)

    def not_checked(self, reason: str, *what: str) -> None:
        known = self.dry.unchecked.setdefault(reason, [])
        known += [one for one in what if one not in known]

    def planned(self, data: Mapping[str, Any], text: str, would: str, *, code: int = 0) -> int:
        """Write the result of a dry run, its verdict last; `would` is what the real one does. Return its exit code.

        `code` is how a real run ends that nothing refuses.
        """
        self.dry.codes.append(code)
        if self.as_json:
            write_json({**data, "verdict": self.dry.as_json(would)})
            return self.dry.exit_code
        if text:
            self.show(f"{text}\n")
        self.show("\n".join(self.dry.lines(would)))
        return self.dry.exit_code

    def result(self, data: Mapping[str, Any], text: str) -> None:
        """Write the result to stdout: `data` as one JSON object with `--json`, else `text`."""
        if self.as_json:
            write_json(data)
        elif text:
            self.show(text)

    def show(self, text: str) -> None:
        sys.stdout.write(remove_controls(translate(text)) + "\n")
        sys.stdout.flush()


def write_json(data: Mapping[str, Any]) -> None:
    """Write one JSON object to stdout; characters that its encoding lacks are escaped as JSON does."""
    import json

    escaped = not sys.stdout.encoding.lower().startswith("utf")
    text = remove_controls(json.dumps({"schema": 1, **data}, indent=2, ensure_ascii=False))
    sys.stdout.write((json.dumps(parse_json(text), indent=2) if escaped else text) + "\n")
    sys.stdout.flush()


def own_requirements() -> tuple[str, ...]:
    from importlib.metadata import requires

    return tuple(sorted(line for line in requires("rlbox") or () if "extra ==" not in line))


def project_of(folder: str | None) -> Project:
    """Return the project of `--project`, `RLBOX_PROJECT`, or the working directory; `SpecError` when that is gone."""
    try:
        here = os.getcwd()
    except FileNotFoundError as error:  # which no command, and no program that one starts, can do without
        raise SpecError(
            _("the working directory has been removed"), next_step=_("cd to a folder that is there")
        ) from error
    return Project(folder=Path(os.path.realpath(folder or os.environ.get("RLBOX_PROJECT") or here)))
