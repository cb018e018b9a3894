"""`rlbox lock`, `fetch`, `egress` and `mirrors`: pin what a target needs, and where it comes from."""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from rlbox.amounts import align_translated, decimal_size_text
from rlbox.app import App
from rlbox.artifacts.egress import (
    PHASES,
    HostContact,
    list_possible_host_contacts,
    map_phases_to_hosts_not_closed_by_env,
    probe_redirect_and_listed_hosts_by_url,
)
from rlbox.artifacts.hub_files import (
    HubOwner,
    create_no_hub_entry_error,
    is_job_and_no_target,
    list_hub_files_or_readme_if_unlocked,
    load_hub_owner,
)
from rlbox.artifacts.hub_lock import HubResolver, find_hub_token, lock_hub_entries
from rlbox.artifacts.locator import (
    format_probes,
    list_unavailable_source_kinds,
    probe_file_mirrors,
    probe_machine_source_settings,
)
from rlbox.artifacts.profile import Profile, load_implicitly_contacted_hosts, load_profile
from rlbox.artifacts.python_lock import UpgradeRequest
from rlbox.artifacts.relock import (
    map_groups_to_file_sizes,
    require_identical_lock_text,
    require_known_packages,
    resolve_or_keep_lock_unwritten,
    write_and_report_lock,
)
from rlbox.cli.options import (
    complete_target,
    dry_run_option,
    pass_app_with_shared_options,
    place_option,
    sources_option,
    target_or_job_argument,
)
from rlbox.config.hub import HubLock
from rlbox.config.project import Project
from rlbox.config.schema import did_you_mean_hint
from rlbox.errors import SpecError, WorkFailed
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.i18n import _, join, translate
from rlbox.image.fetch import FetchOptions, fetch_export_or_import_files
from rlbox.image.plan import load_image_plan
from rlbox.job.job import load_job
from rlbox.planner.stack_check import require_consistent_stack_or_forced_conflict, require_no_conflict_unless_forced
from rlbox.run.backend import SingleMachinePlace
from rlbox.system.files import write_atomic
from rlbox.system.network_settings import read_pip_and_proxy_settings
from rlbox.target.artifact import Artifact, list_artifacts_without_compile_inputs
from rlbox.target.lock import Lock, choose_lock_or_compile_command, load_lock
from rlbox.target.target import Target, load_target

_DIRECTORY = click.Path(path_type=Path)


@click.command("lock")
@target_or_job_argument
@click.argument("packages", metavar="[NAME]...", nargs=-1)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a diff when the lock would change.")
@click.option("--offline", is_flag=True, help="With --check: compare with the spec only, without asking an index.")
@click.option(
    "--upgrade",
    is_flag=True,
    help="Move the packages and [[hub]] entries NAME to their newest versions, all when none is named.",
)
@sources_option
@dry_run_option
@pass_app_with_shared_options
def write_or_check_lock(
    app: App, name: str, packages: tuple[str, ...], check: bool, offline: bool, upgrade: bool, sources_profile: str
) -> int:
    """Pin everything that the image of TARGET is made of, with sha256, in its lock.json.

    Models and data sets, the [[hub]] entries of a target or a JOB, are pinned with the commit and the sha256 of each
    file, in hub.lock.json next to the target or JOB.lock.json next to the job.

    Versions in the existing lock are kept unless the spec or --upgrade moves them; a lock that fits its spec is left
    alone.

    \b
    Examples:
      rlbox lock local
      rlbox lock local --check
      rlbox lock local --upgrade transformers
    """
    if (packages and not upgrade) or (check and upgrade) or (offline and not check):
        raise click.UsageError(
            _("NAME requires --upgrade, --offline requires --check; --check and --upgrade cannot be combined")
        )
    is_job = is_job_and_no_target(app.project, name)
    owner = load_hub_owner(app.project, "job" if is_job else "target", name)
    if check:
        _require_current_hub_lock(app, owner, offline, sources_profile)
        if not is_job:
            return _check(app, name, offline, sources_profile)
        app.output({"job": name, "lock": "current"}, _("{name}  lock is current").format(name=name))
        return 0
    moved = UpgradeRequest(all_packages=upgrade and not packages, packages=frozenset(packages))
    if is_job:
        return _lock_job(app, owner, moved, sources_profile)
    if owner.entries:
        _lock_hub(app, owner, moved, sources_profile)
    hub_names = {entry.name for entry in owner.entries}
    moved = dataclasses.replace(moved, packages=moved.packages - hub_names)
    before, lock = _relock(app, name, moved, sources_profile)
    require_known_packages([package for package in packages if package not in hub_names], before, lock)
    return _report_lock(app, lock, changed=write_and_report_lock(app, before, lock))


