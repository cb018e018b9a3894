"""Resolve `[[hub]]` entries: the commit of a revision, and path, size and sha256 of each of its files.

Written against huggingface_hub's and ModelScope's documented answers; untested against the real hubs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn
from urllib.parse import urlencode

from rlbox.app import App
from rlbox.artifacts.fetch import format_gated_repo_step
from rlbox.artifacts.mirrors import (
    MODELSCOPE_MIRROR,
    MODELSCOPE_URL,
    FileOrPage,
    format_hub_file_path,
    format_modelscope_file_url,
    list_hub_endpoints,
)
from rlbox.artifacts.profile import Profile
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _, join
from rlbox.secrets.lookup import find_secrets
from rlbox.secrets.url_credentials import mask_url_and_header_credentials
from rlbox.system.http import (
    RETRYABLE_STATUSES,
    HttpClient,
    HttpResponse,
    NoFullResponseError,
    create_netrc_client,
    describe_response_error,
    retry,
)
from rlbox.system.network_settings import read_pip_and_proxy_settings
from rlbox.target.hub import HubEntry, HubLock, LockedHubFile, LockedHubRepo, is_path_inside_snapshot
from rlbox.values import Secret

HUB_TOKEN = "HF_TOKEN"  # noqa: S105


def find_hub_token(app: App) -> Secret | None:
    """Return HF_TOKEN of the environment or the project's `.env`, as for the secrets of a job."""
    aliases = [(HUB_TOKEN, "HUGGING_FACE_HUB_TOKEN")]
    secrets = find_secrets(
        (),
        (HUB_TOKEN,),
        overriding_env_file=None,
        fallback_env_file_dirs=[app.project.folder],
        environ=os.environ,
        aliases=aliases,
    )
    return secrets.get(HUB_TOKEN)


