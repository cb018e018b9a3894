"""What `rlbox doctor` does: examine where it runs, or a host with a container of its image; repair if asked.

Repairs are links, folders, modes: no process is ended, nothing that holds data removed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rlbox.amounts import counted
from rlbox.app import App
from rlbox.artifacts.profile import load_profile
from rlbox.doctor.checks import CheckContext, select_families
from rlbox.doctor.container import BUDGET_S, ProbeThreads, examine_container
from rlbox.doctor.disks import RunDirectory, is_responsive
from rlbox.doctor.engine import check_image_state
from rlbox.doctor.gpu_choice import (
    choose_container_gpus,
    make_visible_gpus_env,
    read_driver_requirements,
    resolve_gpus_option,
)
from rlbox.doctor.gpus import DriverRequirements
from rlbox.doctor.network import Endpoint
from rlbox.doctor.report import Report, format_report, format_summary, merge_reports, parse_report, resolve_findings
from rlbox.doctor.requirements import Requirements, override_gpus, parse_requirements
from rlbox.doctor.stack import check_image_files, find_local_stack
from rlbox.engine.address import is_engine_local
from rlbox.engine.connection import connect_engine, find_image
from rlbox.engine.container import OWNER_LABEL, TARGET_LABEL, plan_container
from rlbox.engine.data_disk import choose_data_dir, would_create_data_disk
from rlbox.engine.gpu_access import NO_GPUS, GpuAccess, parse_gpus_option
from rlbox.errors import EngineError, NodeError, RlboxError, TimedOut, WorkFailed
from rlbox.findings import Finding
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.image.context import find_outdated_reason
from rlbox.image.machine import target_requirements_json
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.job.load import load_target_ports
from rlbox.system.identity import format_user_ids, is_in_image
from rlbox.system.network_settings import find_ca_bundle
from rlbox.target.target import load_target

_STARTING_S = 2.0  # what it takes to start and remove the container
_GRACE_S = 0.6
_REMOVAL_S = 5.0  # what an engine gets to remove the container once nobody waits for its answer


@dataclass
class _Inside:
    """What doctor said in a container of the image, and whether one was asked for at all."""

    begun: bool = False
    reports: list[Report] = field(default_factory=list)


def examine_host(app: App, target: str | None, data_dir: str | None, gpus_option: str, budget_s: float) -> Report:
    """Return what is wrong with this host for a target (none: with what every target needs).

    Parameters
    ----------
    gpus_option
        What `--gpus` says, empty for the target's own number.
    """
    began = time.monotonic()
    image = load_image_plan(app.project, target) if target else None
    wish = parse_gpus_option(resolve_gpus_option(gpus_option), image.container.gpus if image else 0)
    folder = _folder(image, data_dir)
    context = _make_context(
        app, image, override_gpus(_demands(app, image), wish.text), folder, began + budget_s + _GRACE_S
    )
    inside = _Inside()
    probes = ProbeThreads(context.deadline_s)
    try:
        if image:
            probes.start({"image": lambda: _examine_image(app, image, _usable(folder), gpus_option, budget_s, inside)})
        families = select_families("host", context)
        probes.start({family.name: partial(family.probe_and_check, context) for family in families})
        probes.wait()
    finally:
        if image and inside.begun and probes.is_running("image"):
            _end_container(image, partial(probes.is_running, "image"))
    findings, follows = resolve_findings(row for found in probes.findings.values() for row in found)
    checks = sum(family.count_checks(context) for family in families) + (len(check_image_state) if image else 0)
    host = Report(findings=findings, follows=follows, checks=checks, unfinished=tuple(probes.unfinished))
    return merge_reports([host, *inside.reports], time.monotonic() - began)


def _demands(app: App, image: ImagePlan | None) -> Requirements:
    if image is None:
        return Requirements()
    target = load_target(app.project, image.target).target
    ports = load_target_ports(app.project, target.name)
    return parse_requirements(
        {"target": target.name, "facts": target_requirements_json(target, image.container, ports)}, {}
    )


def _folder(image: ImagePlan | None, data: str | None) -> Path | None:
    named = data or os.environ.get("RLBOX_DATA") or (image.container.host if image else "")
    if named and not is_responsive(text := os.path.abspath(os.path.expanduser(named))):
        return Path(text)
    if data is not None or os.environ.get("RLBOX_DATA"):
        return choose_data_dir("", data)
    try:
        return choose_data_dir(image.container.host, None) if image else None
    except RlboxError:  # none is named, which is a finding
        return None


def _usable(folder: Path | None) -> Path | None:
    """Return the folder, None where it does not answer: whoever asks such a one waits for ever."""
    return folder if folder and is_responsive(str(folder)) else None


def _make_context(
    app: App, image: ImagePlan | None, requirements: Requirements, folder: Path | None, end: float
) -> CheckContext:
    usable = _usable(folder)
    made_by_a_run = image is not None and usable is not None and would_create_data_disk(usable, image.container)
    disk = [RunDirectory("data", str(folder))] if folder else []
    shares_network = image is not None and image.container.network == "host"
    return CheckContext(
        environ=dict(os.environ),
        requirements=requirements,
        deadline_s=end,
        env_file_dirs=tuple(map(str, (app.project.folder, os.getcwd(), *((usable,) if usable else ())))),
        directories=disk if (image or folder) and not made_by_a_run else None,
        get_driver_requirements=lambda: read_driver_requirements(app, image, {}) if image else DriverRequirements(),
        get_required_ports=lambda: requirements.ports if shares_network and is_engine_local() else {},
        list_mirrors=lambda: _mirrors(app, image) if image else (),
    )


def _mirrors(app: App, image: ImagePlan) -> list[Endpoint]:
    rules = [rule for rule in load_profile(app.project, image.sources_profile).rule if rule.url.startswith("http")]
    kinds = [rule.kind for rule in rules]
    return [
        Endpoint(name=rule.title, url=f"{rule.base_url}/", is_optional=kinds.count(rule.kind) > 1) for rule in rules
    ]


def _examine_image(
    app: App, image: ImagePlan, folder: Path | None, gpus: str, budget_s: float, inside: _Inside
) -> Iterable[Finding]:
    """Add what doctor says in a container of the image to `inside`, and return what is to say of the image itself."""
    try:
        found = find_image(image.tag)
    except RlboxError:  # the engine has a finding of its own
        return ()
    if found is None:
        return check_image_state("missing", image.target)
    if folder is not None and folder.is_dir():
        bytecode = f"cache/bytecode/{image.target}/{str(found['Id']).rpartition(':')[2][:16]}"  # as of runs
        access = _access(app, image, gpus)
        inside.begun = True
        report = _in_container(image, folder, f"{image.container.mount}/{bytecode}", access, budget_s - _STARTING_S)
        if isinstance(report, Report):
            inside.reports.append(report)
        else:
            return report
    return check_image_state("outdated" if find_outdated_reason(image, found) else "current", image.target)


def _end_container(image: ImagePlan, examined: Callable[[], bool]) -> None:
    """Remove the container of a probe that nobody waits for: its thread ends with this process, before it would."""

    def remove() -> None:
        with contextlib.suppress(RlboxError):
            while examined():  # one that is asked for at this moment is there at the next look
                connect_engine().remove_container(_container_name(image))
                time.sleep(0.1)

    thread = threading.Thread(target=remove, daemon=True)  # an engine that hangs must not keep rlbox from ending
    thread.start()
    thread.join(_REMOVAL_S)


def _access(app: App, image: ImagePlan, gpus: str) -> GpuAccess:
    """Return the GPUs of the container that is examined; none where the engine offers none, which is a finding."""
    try:
        return choose_container_gpus(app, image, gpus)
    except (EngineError, NodeError):
        return NO_GPUS


def _in_container(
    image: ImagePlan, folder: Path, bytecode: str, gpus: GpuAccess, budget_s: float
) -> Report | list[Finding]:
    plan = plan_container(
        image.tag,
        connect_engine().replace_unavailable_network(image.container),
        name=_container_name(image),
        argv=("/opt/rlbox/bin/python", "-m", "rlbox.doctor", "container", f"{budget_s:.1f}"),
        env={"PYTHONPYCACHEPREFIX": bytecode},
        labels={TARGET_LABEL: image.target, OWNER_LABEL: str(os.getuid())},
        data_dir=str(folder),
        caller_uid_gid=format_user_ids(),
        ca_bundle=find_ca_bundle() if is_engine_local() else "",
        gpus=gpus,
    )
    try:
        outcome = connect_engine().run_container(plan, timeout_s=budget_s + _STARTING_S + 5)
    except TimedOut:
        return [Finding(id="image-slow", title=_("the container did not answer"), level="warning", where=plan.name)]
    except EngineError as error:
        return [_refused(image.tag, error.what)]
    try:
        return parse_report(parse_json(outcome.stdout))
    except (ValueError, KeyError, TypeError):
        if "No module named rlbox.doctor" in outcome.stderr:
            return list(check_image_files(["`rlbox doctor`"]))
        last = (outcome.stderr.strip().splitlines() or [_("no output")])[-1]
        return [_refused(image.tag, last)]


def _container_name(image: ImagePlan) -> str:
    return f"rlbox-doctor-{image.target}-{os.getpid()}"


def _refused(tag: str, words: str) -> Finding:
    return Finding(
        id="container-refused",
        title=_("the engine does not start a container of the image"),
        seen=words[:500],
        where=tag,
        remedy=_("docker's own words say what it misses; limits are in the target's [run]"),
    )


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
    return WorkFailed.exit_code if report.has_errors else 0


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
    return examine_host(app, name, data, gpus, budget_s)


class Repair(NamedTuple):
    """A finding that can be repaired, and what was done, or why it was not."""

    finding: Finding
    outcome: str


def repair_findings(findings: Iterable[Finding]) -> Iterator[Repair]:
    """Carry out what can safely be done."""
    for finding in findings:
        if finding.repair:
            try:
                yield Repair(finding, _carry_out(finding.repair))
            except OSError as error:
                yield Repair(
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
