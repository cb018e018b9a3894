"""Resolve `[[hub]]` entries: the commit of a revision, and path, size and sha256 of each of its files.

Untested against the real hubs: written by huggingface_hub, and by what ModelScope's own client asks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlencode

from rlbox.artifacts.fetch import format_gated_repo_step
from rlbox.artifacts.mirrors import (
    MODELSCOPE_MIRROR,
    MODELSCOPE_URL,
    DownloadLocation,
    format_hub_file_path,
    format_modelscope_file_url,
    list_hub_endpoints,
)
from rlbox.artifacts.profile import Profile
from rlbox.config.hub import HubEntry, HubLock, LockedHubFile, LockedHubRepo, is_path_inside_snapshot
from rlbox.config.project import Project
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _, join
from rlbox.secrets.lookup import find_secrets_rejecting_weak
from rlbox.secrets.url_credentials import mask_url_and_header_credentials
from rlbox.system.http import (
    RETRYABLE_STATUSES,
    HttpClient,
    NoFullResponseError,
    create_netrc_client,
    describe_response_error,
    retry,
)
from rlbox.system.network_settings import read_pip_and_proxy_settings
from rlbox.values import Secret

_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def find_hub_token(project: Project) -> Secret | None:
    """Return HF_TOKEN of the environment or the project's `.env`, as for the secrets of a job."""
    folders, names = [project.folder], _TOKENS[:1]
    secrets = find_secrets_rejecting_weak(
        (), names, overriding_env_file=None, fallback_env_file_dirs=folders, environ=os.environ, aliases=[_TOKENS]
    )
    return secrets.get(_TOKENS[0])


class HubListing(NamedTuple):
    """The files of a repository at one commit; the sha256 is empty where the hub does not know it."""

    commit: str
    files: tuple[LockedHubFile, ...]


class _HubRefusal(Exception):
    """A hub answered, and does not give what was asked for; `status` is that of HTTP."""

    def __init__(self, reason: str, status: int, retry_after: str = "") -> None:
        super().__init__(reason)
        self.status, self.retry_after = status, retry_after


class _PassingRefusal(_HubRefusal):
    """A refusal after which the same request may go well a little later."""


_RETRIED = (_PassingRefusal, NoFullResponseError)