def _create_hub_resolver(app: App, owner: HubOwner, sources_profile: str) -> HubResolver:
    profile = load_profile(app.project, sources_profile or owner.sources_profile)
    return HubResolver(owner=owner.name, profile=profile, token=find_hub_token(app.project))


def _require_current_hub_lock(app: App, owner: HubOwner, offline: bool, sources_profile: str) -> None:
    repos = owner.require_locked_repos()
    if repos and not offline:
        resolver = _create_hub_resolver(app, owner, sources_profile)
        for entry, repo in zip(owner.entries, repos, strict=True):
            resolver.require_unchanged(entry, repo)


def _lock_hub(app: App, owner: HubOwner, moved: UpgradeRequest, sources_profile: str) -> HubLock:
    previous = owner.load_lock_or_empty()
    resolver = _create_hub_resolver(app, owner, sources_profile)
    lock = lock_hub_entries(owner.entries, previous, moved.allows, resolver)
    for repo in lock.repos:
        count, size = len(repo.files), decimal_size_text(repo.size)
        line = _("hub.{name}: {repo} {commit}, {count} files, {size}")
        app.print_status(line.format(name=repo.name, repo=repo.repo, commit=repo.commit[:12], count=count, size=size))
    if lock != previous and not app.dry_run:
        write_atomic(app.project.own_hub_lock_file_to_write(owner.kind, owner.name), lock.to_json_text())
    return lock


def _lock_job(app: App, owner: HubOwner, moved: UpgradeRequest, sources_profile: str) -> int:
    names = sorted(entry.name for entry in owner.entries)
    if not names:
        raise create_no_hub_entry_error(app.project, owner.name)
    if unknown := sorted(moved.packages - {*names}):
        what = _("job {job} has no [[hub]] entry {name!r}{near}")
        what = what.format(job=owner.name, name=unknown[0], near=did_you_mean_hint(unknown[0], names))
        raise SpecError(what, next_step=f"rlbox show {owner.name}")
    lock = _lock_hub(app, owner, moved, sources_profile)
    data = {"job": owner.name, "hub": {repo.name: repo.commit for repo in lock.repos}}
    path = app.project.own_hub_lock_file_to_write("job", owner.name)
    if app.dry_run:
        return app.print_dry_run(data, "", _("write {path}").format(path=path))
    app.output(data, str(path))
    app.print_next(f"rlbox fetch {owner.name}")
    return 0


def _check(app: App, name: str, offline: bool, sources_profile: str) -> int:
    require_consistent_stack_or_forced_conflict(app, name)
    plan = load_image_plan(app.project, name)
    if plan.lock_fault:
        raise WorkFailed(
            _("the lock of target {name} is {lock}").format(name=name, lock=plan.lock_fault),
            next_step=choose_lock_or_compile_command(name, plan.lock_fault),
        )
    if not offline:
        require_identical_lock_text(name, *_relock(app, name, UpgradeRequest(), sources_profile, again=True))
    app.output({"target": name, "lock": "current"}, _("{name}  lock is current").format(name=name))
    return 0


def _relock(
    app: App, name: str, moved: UpgradeRequest, sources_profile: str, *, again: bool = False
) -> tuple[Lock | None, Lock]:
    loaded = load_target_with_fix_apt_packages(app.project, name)
    require_no_conflict_unless_forced(app, loaded.target, None)
    before, lock = resolve_or_keep_lock_unwritten(
        app,
        loaded.target,
        moved,
        sources_profile,
        lock_fallback_targets=loaded.included_target_names,
        resolve_even_if_unchanged=again,
    )
    require_no_conflict_unless_forced(app, loaded.target, lock)
    return before, lock


