"""Who reaches what a run listens on: a Ray head that takes commands of strangers is refused unless the user allows it.

Ports that a run publishes are on the loopback of the engine's machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Literal

from rlbox.app import App
from rlbox.engine.container import LOOPBACK, OWN_NETWORK, NetworkKind
from rlbox.errors import SpecError
from rlbox.fixes.conditions import check_package_requirement, map_packages_to_version_or_empty
from rlbox.i18n import _
from rlbox.image.plan import load_image_plan
from rlbox.job.plan import RunPlan
from rlbox.run.backend import RunOptions
from rlbox.secrets.env_file import parse_env_with_problems
from rlbox.secrets.lookup import ENV_FILE
from rlbox.system.safe_files import read_bytes
from rlbox.target.lock import load_lock
from rlbox.target.target import load_target

_FIX, _MODE = "ray-token", "RAY_AUTH_MODE"
_HAS_TOKENS = "ray>=2.52"
"""Source: Ray's documentation of token authentication; 2.43 was seen to take a job and a KV write of anybody."""
_PUBLISHING = (OWN_NETWORK, "bridge")
"""Networks that have ports of their own; on the host's they are on its loopback anyway."""
_NOTES = ("open: ", "not published: ")
"""How notes of this module begin, in the English of a run's record."""


def format_engine_has_no_bridge_note(subject: Literal["run", "shell"], network: str) -> str:
    text = (
        _(
            "open: this engine has no bridge, so the run is on the network {network}, where others reach what it "
            "listens on; start the engine without `--bridge none` to close it"
        )
        if subject == "run"
        else _(
            "open: this engine has no bridge, so the shell is on the network {network}, where others reach what it "
            "listens on; start the engine without `--bridge none` to close it"
        )
    )
    return text.format(network=network)


def drop_taken_published_ports_adding_notes(plan: RunPlan, taken_ports: Container[int]) -> RunPlan:
    """Return the plan without the ports that are taken on the engine's machine, and with a note for each."""
    notes = (
        _("not published: port {name}, for {address} is taken on the engine's machine").format(
            name=name, address=f"{LOOPBACK}:{port}"
        )
        for name, port in plan.published.items()
        if port in taken_ports
    )
    published = {name: port for name, port in plan.published.items() if port not in taken_ports}
    return dataclasses.replace(plan, published=published, notes=(*plan.notes, *notes))


def plan_and_print_exposure_or_refuse(
    app: App, plan: RunPlan, network_kind: NetworkKind, data_dir: Path, options: RunOptions
) -> RunPlan:
    """Return the plan of a run on `network_kind`, with notes of what strangers reach; all is recorded with the run.

    Raises `SpecError` where a Ray head has no token on a network that others reach, and nobody said that it may be so.
    """
    limits, notes = load_image_plan(app.project, plan.target).container, []
    allow_unauthenticated = options.allow_unauthenticated or plan.open or limits.allow_outside_access
    if limits.network == OWN_NETWORK and network_kind != OWN_NETWORK and plan.container:
        notes.append(format_engine_has_no_bridge_note("run", network_kind))
    with app.collecting_refusals_if_dry_run("open ports"):
        if network_kind != OWN_NETWORK and (why := _tokenless(app, plan, data_dir)):
            if not allow_unauthenticated:
                raise SpecError(
                    _(
                        "job {job} would be open: {why}, so anyone who can reach this machine's ports runs code in it"
                    ).format(job=plan.job, why=why),
                    next_step=_(
                        "rlbox run --allow-unauthenticated, on a network that only its nodes reach; "
                        "it is recorded with the run"
                    ),
                )
            text = _("open: {why}; anyone who can reach this machine's ports runs code in the run")
            notes.append(text.format(why=why))
    for note in notes:
        app.print_status(note)
    known = (note for note in plan.notes if not note.startswith(_NOTES))
    published: dict[str, int] = {}
    with app.collecting_refusals_if_dry_run("published ports"):
        published = _published(plan, options.publish)
    return dataclasses.replace(
        plan,
        network=network_kind,
        open=allow_unauthenticated,
        notes=(*known, *notes),
        published=published if network_kind in _PUBLISHING and plan.container else {},
    )


def _published(plan: RunPlan, wanted: Collection[str]) -> dict[str, int]:
    services = {service.name: service for stage in plan.stages for service in stage.services}.values()
    ports = {name: port for service in services for name, port in service.ports.items()}
    if unknown := sorted({*wanted} - {*ports}):
        step = _("choose one of: {known}").format(known=", ".join(sorted(ports))) if ports else _("omit --publish")
        raise SpecError(
            _("no service of job {job} has the port {unknown!r}").format(job=plan.job, unknown=unknown[0]),
            next_step=step,
        )
    names = {*wanted, *(name for service in services for name in service.publish)}
    return {name: port for name, port in ports.items() if name in names}


def _tokenless(app: App, plan: RunPlan, disk: Path) -> str:
    """Return why the Ray heads of a run ask nobody for a token; empty when they do, or when it has none of its own."""
    if plan.cluster or not any(stage.ray or stage.own_ray for stage in plan.stages):
        return ""
    target = load_target(app.project, plan.target).target
    if _FIX in target.fixes.off:
        return _("its target leaves out the fix {fix}").format(fix=_FIX)
    held, fact = check_package_requirement(
        _HAS_TOKENS,
        map_packages_to_version_or_empty(target, load_lock(app.project.own_or_shipped_lock_file(plan.target))),
    )
    return (
        _switched_off(plan, target.env, disk / ENV_FILE)
        if held
        else _("Ray's tokens came with 2.52, and {fact}").format(fact=fact)
    )


def _switched_off(plan: RunPlan, baked: Mapping[str, str], env_file: Path) -> str:
    tables: dict[str, Mapping[str, str]] = {_("its target"): baked, _("the job"): plan.env}
    try:
        tables[str(env_file)] = parse_env_with_problems(read_bytes(env_file)).values
    except FileNotFoundError:
        pass
    except OSError as error:  # a link, which leads elsewhere in a container
        return _("{env_file} cannot be read ({strerror}), and may switch Ray's token off").format(
            env_file=env_file, strerror=error.strerror
        )
    for stage in plan.stages:
        tables[_("stage {stage}").format(stage=stage.name)] = stage.env
        tables |= {_("service {service}").format(service=one.name): one.env for one in stage.services}
    for where, table in tables.items():
        if (mode := table.get(_MODE, "")) not in ("", "token"):
            return _("{mode}={mode2} of {where} switches Ray's token off").format(mode=_MODE, mode2=mode, where=where)
    return ""