@dataclass(frozen=True, kw_only=True)
class HubResolver:
    """Asks hubs for the entries of a target or a job, `owner`: the first endpoint that answers decides.

    A mirror of the profile gets no token and may lack a repository, so what it refuses the next one is asked for.
    """

    owner: str
    profile: Profile
    token: Secret | None
    http: HttpClient = field(default_factory=lambda: create_netrc_client(read_pip_and_proxy_settings()))

    def lock_entry(self, entry: HubEntry) -> LockedHubRepo:
        """Return the entry at the commit that its revision has now; `WorkFailed` when no hub gives its files."""
        endpoint, listing = self._list_files(entry)
        if not listing.files:
            what = _("{entry}: no file of {repo} matches its patterns").format(
                entry=entry.kind_and_name, repo=entry.repo
            )
            step = _("correct the patterns, or leave them out for all files")
            raise SpecError(what, where=f"hub.{entry.name}.patterns", next_step=step)
        files = tuple(self._hash_if_unknown(entry, endpoint, listing.commit, file) for file in listing.files)
        facts = entry.model_dump(include={"name", "repo", "patterns", "kind", "source"})
        return LockedHubRepo(**facts, revision=entry.wanted_revision, commit=listing.commit, files=files)

    def require_unchanged(self, entry: HubEntry, locked: LockedHubRepo) -> None:
        """Raise `WorkFailed` when the revision is at another commit than the lock, or the commit has other files."""
        now = self._list_files(entry)[1]
        upgrade, where = f"rlbox lock {self.owner} --upgrade {entry.name}", f"hub.{entry.name}"
        old, new = locked.commit[:12], now.commit[:12]
        if old != new:
            moved = _("{entry}: revision {revision} of {repo} has moved from {old} to {new}")
            step = _("{upgrade} takes the new commit; fetch and run use the locked one").format(upgrade=upgrade)
            names = {"entry": entry.kind_and_name, "revision": entry.wanted_revision, "repo": entry.repo}
            raise WorkFailed(moved.format(**names, old=old, new=new), where=where, next_step=step)
        # a hub does not know the sha256 of what is not in LFS; there the commit itself pins the bytes
        known = {file.path: file.sha256 for file in locked.files}
        listed = (replace(file, sha256=file.sha256 or known.get(file.path, "")) for file in now.files)
        if changed := sorted({file.path for file in {*listed} ^ {*locked.files}}):
            text = _("{entry}: {repo} has other files at commit {commit} than the lock: {files}")
            text = text.format(entry=entry.kind_and_name, repo=entry.repo, commit=old, files=", ".join(changed))
            step = _("find out who changed them; {upgrade} takes the new ones").format(upgrade=upgrade)
            raise WorkFailed(text, where=where, next_step=step)

    def _list_files(self, entry: HubEntry) -> tuple[DownloadLocation, HubListing]:
        endpoints = list_hub_endpoints(self.profile, os.environ.get("HF_ENDPOINT", ""), self.token)
        if entry.source == "modelscope":
            endpoints = [DownloadLocation(mirror=MODELSCOPE_MIRROR, url=MODELSCOPE_URL)]
        reasons: list[str] = []
        refused = 0
        for endpoint in endpoints:
            try:
                return endpoint, retry(partial(self._list_at, endpoint, entry), _RETRIED)
            except (_HubRefusal, NoFullResponseError) as error:
                reasons.append(_describe_failure(endpoint, error))
                if isinstance(error, _HubRefusal) and error.status in (401, 403, 404):
                    refused = error.status
                    if endpoint.named_by != "profile":
                        break
        if refused:
            raise self._create_refusal_error(entry, refused, join("; ", reasons))
        step = _("check the network, or name a mirror with HF_ENDPOINT; then: rlbox lock {owner}")
        what = _("{entry}: no hub answers for {repo}").format(entry=entry.kind_and_name, repo=entry.repo)
        raise WorkFailed(what, where=join("; ", reasons), next_step=step.format(owner=self.owner))

    def _list_at(self, endpoint: DownloadLocation, entry: HubEntry) -> HubListing:
        if entry.source == "modelscope":
            commit, rows = _list_modelscope(self.http, endpoint, entry)
        else:
            commit, rows = _list_huggingface(endpoint, entry)
        files = sorted((row for row in rows if entry.takes_file(row.path)), key=lambda row: row.path)
        for file in files:
            if not is_path_inside_snapshot(file.path):
                what = _("{repo} has a file outside of its folder: {path!r}").format(repo=entry.repo, path=file.path)
                raise WorkFailed(what, where=endpoint.mirror, next_step=_("do not use this repository"))
        return HubListing(commit, tuple(files))

    def _create_refusal_error(self, entry: HubEntry, status: int, reasons: str) -> WorkFailed:
        command = f"rlbox lock {self.owner}"
        step = format_gated_repo_step(entry.repo, command)
        if status == 404:
            what = _("{entry}: {repo} has no revision {revision}")
            step = _("correct repo and revision of the entry, then: {command}").format(command=command)
        else:
            what = _("{entry}: {repo} is gated, private or unknown to the account of HF_TOKEN, if one is set")
        text = what.format(entry=entry.kind_and_name, repo=entry.repo, revision=entry.wanted_revision)
        return WorkFailed(text, where=reasons, next_step=step)

    def _hash_if_unknown(
        self, entry: HubEntry, endpoint: DownloadLocation, commit: str, file: LockedHubFile
    ) -> LockedHubFile:
        if file.sha256:
            return file
        url = endpoint.url + format_hub_file_path(f"{entry.kind}s/{entry.repo}", commit, file.path)
        if entry.source == "modelscope":
            url = format_modelscope_file_url(f"{entry.kind}s/{entry.repo}", commit, file.path)
        headers = {"Authorization": f"Bearer {endpoint.token.reveal()}"} if endpoint.token else {}

        def hash_file() -> str:
            digest, size = hashlib.sha256(), 0
            with self.http.stream("GET", url, headers=headers) as answer:
                _require_ok(answer.status, answer.headers)
                for block in answer.iter_bytes():
                    digest.update(block)
                    size += len(block)
            if size != file.size:
                raise _HubRefusal(f"{size} bytes, listed are {file.size}", answer.status)
            return digest.hexdigest()

        try:
            return replace(file, sha256=retry(hash_file, _RETRIED))
        except (_HubRefusal, NoFullResponseError) as error:
            what = _("{entry}: {path} cannot be read").format(entry=entry.kind_and_name, path=file.path)
            where = _describe_failure(endpoint, error)
            raise WorkFailed(what, where=where, next_step=f"rlbox lock {self.owner}") from error