def _report_lock(app: App, lock: Lock, *, changed: bool) -> int:
    groups = map_groups_to_file_sizes(lock)
    counts = {name: len(sizes) for name, sizes in groups.items() if sizes or name in ("os", "runtime")}
    sizes = {name: sum(sizes) for name, sizes in groups.items()}
    lines = [
        _("{group} {count} packages {size}").format(
            group=group.ljust(12), count=f"{count:>4}", size=f"{decimal_size_text(sizes[group]):>9}"
        )
        for group, count in counts.items()
    ]
    data = {"target": lock.target, "groups": counts, "bytes": sizes, "changed": changed}
    path = app.project.own_lock_file_to_write(lock.target)
    if app.dry_run:
        keep = _("leave {name} as it is").format(name=path.name)
        would = _("write {path}").format(path=path) if changed else keep
        return app.print_dry_run(data, join("\n", lines), would)
    app.output(data, join("\n", [*lines, join(" ", (path.name, _("written") if changed else _("unchanged")))]))
    app.print_next(f"rlbox {'compile' if lock.list_uncompiled_names() else 'build'} {lock.target}")
    return 0


@click.command("fetch")
@target_or_job_argument
@click.option("--export", "export_dir", metavar="DIR", type=_DIRECTORY, help="Then put the files into DIR.")
@click.option(
    "--import", "import_dir", metavar="DIR", type=_DIRECTORY, help="Take the files from an export; no other network."
)
@click.option("--jobs", type=click.IntRange(1, 64), default=8, show_default=True, help="Files to fetch in parallel.")
@click.option("--store", "store_dir", metavar="DIR", help="The store's folder [RLBOX_STORE].")
@place_option
@sources_option
@dry_run_option
@pass_app_with_shared_options
def fetch_export_or_import_locked_files(app: App, name: str, place: SingleMachinePlace, **given: Any) -> int:
    """Fetch every file in the lock of TARGET and verify it; files already in the store are not fetched again.

    The models and data sets of a target or a JOB are fetched from HF_ENDPOINT, the mirrors of the sources profile, the
    hub or ModelScope, the first that has the locked bytes. Runs get them as a folder without network.

    With --place here, it fetches only the files that `rlbox apply` uses, without operating system and base image.

    \b
    Examples:
      rlbox fetch local
      rlbox fetch local --export ./inputs
    """
    options = FetchOptions(**given, inplace_only=place == "here")
    if options.export_dir and options.import_dir:
        raise click.UsageError(_("--export and --import exclude each other."))
    return fetch_export_or_import_files(app, name, options)


@click.command("egress")
@target_or_job_argument
@sources_option
@pass_app_with_shared_options
def print_hosts_of_lock_fetch_build_and_run(app: App, name: str, sources_profile: str) -> None:
    """List every host that locking, fetching, building and running TARGET contacts, with why and what changes it.

    For a JOB these are the hosts of its target and of the models and data sets that it names, the [[hub]] entries.

    The list includes hosts that software contacts without being asked (usage statistics, kernels,
    vocabularies). The hosts behind the clients' own defaults are looked up now. Hosts that cannot be looked up
    are marked.

    \b
    Examples:
      rlbox egress local
    """
    project, owner = app.project, None
    if is_job_and_no_target(project, name):
        owner = load_hub_owner(project, "job", name)
    target_name = load_job(project, name).target if owner else name
    target, files = load_target_with_fix_env_and_lock_artifacts(project, target_name)
    for one in (load_hub_owner(project, "target", target_name), owner):
        files += list_hub_files_or_readme_if_unlocked(one) if one else ()
    profile = load_profile(project, sources_profile or target.sources)
    machine = probe_machine_source_settings(read_pip_and_proxy_settings())
    machine = dataclasses.replace(machine, hub_endpoint=os.environ.get("HF_ENDPOINT", ""))
    redirects = probe_redirect_and_listed_hosts_by_url(target, files, profile, machine)
    hidden = load_implicitly_contacted_hosts()
    contacts = list_possible_host_contacts(target, files, profile, hidden, machine, redirects)
    data = {
        **({"job": name} if owner else {}),
        "target": target_name,
        "sources": profile.name,
        "hosts": map_phases_to_hosts_not_closed_by_env(contacts),
        "contacts": [{**asdict(contact), "phases": list(contact.phases)} for contact in contacts],
    }
    app.output(data, _format_contacts(contacts))


def load_target_with_fix_env_and_lock_artifacts(
    project: Project, target_name: str
) -> tuple[Target, tuple[Artifact, ...]]:
    """Return a target with the environment that its fixes bake below its own, and the files of its lock."""
    fixed = load_target_with_fix_apt_packages(project, target_name)
    lock = load_lock(project.own_or_shipped_lock_file(target_name))
    baked = render_fixes_or_raise_refusal(
        fixed.all_fixes, fixed.target, map_packages_to_version_or_empty(fixed.target, lock)
    )
    env = {**baked.build_env_including_inherited({}), **fixed.target.env}
    return fixed.target.model_copy(update={"env": env}), list_artifacts_without_compile_inputs(lock) if lock else ()


