"""The locked models and data sets of a target or a job: which they are, their files, and their folders in the store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlbox.app import App
from rlbox.artifacts.hub_lock import find_hub_token
from rlbox.artifacts.locator import MirrorUrlFinder
from rlbox.artifacts.mirrors import MachineSourceSettings
from rlbox.artifacts.object_store import ObjectStore, create_unwritable_store_error
from rlbox.artifacts.profile import load_profile
from rlbox.config.hub import HubEntry, HubLock, LockedHubRepo, load_hub_lock
from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.job import load_job
from rlbox.system.http import create_netrc_client
from rlbox.system.network_settings import read_pip_and_proxy_settings
from rlbox.target.artifact import Artifact, list_hub_artifacts
from rlbox.target.target import load_target


@dataclass(frozen=True, kw_only=True)
class HubOwner:
    """A target or a job with its `[[hub]]` entries; `lock_path` is where its lock is, or would be."""

    kind: Literal["target", "job"]
    name: str
    entries: tuple[HubEntry, ...]
    lock_path: Path
    sources_profile: str

    def load_lock_or_empty(self) -> HubLock:
        return load_hub_lock(self.lock_path) or HubLock(owner=self.name)

    def require_locked_repos(self) -> tuple[LockedHubRepo, ...]:
        """Return the locked repository of each entry; `SpecError` when one is not locked as it stands."""
        lock = self.load_lock_or_empty()
        repos = [(entry, lock.find_current_repo(entry)) for entry in self.entries]
        if missing := [entry.name for entry, repo in repos if repo is None]:
            what = _("[[hub]] of {kind} {owner}: not locked: {names}")
            what = what.format(kind=self.kind, owner=self.name, names=", ".join(missing))
            raise SpecError(what, where=str(self.lock_path), next_step=f"rlbox lock {self.name}")
        return tuple(repo for __, repo in repos if repo)


def load_hub_owner(project: Project, kind: Literal["target", "job"], name: str) -> HubOwner:
    job = load_job(project, name) if kind == "job" else None
    target = load_target(project, job.target if job else name).target
    entries, lock_path = (job or target).hub, project.own_or_shipped_hub_lock_file(kind, name)
    return HubOwner(kind=kind, name=name, entries=entries, lock_path=lock_path, sources_profile=target.sources)


def create_no_hub_entry_error(project: Project, job: str) -> SpecError:
    what = _("job {job} has no [[hub]] entry: there is nothing to lock or fetch").format(job=job)
    step = f"rlbox fetch {load_job(project, job).target}"
    return SpecError(what, where=str(project.require_job_file(job)), next_step=step)


def is_job_and_no_target(project: Project, name: str) -> bool:
    return name in project.own_pack_and_shipped_job_files() and name not in project.own_pack_and_shipped_target_files()


def create_hub_url_finder(app: App, sources_profile: str) -> MirrorUrlFinder:
    """Return what finds the files of a hub; no mirror is probed: a dead one costs three attempts."""
    machine = MachineSourceSettings(
        hub_endpoint=os.environ.get("HF_ENDPOINT", ""), hub_token=find_hub_token(app.project)
    )
    return MirrorUrlFinder(
        load_profile(app.project, sources_profile),
        machine,
        create_netrc_client(read_pip_and_proxy_settings()),
        on_skip=lambda mirror, reason: app.print_status(
            _("{mirror} is passed over: {reason}").format(mirror=mirror, reason=reason)
        ),
    )


def list_hub_files_or_readme_if_unlocked(owner: HubOwner) -> tuple[Artifact, ...]:
    """Return the locked files of an owner; of an entry without a lock, a file that most repositories have."""
    lock, found = owner.load_lock_or_empty(), list[Artifact]()
    for entry in owner.entries:
        if repo := lock.find_current_repo(entry):
            found += list_hub_artifacts([repo])
            continue
        origin = f"{entry.kind}s/{entry.repo} {entry.wanted_revision}"
        found.append(
            Artifact(
                kind=entry.source, name=entry.name, file="README.md", sha256="", size=0, group="hub", origin=origin
            )
        )
    return tuple(found)


def list_missing_hub_files(store: ObjectStore, repo: LockedHubRepo) -> list[str]:
    return [file.path for file in repo.files if not store.verify_and_mark_if_intact(file.sha256, file.size)]


def link_and_touch_hub_snapshot(store: ObjectStore, repo: LockedHubRepo) -> Path:
    """Return the folder with the files of a repository, which the store must hold; mark it as used now.

    A file that is not as it was linked is linked again: the store has replaced its damaged object.
    """
    folder = store.snapshots_dir / repo.snapshot_dir_name
    try:
        for file in repo.files:
            store.link_preverified_object_unless_path_intact(file.sha256, file.size, folder / file.path)
        os.utime(folder)
    except OSError as error:
        raise create_unwritable_store_error(store.root, error) from error
    return folder
