"""What `rlbox doctor` does: examine, repair if asked, examine again, tell.

Repairs are links, folders, modes: no process is ended, nothing that holds data removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from rlbox.amounts import counted
from rlbox.app import App
from rlbox.doctor.container import BUDGET_S, examine_container
from rlbox.doctor.gpu_choice import make_visible_gpus_env
from rlbox.doctor.report import Report, format_report, format_summary
from rlbox.doctor.stack_location import find_local_stack
from rlbox.errors import NodeError, WorkFailed
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.identity import is_in_image


def run_doctor(
    app: App, target: str | None, *, fix: bool, data_dir: str | None, gpus_option: str, budget_s: float
) -> int:
    """Examine where this runs, print what was found, and return rlbox's exit code."""
    report = _examine(app, target, data_dir, gpus_option, budget_s or BUDGET_S)
    if app.dry_run:
        return _plan(app, report)
    done: list[str] = []
    if fix and any(finding.fixable for finding in report.findings):
        done = [f"{finding.id}: {text}" for finding, text in repair_findings(report.findings)]
        for text in done:
            app.say(_("fix: {text}").format(text=text))
        report = _examine(app, target, data_dir, gpus_option, budget_s or BUDGET_S)
    app.result(
        {**report.as_json(), **({"fixed": done} if fix else {})}, format_report(report, verbose=app.verbosity > 0)
    )
    app.say(format_summary(report))
    return WorkFailed.exit_code if report.failed else 0


def _plan(app: App, report: Report) -> int:
    """Say what would be repaired, and whether errors are left then."""
    rows = [f"{finding.id}: {' '.join(finding.repair)}" for finding in report.findings if finding.repair]
    left = [finding for finding in report.findings if finding.level == "error" and not finding.repair]
    repairs = counted(len(rows), "repair", "repairs")
    would = _("make {repairs}").format(repairs=repairs) if rows else _("repair nothing")
    code = WorkFailed.exit_code if left else 0
    if left:
        errors = counted(len(left), "error", "errors")
        would = (
            _("make {repairs}, and leave {errors}").format(repairs=repairs, errors=errors)
            if rows
            else _("repair nothing, and leave {errors}").format(errors=errors)
        )
    return app.planned({**report.as_json(), "repairs": rows}, "\n".join(rows), would, code=code)


def _examine(app: App, name: str | None, data: str | None, gpus: str, budget_s: float) -> Report:
    if (here := find_local_stack()) or is_in_image():
        if name and here and here.requirements.target != name:
            raise NodeError(
                _("the stack here is that of target {target!r}").format(target=here.requirements.target),
                where=here.python,
                next_step=_("rlbox doctor, or rlbox doctor {name} outside of this container").format(name=name),
            )
        return examine_container({**os.environ, **(make_visible_gpus_env(app, gpus) if gpus else {})}, budget_s)
    from rlbox.doctor.host import examine_host

    return examine_host(app, name, data, gpus, budget_s)


def repair_findings(findings: Iterable[Finding]) -> Iterator[tuple[Finding, str]]:
    """Carry out what can safely be done and yield each finding with what was done, or why it was not."""
    for finding in findings:
        if finding.repair:
            try:
                yield finding, _carry_out(finding.repair)
            except OSError as error:
                yield (
                    finding,
                    _("not repaired: {filename}: {strerror}").format(filename=error.filename, strerror=error.strerror),
                )


def _carry_out(words: tuple[str, ...]) -> str:
    match words:
        case ("link", path, to):
            return _link(path, to)
        case ("folder", path):
            os.makedirs(path, exist_ok=True)
            return _("made the folder {path}").format(path=path)
        case ("mode", path, mode):
            os.chmod(path, int(mode, 8))
            return _("gave {path} the mode {mode}").format(path=path, mode=mode)
        case ("empty-lock", path):
            os.truncate(path, 0)
            return _("emptied {path}, whose rlbox has ended").format(path=path)
        case _:
            return _("not repaired: this rlbox knows no repair {words}").format(words=" ".join(words))


def _link(path: str, to: str) -> str:
    """Make a link; one that leads nowhere is replaced, anything else that stands there is left."""
    if os.path.lexists(path):
        if not stat.S_ISLNK(os.lstat(path).st_mode) or os.path.exists(path):
            return _("not repaired: {path} is there already").format(path=path)
        os.unlink(path)
    os.symlink(to, path)
    return _("made the link {path} -> {to}").format(path=path, to=to)
