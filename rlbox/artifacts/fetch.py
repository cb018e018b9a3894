"""Fetch files into the store: several at once, each once, all failures reported together."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from rlbox.amounts import count_columns, decimal_size_text, pad_translated
from rlbox.app import App
from rlbox.artifacts.download import AllMirrorsFailedError, Downloader, FailedAttempt
from rlbox.artifacts.git_tree import fetch_git_tree_into_store
from rlbox.artifacts.locator import MirrorUrlFinder, create_live_url_finder
from rlbox.artifacts.mirrors import HUB_KINDS, HUB_URL, MODELSCOPE_MIRROR, MirrorName
from rlbox.artifacts.object_store import ObjectStore, PartialObject
from rlbox.errors import MachineError, WorkFailed
from rlbox.i18n import _, join, ngettext, translate
from rlbox.system.files import free_bytes_or_0, is_enospc_or_edquot
from rlbox.system.http import create_netrc_client
from rlbox.system.network_settings import NetworkSettings, read_pip_and_proxy_settings
from rlbox.system.progress import ProgressItem, show_progress
from rlbox.target.artifact import Artifact, ArtifactKind

DEFAULT_PARALLEL_DOWNLOADS = 8
FetchState = Literal["running", "done", "failed"]
_MARKS = {"running": "", "done": "✓", "failed": "✗"}


def make_fetch_progress_item(
    artifact: Artifact, state: FetchState, done_bytes: int = 0, mirror: MirrorName = ""
) -> ProgressItem:
    return ProgressItem(
        key=artifact,
        title=artifact.file.rpartition("/")[2],
        mark=_MARKS[state],
        status_text=f"{decimal_size_text(artifact.size)}  {mirror}",
        done_bytes=artifact.size if state == "done" else done_bytes,
        total_bytes=artifact.size,
    )


@dataclass(frozen=True, kw_only=True)
class FetchStats:
    """What a fetch did: counts and bytes of files; `by_mirror` has the bytes that came from each."""

    present: int = 0
    present_bytes: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    by_mirror: Mapping[MirrorName, int]
    seconds: float = 0.0

    def __add__(self, other: FetchStats) -> FetchStats:
        counts = (field.name for field in fields(self) if field.name != "by_mirror")
        sums = {name: getattr(self, name) + getattr(other, name) for name in counts}
        return FetchStats(by_mirror={**self.by_mirror, **other.by_mirror}, **sums)


def fetch_missing_artifacts(
    artifacts: Sequence[Artifact],
    url_finder: MirrorUrlFinder,
    store: ObjectStore,
    on_progress: Callable[[ProgressItem], None] = lambda item: None,
    *,
    target: str = "TARGET",
    jobs: int = DEFAULT_PARALLEL_DOWNLOADS,
    stall_s: float = 30.0,
) -> FetchStats:
    """Return when the store holds every one of `artifacts`, whole and verified.

    `on_progress` is called by several threads, one call at a time. `target` is the name that messages use.
    After `stall_s` seconds without a byte a mirror counts as stalled.

    Raises MachineError: the disk has no room for what is missing, or became full.
    Raises WorkFailed: some files cannot be had: each is named, with every mirror and why.
    """
    began = time.monotonic()
    wanted = list({artifact.sha256: artifact for artifact in artifacts}.values())
    missing = [artifact for artifact in wanted if not store.verify_and_mark_if_intact(artifact.sha256, artifact.size)]
    refuse_missing_compiled_wheels(missing, store, target)
    require_disk_space(store, missing)
    fetch = _Fetch(url_finder, store, on_progress, read_pip_and_proxy_settings())
    if missing:
        fetch.run(missing, jobs=jobs, stall_s=stall_s)
    if fetch.failures:
        failed = [artifact for artifact in wanted if artifact in fetch.failures]
        tries = {
            artifact: fetch.failures[artifact].tries or _skips(artifact, missing, url_finder.skipped_mirrors)
            for artifact in failed
        }
        raise _create_fetch_error(tries, target)
    fetched = sum(artifact.size for artifact in fetch.fetched)
    return FetchStats(
        present=len(wanted) - len(fetch.fetched),
        present_bytes=sum(artifact.size for artifact in wanted) - fetched,
        fetched=len(fetch.fetched),
        fetched_bytes=fetched,
        by_mirror=dict(sorted(fetch.by_mirror.items())),
        seconds=time.monotonic() - began,
    )


def fetch_missing_with_progress(
    app: App,
    files: Sequence[Artifact],
    store: ObjectStore,
    sources_profile: str,
    target: str,
    *,
    probe_files: Sequence[Artifact] = (),
    url_finder: MirrorUrlFinder | None = None,
    jobs: int = DEFAULT_PARALLEL_DOWNLOADS,
) -> FetchStats:
    """Fetch what the store lacks of `files`, and show it; errors are those of `fetch_missing_artifacts`.

    `probe_files`: Those by which mirrors are chosen, where that is not `files`.
    `url_finder`: Absent: one of `sources_profile`, after its mirrors were probed.
    """
    missing = [file.size for file in files if not store.verify_and_mark_if_intact(file.sha256, file.size)]
    if not missing:
        return FetchStats(present=len(files), present_bytes=sum(file.size for file in files), by_mirror={})
    app.print_status(
        _("fetching {count} files, {size}").format(count=len(missing), size=decimal_size_text(sum(missing)))
    )
    locator = url_finder or create_live_url_finder(app, sources_profile, probe_files or files)
    with show_progress(app, total_bytes=sum(missing)) as on_progress:
        return fetch_missing_artifacts(files, locator, store, on_progress, target=target, jobs=jobs)


class _Fetch:
    def __init__(
        self,
        locator: MirrorUrlFinder,
        store: ObjectStore,
        on_progress: Callable[[ProgressItem], None],
        site: NetworkSettings,
    ) -> None:
        self._locator, self._store, self._on_progress, self._site = locator, store, on_progress, site
        self._missing: tuple[Artifact, ...] = ()
        self._waiting: deque[Artifact] = deque()
        self._stop, self._turn = threading.Event(), threading.Lock()
        self._broken: BaseException | None = None
        self.fetched: list[Artifact] = []
        self.failures: dict[Artifact, AllMirrorsFailedError] = {}
        self.by_mirror: Counter[str] = Counter()

    def run(self, missing: Sequence[Artifact], *, jobs: int, stall_s: float) -> None:
        """Fetch `missing`, the largest first, so that no large one is left alone at the end.

        Of a hub the smallest that has bytes comes before all: it shows whether a mirror has the right ones.
        """
        self._missing = tuple(missing)
        self._waiting.extend(sorted(missing, key=lambda artifact: -artifact.size))
        if missing[0].kind in HUB_KINDS:
            first = min(missing, key=lambda artifact: (not artifact.size, artifact.size))
            self._waiting.remove(first)
            self._waiting.appendleft(first)
        with create_netrc_client(self._site, max_connections=jobs, idle_timeout_s=stall_s) as http:
            downloader = Downloader(
                http,
                stop=self._stop,
                on_skip=self._locator.record_and_report_skipped_mirror,
                wrong_mirrors=self._store.list_recent_wrong_mirrors(),
                on_wrong_bytes=self._record_wrong_mirror,
            )
            threads = [
                threading.Thread(target=self._work, name="fetch", args=(downloader,), daemon=True)
                for __ in range(min(jobs, len(missing)))
            ]
            try:
                for thread in threads:
                    thread.start()
                    while missing[0].kind in HUB_KINDS and thread.is_alive() and not (self.fetched or self.failures):
                        thread.join(0.05)
                for thread in threads:
                    while thread.is_alive():
                        thread.join(0.2)
            finally:
                self._stop.set()
        if self._broken:
            raise self._broken

    def _record_wrong_mirror(self, mirror: str, reason: str) -> None:
        self._store.record_wrong_mirror(mirror)
        self._locator.record_and_report_skipped_mirror(mirror, reason)

    def _work(self, downloader: Downloader) -> None:
        while not self._stop.is_set() and self._waiting:
            try:
                artifact = self._waiting.popleft()
            except IndexError:  # another thread took the last
                return
            try:
                with self._store.wait_for_partial(artifact.sha256) as partial:  # another rlbox may be at it
                    self._fetch(artifact, partial, downloader)
            except AllMirrorsFailedError as error:
                self.failures[artifact] = error
                self._tell(artifact, "failed")
            except BaseException as error:
                if is_enospc_or_edquot(error):
                    missing = _count_missing_bytes(self._store, self._missing)
                    error = _create_disk_full_error(self._store, missing)
                self._broken = self._broken or error
                self._stop.set()

    def _fetch(self, artifact: Artifact, partial: PartialObject, downloader: Downloader) -> None:
        if self._store.verify_and_mark_if_intact(artifact.sha256, artifact.size):
            self._tell(artifact, "done", artifact.size)
            return
        self._tell(artifact, "running", partial.size)

        def tell(mirror: str, count: int) -> None:
            with self._turn:
                self.by_mirror[mirror] += count
            self._tell(artifact, "running", partial.size, mirror)

        if artifact.kind == "git":
            urls = self._locator.list_git_urls(artifact.origin.rpartition(" ")[0])
            mirror = fetch_git_tree_into_store(artifact, urls, partial, self._site.ca_bundle)
        else:
            mirror = downloader.download_and_commit(
                artifact, self._locator.find_ordered_urls_reading_index_pages(artifact), partial, tell
            )
        self.fetched.append(artifact)
        self._tell(artifact, "done", artifact.size, mirror)

    def _tell(self, artifact: Artifact, state: FetchState, done: int = 0, mirror: str = "") -> None:
        with self._turn:
            self._on_progress(make_fetch_progress_item(artifact, state, done, mirror))


def refuse_missing_compiled_wheels(missing: Sequence[Artifact], store: ObjectStore, target: str) -> None:
    names = [artifact.name for artifact in missing if artifact.kind == "compiled"]
    if names:
        raise WorkFailed(
            _("the store has no wheel of {names}, which is compiled, and fetched from nowhere").format(
                names=", ".join(names)
            ),
            where=str(store.root),
            next_step=_(
                "rlbox compile {target}, or rlbox fetch {target} --import an export of a machine that did"
            ).format(target=target),
        )


def create_missing_files_error(missing: Sequence[Artifact], store: ObjectStore, fetch_arguments: str) -> WorkFailed:
    shown = [file.file if file.kind == "oci" else file.name for file in missing[:5]]
    names = ", ".join(map(str, shown))
    if missing[5:]:
        names = _("{names} and {count} more").format(names=names, count=len(missing) - 5)
    return WorkFailed(
        _("the store lacks {count} files of the lock: {names}").format(count=len(missing), names=names),
        where=str(store.root),
        next_step=_("rlbox fetch {words}; without a network, with --import DIR").format(words=fetch_arguments),
    )


def require_disk_space(store: ObjectStore, missing: Sequence[Artifact]) -> None:
    needed = _count_missing_bytes(store, missing)
    if needed and free_bytes_or_0(store.root) < needed:
        raise _create_disk_full_error(store, needed)


def _count_missing_bytes(store: ObjectStore, artifacts: Sequence[Artifact]) -> int:
    missing = (artifact for artifact in artifacts if not store.has(artifact.sha256))
    return sum(max(0, artifact.size - store.count_partial_bytes(artifact.sha256)) for artifact in missing)


def _create_disk_full_error(store: ObjectStore, needed: int) -> MachineError:
    free = free_bytes_or_0(store.root)
    return MachineError(
        _("the store's disk is full: {needed} needed, {free} free").format(
            needed=decimal_size_text(needed), free=decimal_size_text(free)
        ),
        where=str(store.root),
        next_step=_("rlbox prune, or name a folder on another disk with RLBOX_STORE"),
    )


def _skips(
    artifact: Artifact, missing: Sequence[Artifact], skipped: Sequence[tuple[str, str]]
) -> tuple[FailedAttempt, ...]:
    """Return why no mirror lists a file: what was said of it, and of mirrors as a whole."""
    files = {other.file for other in missing} - {artifact.file}
    return tuple(
        FailedAttempt(mirror=mirror, reason=reason, http_status=404 if artifact.file in reason else None)
        for mirror, reason in skipped
        if artifact.file in reason or not any(file in reason for file in files)
    )


def _create_fetch_error(failures: Mapping[Artifact, tuple[FailedAttempt, ...]], target: str) -> WorkFailed:
    alike: dict[tuple[FailedAttempt, ...], list[Artifact]] = {}
    for artifact, tries in failures.items():
        alike.setdefault(tries, []).append(artifact)
    lines, steps = [], []
    for tries, files in alike.items():
        names = ", ".join(artifact.file.rpartition("/")[2] for artifact in files)
        gone = all(one.http_status in (404, 410) for one in tries)
        lost = _("no source offers {files} any more (yanked or superseded)").format(files=names)
        if files[0].kind in HUB_KINDS:
            repo, __, commit = files[0].origin.partition("/")[2].partition(" ")
            lost = _("commit {commit} of {repo} is gone, or has lost {files}").format(
                commit=commit[:12], repo=repo, files=names
            )
            gone = _has_hub_lost(files[0].kind, tries)
            if any(one.http_status in (401, 403) for one in tries):
                names = _("{repo} is gated or private: {files}").format(repo=repo, files=names)
                steps.append(format_gated_repo_step(repo, f"rlbox fetch {target}"))
        lines.append(lost if gone else names)
        lines += [f"  {one.mirror}: {one.reason}" for one in tries]
        steps += [f"rlbox lock {target} --upgrade {artifact.name}" for artifact in files if gone]
    count = len(failures)
    return WorkFailed(
        ngettext("{count} file cannot be fetched\n{lines}", "{count} files cannot be fetched\n{lines}", count).format(
            count=count, lines=join("\n", (join("", ("  ", line)) for line in lines))
        ),
        next_step=join(" && ", dict.fromkeys(steps))
        or _("check the network, then continue with: rlbox fetch {target}").format(target=target),
    )


def _has_hub_lost(kind: ArtifactKind, tries: Iterable[FailedAttempt]) -> bool:
    """Return whether the hub and its mirrors say so, those that answer; ModelScope need not have what the hub has."""
    asked = [one for one in tries if kind == "modelscope" or one.mirror != MODELSCOPE_MIRROR]
    statuses = {one.http_status for one in asked if one.http_status}
    return bool(statuses) and statuses <= {404, 410}


def format_gated_repo_step(repo: str, command: str) -> str:
    return _(
        "accept the terms at {url}, write HF_TOKEN of an account with access into .env or export it, then: {command}"
    ).format(url=f"{HUB_URL}/{repo}", command=command)


@dataclass(frozen=True, kw_only=True)
class GroupSize:
    """The files of one layer group; a file that two groups share counts in the first."""

    group: str
    files: int
    bytes: int
    present_files: int
    present_bytes: int
    missing_bytes: int


def measure_groups_and_total(files: Iterable[Artifact], is_present: Callable[[str], bool]) -> tuple[GroupSize, ...]:
    """Return a row for each group in the order of `files`, and their sum."""
    first_by_sha256: dict[str, Artifact] = {}
    for file in files:
        first_by_sha256.setdefault(file.sha256, file)
    everything = list(first_by_sha256.values())
    names = dict.fromkeys(file.group for file in everything)
    rows = [_measure(name, [file for file in everything if file.group == name], is_present) for name in names]
    return (*rows, _measure("total", everything, is_present))


def _measure(group: str, files: Sequence[Artifact], is_present: Callable[[str], bool]) -> GroupSize:
    present = [file for file in files if is_present(file.sha256)]
    total, present_bytes = (sum(file.size for file in row) for row in (files, present))
    return GroupSize(
        group=group,
        files=len(files),
        bytes=total,
        present_files=len(present),
        present_bytes=present_bytes,
        missing_bytes=total - present_bytes,
    )


def format_group_sizes(groups_and_total: Sequence[GroupSize]) -> str:
    rows = [tuple(map(translate, (_("group"), _("files"), _("size"), _("present"), _("missing"))))]
    for row in groups_and_total:
        sizes = (decimal_size_text(size) for size in (row.bytes, row.present_bytes, row.missing_bytes))
        group = translate(_("total")) if row is groups_and_total[-1] else row.group
        rows.append((group, str(row.files), *sizes))
    widths = (6, 10, 10, 10)
    return "\n".join(
        " ".join(
            [
                pad_translated(group, 16),
                *(" " * (w - count_columns(text)) + text for text, w in zip(rest, widths, strict=True)),
            ]
        )
        for group, *rest in rows
    )
