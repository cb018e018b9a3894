"""The bundle of a run: one archive of its logs, evidence and configuration, secrets masked once more."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from rlbox.diagnose.first_fatal import find_first_fatal, format_excerpt, read_log_failure
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.names import EVIDENCE_FOLDER, FATAL_FILE
from rlbox.record.state import RunState, find_run_cause
from rlbox.secrets.masks import SecretMasker
from rlbox.secrets.url_credentials import mask_url_and_header_credentials
from rlbox.system.files import open_locked_atomic, require_replaceable_or_creatable_file
from rlbox.system.safe_files import open_regular_file, read_bytes, walk_non_directories

SUMMARY = "SUMMARY.md"
LOG_TAIL_BYTES = 20 * 1000 * 1000
"""What is kept of a longer log: its end; `errors.txt` has the part around its first fatal line."""

_FILE_BYTES = 8 * 1000 * 1000
_MOST_FILES = 20_000
_MOST_TAKEN = 2000
_MOST_LISTED = 20
_BLOCK = 1 << 20
_MEMORY = 4 << 20
_TEXTS = frozenset({
    ".cfg", ".csv", ".err", ".html", ".ini", ".json", ".jsonl", ".lock", ".log", ".md", ".out", ".png", ".py", ".sh",
    ".svg", ".times", ".toml", ".txt", ".yaml", ".yml",
})  # fmt: skip
_LOGS = frozenset({".log", ".err", ".out"})
_SECRETS = frozenset({".env", ".netrc", ".git-credentials", "auth_token", "id_rsa", "id_ed25519"})


@dataclass(frozen=True, kw_only=True)
class _SelectedFile:
    """A file by its path below the run directory: the last `keep_last_bytes` of its `bytes` are taken."""

    name: str
    bytes: int
    keep_last_bytes: int


@dataclass(frozen=True, kw_only=True)
class SkippedFile:
    name: str
    bytes: int
    why: str


@dataclass(frozen=True, kw_only=True)
class BundleEntry:
    name: str
    bytes: int
    sha256: str
    left_out: int = 0


class Selection(NamedTuple):
    taken: list[_SelectedFile]
    skipped: list[SkippedFile]


def select_bundle_files(run_dir: Path, *, whole_logs: bool) -> Selection:
    taken, left = list[_SelectedFile](), list[SkippedFile]()
    for name, facts in sorted(itertools.islice(walk_non_directories(run_dir), _MOST_FILES)):
        size = facts.st_size
        why = _find_skip_reason(name, facts) or (_("more than 2000 files") if len(taken) >= _MOST_TAKEN else "")
        if why:
            left.append(SkippedFile(name=name, bytes=size, why=why))
        else:
            keep = size if whole_logs or not _is_log(name) else min(size, LOG_TAIL_BYTES)
            taken.append(_SelectedFile(name=name, bytes=size, keep_last_bytes=keep))
    return Selection(taken, left)


def _is_log(name: str) -> bool:
    return PurePosixPath(name).suffix in _LOGS


def _find_skip_reason(name: str, facts: os.stat_result) -> str:
    path = PurePosixPath(name)
    if not stat.S_ISREG(facts.st_mode):
        return _("a link or a special file")
    if path.name in _SECRETS:
        return _("may hold secrets")
    if path.name.startswith("."):
        return _("a file of rlbox's own, or hidden")
    if path.suffix not in _TEXTS and EVIDENCE_FOLDER not in path.parts:
        return _("no text of a known kind: perhaps a model, a checkpoint or data")
    return _("larger than 8 MB") if facts.st_size > _FILE_BYTES and not _is_log(name) else ""


def require_writable_path_outside_run(run_dir: Path, out: Path) -> None:
    """Refuse a path that the bundle cannot be written to (`MachineError`), or that is inside the run (`SpecError`)."""
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(run_dir)):
        raise SpecError(
            _("the bundle would lie inside the run directory"),
            where=str(out),
            next_step=_("name another place with --out"),
        )
    require_replaceable_or_creatable_file(out, "--out")


def build_summary_and_errors_by_name(run_dir: Path, state: RunState | None, selection: Selection) -> dict[str, str]:
    names = [taken.name for taken in selection.taken]
    errors = [_read_error(run_dir, name, state) for name in names if _is_log(name)]
    for name in names:
        if name.endswith(f"{EVIDENCE_FOLDER}/{FATAL_FILE}"):
            with contextlib.suppress(OSError):
                errors.append(read_bytes(run_dir / name).decode("utf-8", "replace"))
    return {
        SUMMARY: "\n".join(_summary_lines(run_dir.name, state, selection)) + "\n",
        "errors.txt": "\n".join(filter(None, errors)) or "no log holds a line that looks fatal\n",
    }


def _read_error(run_dir: Path, log: str, state: RunState | None) -> str:
    has_passed = state and any(s.state == "passed" and log.startswith(f"{s.directory}/") for s in state.stages)
    if has_passed or (run_dir / log).parent.joinpath(EVIDENCE_FOLDER, FATAL_FILE).is_file():
        return ""
    position = find_first_fatal(run_dir / log)
    return format_excerpt(read_log_failure(run_dir, log, position)) if position else ""


def _summary_lines(run_id: str, state: RunState | None, selection: Selection) -> Iterator[str]:
    yield f"# Bundle of run {run_id}\n"
    if state is None:
        yield "The run never began, or its state cannot be read: see run.json and events.jsonl."
    else:
        yield f"Job {state.job}, target {state.target}, profile {state.profile or 'none'}: **{state.state}**\n"
        for stage in state.stages:
            page = f", see [REPORT.md]({stage.directory}/evidence/REPORT.md)" if stage.state == "failed" else ""
            yield f"- stage {stage.name}: {stage.state}{page}"
        if cause := find_run_cause(state):
            rows = {"Cause": cause.what, "Where": cause.where, "Line": cause.line, "Next step": cause.next_step}
            yield ""
            yield from (f"- **{title}**: {text}" for title, text in rows.items() if text)
    yield "\nSee [errors.txt](errors.txt): the first fatal line of each log, 100 lines around it."
    if selection.skipped:
        yield f"\nLeft out: {len(selection.skipped)} files"
        yield from (f"- {left.name} ({left.bytes} bytes): {left.why}" for left in selection.skipped[:_MOST_LISTED])


def write_bundle(
    run_dir: Path, selection: Selection, texts: Mapping[str, str], out: Path, masks: SecretMasker
) -> list[BundleEntry]:
    """Write the archive `out` with `texts` (name to text) first; return its files, secrets masked in all of it.

    Raises `MachineError` on a disk that is full; nothing is left of the file then.
    """
    with (
        open_locked_atomic(out, 0) as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        bundle = _MaskedArchive(archive, run_dir.name, masks, out.parent)
        for name, text in texts.items():
            bundle.add(name, io.BytesIO(text.encode("utf-8", "replace")))
        for taken in selection.taken:
            try:
                source = open_regular_file(run_dir / taken.name)
            except OSError:  # somebody removed it meanwhile
                continue
            with source:
                left_out = taken.bytes - taken.keep_last_bytes
                if left_out:
                    source.seek(left_out)
                    left_out += len(source.readline(_BLOCK))
                bundle.add(taken.name, source, left_out)
        manifest = {
            "schema": 1,
            "run": run_dir.name,
            "files": [vars(entry) for entry in bundle.entries],
            "left_out": masks.mask_json([vars(left) for left in selection.skipped]),
        }
        bundle.add("manifest.json", io.BytesIO(json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n"))
    return bundle.entries


class _MaskedArchive:
    def __init__(self, archive: tarfile.TarFile, top: str, masks: SecretMasker, draft_dir: Path) -> None:
        self.entries: list[BundleEntry] = []
        self._archive, self._top, self._masks, self._draft_dir = archive, top, masks, draft_dir

    def add(self, name: str, source: IO[bytes], left_out: int = 0) -> None:
        names = {entry.name for entry in self.entries}
        masked = self._masks.mask_text(name)
        candidates = itertools.chain([masked], (f"{masked}~{number}" for number in itertools.count(2)))
        name = next(each for each in candidates if each not in names)  # two names may be masked to the same
        # the size is known only once the content is masked, and the archive wants it first
        with tempfile.SpooledTemporaryFile(_MEMORY, dir=str(self._draft_dir)) as draft:
            digest = hashlib.sha256()
            for block in _mask_blocks(source, self._masks):
                draft.write(block)
                digest.update(block)
            info = tarfile.TarInfo(f"{self._top}/{name}")
            info.size, info.mode = draft.tell(), 0o644
            draft.seek(0)
            self._archive.addfile(info, draft)
        self.entries.append(BundleEntry(name=name, bytes=info.size, sha256=digest.hexdigest(), left_out=left_out))


def _mask_blocks(source: IO[bytes], masks: SecretMasker) -> Iterator[bytes]:
    """Yield the bytes of a file with secrets masked, in blocks of whole lines: half a URL would not be masked."""
    stream, rest = masks.create_mask_stream_keeping_url_credentials(), b""
    while block := source.read(_BLOCK):
        rest += stream.feed(block)
        end = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _BLOCK else 0)
        yield _mask_urls(rest[:end])
        rest = rest[end:]
    yield _mask_urls(rest + stream.close())


def _mask_urls(data: bytes) -> bytes:
    return mask_url_and_header_credentials(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