_DECLARED = {
    "default": _("default"),
    "hidden": _("hidden"),
    "machine": _("machine"),
    "profile": _("profile"),
    "target": _("target"),
}


def _format_contacts(unsorted: Sequence[HostContact]) -> str:
    contacts = sorted(unsorted, key=lambda contact: (PHASES.index(contact.phases[0]), contact.kind, contact.host))
    rows = []
    for contact in contacts:
        mark = _("  [closed by {setting}]").format(setting=contact.closed_by) if contact.closed_by else ""
        phases, declared = "+".join(map(str, contact.phases)), _DECLARED[contact.declared]
        rows.append((contact.host or "?", str(contact.kind), phases, declared, contact.why + mark))
    width = max((len(row[0]) for row in rows), default=0)
    lines = []
    for line, contact in zip(align_translated(rows), contacts, strict=True):
        lines.append(line)
        if contact.rule and contact.declared == "hidden":
            lines.append(f"{'':{width}}    -> {translate(contact.rule)}")
    return "\n".join(lines) or _("no host is contacted")


@click.command("mirrors")
@click.argument("action", metavar="[ls|probe]", default="ls", type=click.Choice(["ls", "probe"]))
@click.option(
    "--target", default="local", metavar="NAME", shell_complete=complete_target, help="Target whose files to request."
)
@sources_option
@pass_app_with_shared_options
def list_or_probe_mirrors(app: App, action: Literal["ls", "probe"], target: str, sources_profile: str) -> int:
    """List the mirrors of a sources profile in their order, or measure each of them.

    `probe` requests the smallest locked file of each kind from all mirrors, and reads the beginning. Exit code 1 if no
    mirror offers a kind.

    \b
    Examples:
      rlbox mirrors ls --sources cn
      rlbox mirrors probe --sources direct
    """
    spec = load_target(app.project, target).target
    profile = load_profile(app.project, sources_profile or spec.sources)
    return _probe_mirrors(app, profile, spec.name) if action == "probe" else _list_mirrors(app, profile)


def _list_mirrors(app: App, profile: Profile) -> int:
    today = datetime.datetime.now(datetime.timezone.utc).date()
    rows = []
    for rule in profile.rule:
        is_expired = rule.expires is not None and rule.expires < today
        rows.append(
            {
                "kind": rule.kind,
                "mirror": rule.display_name,
                "protocol": rule.protocol,
                "url": rule.url_without_trailing_slash,
                "match": rule.match,
                "checked": rule.checked.isoformat() if rule.checked else "",
                "expires": rule.expires.isoformat() if rule.expires else "",
                "state": _("expired {date}: read it up again").format(date=rule.expires) if is_expired else "",
            }
        )
    lines = align_translated(
        (row["kind"], row["mirror"], row["protocol"], row["url"] or "-", row["state"]) for row in rows
    )
    none = _("no rules: files come from wherever this machine's own clients are set to get them")
    text = join("\n", [join("", ("# ", _(profile.title))), *(lines or [none])])
    app.output({"sources": profile.name, "title": profile.title, "rules": rows}, text)
    app.print_next(f"rlbox mirrors probe --sources {profile.name}")
    return 0


def _probe_mirrors(app: App, profile: Profile, target: str) -> int:
    lock = load_lock(app.project.own_or_shipped_lock_file(target))
    if lock is None:
        raise SpecError(
            _("target {target} has no lock, and so no known file").format(target=target),
            next_step=f"rlbox lock {target}",
        )
    machine = probe_machine_source_settings(read_pip_and_proxy_settings())
    probes = probe_file_mirrors(profile, machine, list_artifacts_without_compile_inputs(lock))
    dead = list_unavailable_source_kinds(probes)
    app.output(
        {"sources": profile.name, "probed": [asdict(probe) for probe in probes], "dead": dead}, format_probes(probes)
    )
    if dead and not app.as_json:  # one object on stdout: `dead` says it there
        raise WorkFailed(
            _("no mirror of profile {profile} offers {dead}").format(profile=profile.name, dead=", ".join(dead)),
            where=", ".join(dict.fromkeys(probe.mirror for probe in probes if probe.kind in dead)),
            next_step=_("check the network, or choose another profile with --sources NAME"),
        )
    return int(bool(dead))
