"""What `rlbox doctor` does: examine, repair if asked, examine again, tell."""

from __future__ import annotations

import os

from rlbox.app import App
from rlbox.doctor.act.inside import BUDGET_S, examine_inside
from rlbox.doctor.report import Report, report_text, summary_line
from rlbox.errors import WorkFailed
from rlbox.machine.act.identity import in_image


def examine(app: App, name: str | None, *, fix: bool, data: str | None, gpus: str, budget_s: float) -> int:
    """Examine where this runs, print what was found, and return rlbox's exit code."""
    report = _examine(app, name, data, gpus, budget_s or BUDGET_S)
    done: list[str] = []
    if fix and any(finding.fixable for finding in report.findings):
        from rlbox.doctor.act.repair import repair

        done = [f"{finding.id}: {text}" for finding, text in repair(report.findings)]
        for text in done:
            app.say(f"fix: {text}")
        report = _examine(app, name, data, gpus, budget_s or BUDGET_S)
    app.result({**report.as_json(), **({"fixed": done} if fix else {})}, report_text(report, verbose=app.verbosity > 0))
    app.say(summary_line(report))
    return WorkFailed.exit_code if report.failed else 0


def _examine(app: App, name: str | None, data: str | None, gpus: str, budget_s: float) -> Report:
    if in_image():
        return examine_inside(dict(os.environ), budget_s)
    from rlbox.host.host import examine_host

    return examine_host(app, name, data, gpus, budget_s)