@dataclass(frozen=True, kw_only=True)
class HubFileEntry:
    """One file of a repository as its hub lists it; `sha256` is empty where the hub does not know it."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class HubListing:
    commit: str
    files: tuple[HubFileEntry, ...]


class _HubRefusal(Exception):
    """A hub answered, and does not give what was asked for; `status` is that of HTTP."""

    def __init__(self, reason: str, status: int, retry_after: str = "") -> None:
        super().__init__(reason)
        self.status, self.retry_after = status, retry_after


class _PassingRefusal(_HubRefusal):
    """A refusal after which the same request may go well a little later."""


@dataclass(frozen=True, kw_only=True)
class HubResolver:
    """Asks hubs for the entries of a target or a job, `owner`: the first endpoint that answers decides."""

    app: App
    owner: str
    profile: Profile
    token: Secret | None
    http: HttpClient = field(default_factory=lambda: create_netrc_client(read_pip_and_proxy_settings()))

    def lock_entry(self, entry: HubEntry) -> LockedHubRepo:
        """Return the entry at the commit that its revision has now.

        Raises SpecError: no file matches its patterns.
        Raises WorkFailed: the repository is gated, unknown or has no such revision, or no hub answers.
        """
        endpoint, listing = self._list_files(entry, entry.wanted_revision)
        if not listing.files:
            raise SpecError(
                _("{kind} {name}: no file of {repo} matches its patterns").format(
                    kind=entry.kind, name=entry.name, repo=entry.repo
                ),
                where=f"hub.{entry.name}.patterns: {', '.join(entry.patterns)}",
                next_step=_("correct the patterns, or leave them out for all files"),
            )
        files = tuple(self._hash_if_unknown(entry, endpoint, listing.commit, file) for file in listing.files)
        return LockedHubRepo(
            name=entry.name,
            repo=entry.repo,
            revision=entry.wanted_revision,
            patterns=entry.patterns,
            kind=entry.kind,
            source=entry.source,
            commit=listing.commit,
            files=files,
        )

    def require_unchanged(self, entry: HubEntry, locked: LockedHubRepo) -> None:
        """Raise `WorkFailed` when the revision is at another commit than the lock, or the commit has other files."""
        __, now = self._list_files(entry, entry.wanted_revision)
        upgrade = f"rlbox lock {self.owner} --upgrade {entry.name}"
        if now.commit != locked.commit:
            raise WorkFailed(
                _("{kind} {name}: revision {revision} of {repo} has moved from {locked} to {now}").format(
                    kind=entry.kind,
                    name=entry.name,
                    revision=entry.wanted_revision,
                    repo=entry.repo,
                    locked=locked.commit[:12],
                    now=now.commit[:12],
                ),
                where=f"hub.{entry.name}",
                next_step=_("{upgrade} takes the new commit; fetch and run use the locked one").format(upgrade=upgrade),
            )
        known = {file.path: file for file in locked.files}
        listed = {file.path: file for file in now.files}
        changed = [path for path in sorted({*known, *listed}) if not _is_same_file(known.get(path), listed.get(path))]
        if changed:
            raise WorkFailed(
                _("{kind} {name}: {repo} has other files at commit {commit} than the lock: {files}").format(
                    kind=entry.kind,
                    name=entry.name,
                    repo=entry.repo,
                    commit=locked.commit[:12],
                    files=", ".join(changed),
                ),
                where=f"hub.{entry.name}",
                next_step=_("find out who changed them; {upgrade} takes the new ones").format(upgrade=upgrade),
            )

    def _list_files(self, entry: HubEntry, revision: str) -> tuple[FileOrPage, HubListing]:
        if entry.source == "modelscope":
            endpoints = [FileOrPage(mirror=MODELSCOPE_MIRROR, url=MODELSCOPE_URL)]
        else:
            endpoints = list_hub_endpoints(self.profile, os.environ.get("HF_ENDPOINT", ""), self.token)
        reasons = []
        for endpoint in endpoints:
            try:
                listing = retry(
                    partial(self._list_at, endpoint, entry, revision), (_PassingRefusal, NoFullResponseError)
                )
                return endpoint, listing
            except _HubRefusal as error:
                if error.status in (401, 403, 404):
                    raise self._create_refusal_error(entry, revision, endpoint, error) from error
                reasons.append(f"{endpoint.mirror}: {error}")
            except NoFullResponseError as error:
                reasons.append(f"{endpoint.mirror}: {describe_response_error(error)}")
        raise WorkFailed(
            _("{kind} {name}: no hub answers for {repo}\n{lines}").format(
                kind=entry.kind,
                name=entry.name,
                repo=entry.repo,
                lines=join("\n", (f"  {mask_url_and_header_credentials(reason)}" for reason in reasons)),
            ),
            next_step=_("check the network, or name a mirror with HF_ENDPOINT; then: rlbox lock {owner}").format(
                owner=self.owner
            ),
        )

    def _list_at(self, endpoint: FileOrPage, entry: HubEntry, revision: str) -> HubListing:
        if entry.source == "modelscope":
            commit, rows = _list_modelscope(self.http, entry, revision)
        else:
            commit, rows = _list_huggingface(endpoint, entry, revision)
        files = sorted((row for row in rows if entry.takes_file(row.path)), key=lambda row: row.path)
        if unsafe := next((file.path for file in files if not is_path_inside_snapshot(file.path)), ""):
            raise WorkFailed(
                _("{repo} has a file outside of its folder: {path!r}").format(repo=entry.repo, path=unsafe),
                where=endpoint.mirror,
                next_step=_("do not use this repository"),
            )
        return HubListing(commit=commit, files=tuple(files))

    def _create_refusal_error(
        self, entry: HubEntry, revision: str, endpoint: FileOrPage, error: _HubRefusal
    ) -> WorkFailed:
        again = f"rlbox lock {self.owner}"
        if error.status == 404:
            what = _("{kind} {name}: {repo} has no revision {revision}")
            step = _("correct repo and revision of the entry, then: {again}").format(again=again)
        elif self.token is None:
            what = _("{kind} {name}: {repo} is gated, private or unknown, and HF_TOKEN is not set")
            step = format_gated_repo_step(entry.repo, again)
        else:
            what = _("{kind} {name}: {repo} is gated, private or unknown to the account of HF_TOKEN")
            step = format_gated_repo_step(entry.repo, again)
        text = what.format(kind=entry.kind, name=entry.name, repo=entry.repo, revision=revision)
        where = f"{endpoint.mirror}: {mask_url_and_header_credentials(str(error))}"
        return WorkFailed(text, where=where, next_step=step)

    def _hash_if_unknown(self, entry: HubEntry, endpoint: FileOrPage, commit: str, file: HubFileEntry) -> LockedHubFile:
        if file.sha256:
            return LockedHubFile(path=file.path, sha256=file.sha256, size=file.size)
        kind_and_repo = f"{entry.kind}s/{entry.repo}"
        url = endpoint.url + format_hub_file_path(kind_and_repo, commit, file.path)
        if entry.source == "modelscope":
            url = format_modelscope_file_url(kind_and_repo, commit, file.path)
        headers = {"Authorization": f"Bearer {endpoint.token.reveal()}"} if endpoint.token else {}

        def hash_file() -> str:
            digest, size = hashlib.sha256(), 0
            with self.http.stream("GET", url, headers=headers) as answer:
                _require_ok(answer)
                for block in answer.iter_bytes():
                    digest.update(block)
                    size += len(block)
            if size != file.size:
                raise _HubRefusal(f"{size} bytes, listed are {file.size}", answer.status)
            return digest.hexdigest()

        try:
            sha256 = retry(hash_file, (_PassingRefusal, NoFullResponseError))
        except (_HubRefusal, NoFullResponseError) as error:
            raise WorkFailed(
                _("{kind} {name}: {path} cannot be read: {error}").format(
                    kind=entry.kind, name=entry.name, path=file.path, error=error
                ),
                where=endpoint.mirror,
                next_step=f"rlbox lock {self.owner}",
            ) from error
        return LockedHubFile(path=file.path, sha256=sha256, size=file.size)


def _is_same_file(locked: LockedHubFile | None, listed: HubFileEntry | None) -> bool:
    if locked is None or listed is None:
        return False
    return locked.size == listed.size and listed.sha256 in ("", locked.sha256)


def _require_ok(answer: HttpResponse) -> None:
    if answer.status == 200:
        return
    kind = _PassingRefusal if answer.status in RETRYABLE_STATUSES else _HubRefusal
    raise kind(f"answered {answer.status}", answer.status, answer.headers.get("retry-after", ""))


def _list_huggingface(endpoint: FileOrPage, entry: HubEntry, revision: str) -> tuple[str, list[HubFileEntry]]:
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile
    except ImportError as error:
        raise SpecError(
            _("[[hub]] entries need huggingface_hub, which is not installed"),
            where=str(error.name),
            next_step="pip install 'rlbox[hub]'",
        ) from error

    # False: never the token that huggingface_hub keeps in its own cache
    api = HfApi(endpoint=endpoint.url, token=endpoint.token.reveal() if endpoint.token else False)
    try:
        commit = str(api.repo_info(entry.repo, revision=revision, repo_type=entry.kind).sha)
        rows = api.list_repo_tree(entry.repo, revision=commit, repo_type=entry.kind, recursive=True)
        return commit, [
            HubFileEntry(path=row.path, size=row.size, sha256=row.lfs.sha256 if row.lfs else "")
            for row in rows
            if isinstance(row, RepoFile)
        ]
    except Exception as error:  # its HTTP library is another one from release to release
        _raise_as_refusal(error)


def _raise_as_refusal(error: Exception) -> NoReturn:
    answer = getattr(error, "response", None)
    if answer is None:
        raise NoFullResponseError(f"{type(error).__name__}: {str(error).splitlines()[0]}", "unreached") from error
    kind = _PassingRefusal if answer.status_code in RETRYABLE_STATUSES else _HubRefusal
    what = answer.headers.get("x-error-message") or f"answered {answer.status_code}"
    raise kind(what, answer.status_code, answer.headers.get("retry-after", "")) from error


def _list_modelscope(http: HttpClient, entry: HubEntry, revision: str) -> tuple[str, list[HubFileEntry]]:
    """Return the newest commit among the files of a revision, and the files."""
    page = "files" if entry.kind == "model" else "tree"
    query = urlencode({"Revision": revision, "Recursive": "true"})
    with http.stream("GET", f"{MODELSCOPE_URL}/api/v1/{entry.kind}s/{entry.repo}/repo/{page}?{query}") as answer:
        _require_ok(answer)
        data = answer.read_json()
    rows: list[dict[str, Any]] = [row for row in data["Data"]["Files"] if row["Type"] == "blob"]
    if not rows:
        raise _HubRefusal("lists no file", 404)
    newest = max(rows, key=lambda row: int(row.get("CommittedDate") or 0))
    files = [HubFileEntry(path=row["Path"], size=row["Size"], sha256=row.get("Sha256") or "") for row in rows]
    return str(newest["Revision"]), files


def lock_hub_entries(
    entries: Iterable[HubEntry],
    previous: HubLock,
    is_upgraded: Callable[[str], bool],
    create_resolver: Callable[[], HubResolver],
) -> HubLock:
    """Return the lock of all entries; one that is locked as it stands is kept, unless it is upgraded."""
    repos, resolver = [], None
    for entry in entries:
        locked = previous.find_current_repo(entry)
        if locked is None or is_upgraded(entry.name):
            resolver = resolver or create_resolver()
            locked = resolver.lock_entry(entry)
        repos.append(locked)
    return HubLock(owner=previous.owner, repos=tuple(repos))
