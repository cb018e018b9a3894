"""The locked models and data sets that a run reads: found, checked, and put into folders before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlbox.app import App
from rlbox.artifacts.hub_files import HubOwner, link_and_touch_hub_snapshot, list_missing_hub_files, load_hub_owner
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.config.hub import CONTAINER_HUB_DIR, HubEntry, LockedHubRepo
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _
from rlbox.job.job import Job
from rlbox.job.params import ParamValues
from rlbox.job.plan import find_used_hub_names
from rlbox.run.backend import CLUSTER


@dataclass(frozen=True, kw_only=True)
class HubFoldersAndNotes:
    """What `{hub.NAME}` stands for in a run, and notes on entries that are not locked."""

    folders: Mapping[str, str]
    notes: tuple[str, ...]


def link_hub_snapshots_of_run(app: App, job: Job, values: ParamValues, target: str, place: str) -> HubFoldersAndNotes:
    """Find the entries that a run uses, of its job and its target; one that is not locked stays as its repository.

    Raises WorkFailed: the store lacks files of a locked one.
    Raises SpecError: one is locked, and the run is on a cluster, whose nodes do not have the store.
    """
    used = find_used_hub_names(job, values)
    found: dict[str, tuple[HubOwner, HubEntry]] = {}
    for owner in (load_hub_owner(app.project, "target", target), load_hub_owner(app.project, "job", job.name)):
        found |= {entry.name: (owner, entry) for entry in owner.entries if entry.name in used}
    folders, notes = {}, []
    for name, (owner, entry) in found.items():
        repo = owner.load_lock_or_empty().find_current_repo(entry)
        if repo is None:
            if owner.kind == "target":
                folders[name] = entry.repo
            notes.append(
                _("{entry}: not locked; rlbox lock {owner}").format(entry=entry.kind_and_name, owner=owner.name)
            )
            continue
        with app.collecting_refusals_if_dry_run("models"):
            folders[name] = _require_snapshot(app, owner, entry, repo, place)
    return HubFoldersAndNotes(folders=folders, notes=tuple(notes))


def _require_snapshot(app: App, owner: HubOwner, entry: HubEntry, repo: LockedHubRepo, place: str) -> str:
    if place == CLUSTER:
        what = _("{entry} is locked, and locked files are for runs on one machine").format(entry=entry.kind_and_name)
        step = _("copy it to the data disk of each node, and name the folder with --set")
        raise SpecError(what, where=f"hub.{entry.name}", next_step=step)
    store = ObjectStore(resolve_store_dir(None), seals=not app.dry_run)
    if missing := list_missing_hub_files(store, repo):
        what = _("{entry}: the store lacks {count} of {total} files: {files}").format(
            entry=entry.kind_and_name, count=len(missing), total=len(repo.files), files=", ".join(missing[:5])
        )
        step = _("rlbox fetch {words}; without a network, with --import DIR").format(words=owner.name)
        raise WorkFailed(what, where=str(store.root), next_step=step)
    if not app.dry_run:
        link_and_touch_hub_snapshot(store, repo)
    root = str(store.snapshots_dir) if place == "here" else CONTAINER_HUB_DIR
    return f"{root}/{repo.snapshot_dir_name}"