def _describe_failure(endpoint: DownloadLocation, error: Exception) -> str:
    return f"{endpoint.mirror}: {mask_url_and_header_credentials(describe_response_error(error))}"


def _require_ok(status: int, headers: Any) -> None:
    if status != 200:
        kind = _PassingRefusal if status in RETRYABLE_STATUSES else _HubRefusal
        reason = headers.get("x-error-message") or f"answered {status}"
        raise kind(reason, status, headers.get("retry-after", ""))


def _list_huggingface(endpoint: DownloadLocation, entry: HubEntry) -> tuple[str, list[LockedHubFile]]:
    try:
        from huggingface_hub import HfApi, constants
        from huggingface_hub.hf_api import RepoFile
    except ImportError as error:
        what = _("[[hub]] entries need huggingface_hub, which is not installed")
        raise SpecError(what, where=str(error.name), next_step="pip install 'rlbox[hub]'") from error
    constants.HF_HUB_DISABLE_TELEMETRY = True  # it asks huggingface.co once a day, whatever the endpoint
    # False: never the token that huggingface_hub keeps in its own cache
    api = HfApi(endpoint=endpoint.url, token=endpoint.token.reveal() if endpoint.token else False)
    try:
        commit = str(api.repo_info(entry.repo, revision=entry.wanted_revision, repo_type=entry.kind).sha)
        rows = list(api.list_repo_tree(entry.repo, revision=commit, repo_type=entry.kind, recursive=True))
    except Exception as error:  # its HTTP library is another one from release to release
        _raise_as_refusal(error)
    return commit, [
        LockedHubFile(path=row.path, size=row.size, sha256=row.lfs.sha256 if row.lfs else "")
        for row in rows
        if isinstance(row, RepoFile)
    ]


def _raise_as_refusal(error: Exception) -> NoReturn:
    answer = getattr(error, "response", None)
    if answer is not None:
        _require_ok(answer.status_code, answer.headers)
    raise NoFullResponseError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", "unreached") from error


def _list_modelscope(http: HttpClient, endpoint: DownloadLocation, entry: HubEntry) -> tuple[str, list[LockedHubFile]]:
    """Return the newest commit among the files of a revision, and the files."""
    page = "files" if entry.kind == "model" else "tree"
    query = urlencode({"Revision": entry.wanted_revision, "Recursive": "true"})
    with http.stream("GET", f"{endpoint.url}/api/v1/{entry.kind}s/{entry.repo}/repo/{page}?{query}") as answer:
        _require_ok(answer.status, answer.headers)
        rows = [row for row in answer.read_json()["Data"]["Files"] if row["Type"] == "blob"]
    if not rows:
        raise _HubRefusal("lists no file", 404)
    newest = max(rows, key=lambda row: int(row.get("CommittedDate") or 0))
    files = [LockedHubFile(path=row["Path"], size=row["Size"], sha256=row.get("Sha256") or "") for row in rows]
    return str(newest["Revision"]), files


def lock_hub_entries(
    entries: Iterable[HubEntry], previous: HubLock, is_upgraded: Callable[[str], bool], resolver: HubResolver
) -> HubLock:
    """Return the lock of all entries; one that is locked as it stands is kept, unless it is upgraded."""
    repos = []
    for entry in entries:
        locked = None if is_upgraded(entry.name) else previous.find_current_repo(entry)
        repos.append(locked or resolver.lock_entry(entry))
    return HubLock(owner=previous.owner, repos=tuple(repos))
