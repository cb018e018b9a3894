"""`rlbox lint`: what no longer works, or never did, in scripts, notes, specs and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import shared

if TYPE_CHECKING:
    from rlbox.lint.text import Defect


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
    standard input; without FILES your own specs and jobs, or with --target those of one. A job is judged by the
    versions that its target pins. A comment `# rlbox: ignore=RULE` on the line switches a rule off. Exit 1 when there
    is an error among the findings.

    \b
    Examples:
      rlbox lint
      rlbox lint --target local --json
      rlbox lint --list
    """
    from rlbox.lint.drift import load_drift
    from rlbox.lint.rules import findings_data, findings_text, summary, table_text

    rules = load_drift()
    if as_list:
        app.result({"rules": [rule.model_dump(mode="json") for rule in rules]}, table_text(rules))
        return 0
    from rlbox.errors import SpecError
    from rlbox.lint.files import Owners, read_files
    from rlbox.lint.rules import lint_text

    owners = Owners(app.project, target)
    problems: list[str] = []
    found: list[Defect] = []
    read = 0
    for name, text in read_files(files or owners.files(), problems):
        read += 1
        found += lint_text(name, text, rules, *owners.facts(name))
    shown = [one for one in found if one.severity != "note" or app.verbosity > 0]
    unread = SpecError("\n  ".join(problems), next_step="give the scripts, specs or notes to check")
    if problems and not read:
        raise unread
    app.result({"files": read, "findings": findings_data(found), "unread": problems}, findings_text(shown))
    if read:
        app.say(summary(found, read, app.verbosity > 0))
    if problems and not app.as_json:
        raise unread
    if problems:  # the one JSON object is written
        return unread.exit_code
    return int(any(one.severity == "error" for one in found))
