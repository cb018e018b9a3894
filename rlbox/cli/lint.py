"""`rlbox lint` and `rlbox stack`: check scripts, specs and versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.completers import complete_target
from rlbox.cli.options import shared
from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.lint.rules import Finding


@click.command()
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True))
@click.option(
    "--target", metavar="NAME", shell_complete=complete_target, help="Judge by the versions this target pins."
)
@click.option("--list", "as_list", is_flag=True, help="Print the table of rules.")
@shared
def lint(app: App, files: tuple[str, ...], target: str | None, as_list: bool) -> int:
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
    from rlbox.lint.rules import findings_to_json, format_findings, format_rules, format_summary

    rules = load_drift()
    if as_list:
        app.result({"rules": [rule.model_dump(mode="json") for rule in rules]}, format_rules(rules))
        return 0
    from rlbox.errors import SpecError
    from rlbox.lint.files import TargetResolver, read_files
    from rlbox.lint.rules import lint_text

    owners = TargetResolver(app.project, target)
    problems: list[str] = []
    found: list[Finding] = []
    read = 0
    for name, text in read_files(files or owners.files(), problems):
        read += 1
        found += lint_text(name, text, rules, *owners.facts(name))
    shown = [one for one in found if one.severity != "note" or app.verbosity > 0]
    unread = SpecError("\n  ".join(problems), next_step=_("give the scripts, specs or notes to check"))
    if problems and not read:
        raise unread
    app.result({"files": read, "findings": findings_to_json(found), "unread": problems}, format_findings(shown))
    if read:
        app.say(format_summary(found, read, app.verbosity > 0))
    if problems and not app.as_json:
        raise unread
    if problems:  # the one JSON object is written
        return unread.exit_code
    return int(any(one.severity == "error" for one in found))


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--solve", is_flag=True, help="Leave the lock aside, and print a set of versions that fits the spec.")
@shared
def stack(app: App, name: str, solve: bool) -> int:
    """Judge the stack of TARGET by what is known to fit together: GPU, driver, CUDA, torch, engines, kernels.

    A stack that contradicts itself is explained by the fewest facts that do, with their sources and the nearest change.
    A version that nothing is known of is named: no verdict is given on it.

    \b
    Examples:
      rlbox stack vast-5090
      rlbox stack vast-5090 --solve
    """
    from rlbox.planner.stack_check import load_stack, plan_stack, solve_problem, stack_json, stack_text
    from rlbox.planner.stack_proof import is_unproven, proof_lines

    target, lock = load_stack(app, name, spec_alone=solve)
    problem = plan_stack(target, lock)
    verdict = solve_problem(problem)
    found = {"target": name, **stack_json(problem, verdict), "unproven": is_unproven(target, lock)}
    proof = [] if solve else proof_lines(target, lock)
    app.result(found, "\n".join([stack_text(name, problem, verdict, solve), *proof]))
    return 0 if verdict.fits else SpecError.exit_code
