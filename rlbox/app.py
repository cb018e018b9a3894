"""The one object that lives as long as a command: where specs are, how to speak, what was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.config.packs import find_installed_packs
from rlbox.config.project import Project
from rlbox.errors import EngineUnavailable, RlboxError, SpecError
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _, get_language, join, ngettext, translate
from rlbox.terminal import sanitize_for_terminal


@dataclass(frozen=True, kw_only=True)
class DryRunOutcome:
    """What a dry run has met on the real path: refusals, what nobody could tell by its reason, what is done first.

    `built_tags` names what is there by then: the tag of an image that is built.
    """

    refusals: list[RlboxError] = field(default_factory=list)
    unchecked_by_reason: dict[str, list[str]] = field(default_factory=dict)
    steps_before: list[str] = field(default_factory=list)
    built_tags: set[str] = field(default_factory=set)
    exit_codes_unless_refused: list[int] = field(default_factory=list)

    @property
    def expected_exit_code(self) -> int:
        """That of the real run as far as it is known: the first refusal ends it."""
        return self.refusals[0].exit_code if self.refusals else max(self.exit_codes_unless_refused, default=0)

    def add_refusal_if_new(self, error: RlboxError) -> None:
        if str(error) not in map(str, self.refusals):  # several checks may meet the same
            self.refusals.append(error)

    def verdict_to_json(self, would_do: str) -> dict[str, Any]:
        """Return it as JSON types; `would_do` is what the real run does."""
        return {
            "would": "" if self.refusals else would_do,
            "exit_code": self.expected_exit_code,
            "refused": [error.as_json() for error in self.refusals],
            "not_checked": [{"what": what, "why": why} for why, what in self.unchecked_by_reason.items()],
            "first": self.steps_before,
        }

    def format_comments(self, would_do: str) -> list[str]:
        """Return it for people, as comments of a shell; the last line is the verdict."""
        code, count = self.expected_exit_code, len(self.refusals)
        found = [_("# first: {step}").format(step=text) for text in self.steps_before]
        found += [
            _("# not checked: {subjects}: {reason}").format(subjects=join(", ", map(_, what)), reason=why)
            for why, what in self.unchecked_by_reason.items()
        ]
        refusals = [translate(_("refused: {error}").format(error=error)) for error in self.refusals]
        found += [f"# {line}" for text in refusals for line in text.splitlines()]
        verdict = _("this would {action}").format(action=would_do)
        verdict += _(", as far as it is checked") if self.unchecked_by_reason else ""
        verdict += _("; exit code {code}").format(code=code) if code else ""
        if self.refusals:
            verdict = ngettext(
                "this would be refused: {count} refusal, exit code {code}",
                "this would be refused: {count} refusals, exit code {code}",
                count,
            ).format(count=count, code=code)
        return [*found, _("# verdict: {verdict}").format(verdict=verdict)]


@dataclass(frozen=True, kw_only=True)
class App:
    """Options that every command shares, and the plans they start from; `dry` collects what a dry run meets."""

    project: Project
    as_json: bool = False
    dry_run: bool = False
    verbosity: int = 0
    dry: DryRunOutcome = field(default_factory=DryRunOutcome)

    @property
    def can_show_progress(self) -> bool:
        return sys.stderr.isatty() and not self.as_json and self.verbosity >= 0

    @property
    def json_language_verbosity_options(self) -> tuple[str, ...]:

        spoken = () if get_language() == "en" else ("--lang", get_language())
        return (*["--json"] * self.as_json, *spoken, *["-v"] * self.verbosity, *["-q"] * (self.verbosity < 0))

    def print_status(self, text: str) -> None:
        if self.verbosity >= 0:
            sys.stderr.write(sanitize_for_terminal(translate(text)) + "\n")
            sys.stderr.flush()

    def print_next(self, command_or_advice: str) -> None:
        self.print_status(_("next: {command}").format(command=command_or_advice))

    @contextmanager
    def collecting_refusals_if_dry_run(self, *subjects_unchecked_without_engine: str) -> Iterator[None]:
        """Check the subjects in the block. A refusal ends a real run; a dry run keeps it for the verdict."""
        try:
            yield
        except RlboxError as error:
            if not self.dry_run:
                raise
            if isinstance(error, EngineUnavailable):
                self.add_dry_run_unchecked(
                    error.what + (f" ({error.where})" if error.where else ""), *subjects_unchecked_without_engine
                )
            else:
                self.dry.add_refusal_if_new(error)

    def add_dry_run_unchecked(self, reason: str, *subjects: str) -> None:
        known = self.dry.unchecked_by_reason.setdefault(reason, [])
        known += [one for one in subjects if one not in known]

    def print_dry_run(self, data: Mapping[str, Any], text: str, would_do: str, *, exit_code_if_run: int = 0) -> int:
        """Write the result of a dry run, its verdict last; `would_do` is what the real one does. Return its exit code.

        `exit_code_if_run` is how a real run ends that nothing refuses.
        """
        self.dry.exit_codes_unless_refused.append(exit_code_if_run)
        if self.as_json:
            print_json_with_schema_version({**data, "verdict": self.dry.verdict_to_json(would_do)})
            return self.dry.expected_exit_code
        if text:
            self.print_stdout(text + "\n")
        self.print_stdout(join("\n", self.dry.format_comments(would_do)))
        return self.dry.expected_exit_code

    def output(self, data: Mapping[str, Any], text: str) -> None:
        """Write the result to stdout: `data` as one JSON object with `--json`, else `text`."""
        if self.as_json:
            print_json_with_schema_version(data)
        elif text:
            self.print_stdout(text)

    def print_stdout(self, text: str) -> None:
        sys.stdout.write(sanitize_for_terminal(translate(text)) + "\n")
        sys.stdout.flush()


def print_json_with_schema_version(data: Mapping[str, Any]) -> None:
    """Write one JSON object to stdout; characters that its encoding lacks are escaped as JSON does."""
    import json

    escaped = not sys.stdout.encoding.lower().startswith("utf")
    text = sanitize_for_terminal(json.dumps({"schema": 1, **data}, indent=2, ensure_ascii=False))
    sys.stdout.write((json.dumps(parse_untrusted_json(text), indent=2) if escaped else text) + "\n")
    sys.stdout.flush()


def list_rlbox_base_requirements() -> tuple[str, ...]:
    from importlib.metadata import requires

    return tuple(sorted(line for line in requires("rlbox") or () if "extra ==" not in line))


def make_project_at_option_env_or_cwd(project_option: str | None) -> Project:
    """Return the project of `--project`, `RLBOX_PROJECT`, or the working directory, with the installed packs.

    Raises SpecError: The working directory is gone, or a pack is broken.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError as error:  # which no command, and no program that one starts, can do without
        raise SpecError(
            _("the working directory has been removed"), next_step=_("cd to a folder that is there")
        ) from error
    folder = Path(os.path.realpath(project_option or os.environ.get("RLBOX_PROJECT") or here))
    packs = find_installed_packs()
    return Project(folder=folder, packs=tuple(pack for pack in packs if pack.folder != folder))
