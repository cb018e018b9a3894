"""The bundle of a run: which files it takes, what it says before them, and one archive, masked once more."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import itertools
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from rlbox.diagnose.first_fatal import LogFailure, find_first_fatal, format_excerpt, read_fatal_line, read_last_lines
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.names import EVIDENCE_FOLDER, FATAL_FILE
from rlbox.record.state import RunState, StageState, find_run_cause
from rlbox.secrets.masks import SecretMasker
from rlbox.secrets.url_credentials import mask_credentials
from rlbox.supervise.evidence import (
    Collector,
    collect_disk_text,
    collect_gpu_text,
    collect_limits_text,
    collect_system_text,
    collect_texts,
)
from rlbox.system.files import open_atomic, require_writable_file
from rlbox.system.safe_files import find_files_named, is_regular_file, open_regular_file, read_bytes, walk_files

LOG_TAIL_BYTES = 20 * 1000 * 1000
"""What is kept of a longer log: its end; the part around its first fatal line is kept in a file of its own."""

_FILE_BYTES = 8 * 1000 * 1000
_COUNT = 2000
_TEXTS = frozenset({
    ".cfg", ".csv", ".err", ".html", ".ini", ".json", ".jsonl", ".lock", ".log", ".md", ".out", ".png", ".py", ".sh",
    ".svg", ".times", ".toml", ".txt", ".yaml", ".yml",
})  # fmt: skip
_LOGS = frozenset({".log", ".err", ".out"})
_SECRETS = frozenset({".env", ".netrc", ".git-credentials", "auth_token", "id_rsa", "id_ed25519"})


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """A file below a run directory: its path there with `/`, and its bytes; `plain` is False for links and pipes."""

    name: str
    bytes: int
    plain: bool = True


@dataclass(frozen=True, kw_only=True)
class SelectedFile:
    """A file that is taken: its last `keep` bytes of `bytes`."""

    name: str
    bytes: int
    keep: int

    @property
    def is_log(self) -> bool:
        """Whether it is a log, in which fatal lines are looked for."""
        return is_log(self.name)


@dataclass(frozen=True, kw_only=True)
class SkippedFile:
    """A file that is left out, and why."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a bundle takes and leaves out, both in order of their names."""

    taken: tuple[SelectedFile, ...]
    left: tuple[SkippedFile, ...]


def select_files(files: Iterable[RunFile], *, full: bool) -> Selection:
    """Return what a bundle takes of a run's `files`: what it is about and can be read, never models or checkpoints.

    Parameters
    ----------
    full
        Take logs whole, however long they are.
    """
    taken: list[SelectedFile] = []
    left: list[SkippedFile] = []
    for file in sorted(files, key=lambda file: file.name):
        why = _refusal(file) or ("more than 2000 files" if len(taken) >= _COUNT else "")
        if why:
            left.append(SkippedFile(name=file.name, bytes=file.bytes, why=why))
            continue
        keep = file.bytes if full or not is_log(file.name) else min(file.bytes, LOG_TAIL_BYTES)
        taken.append(SelectedFile(name=file.name, bytes=file.bytes, keep=keep))
    return Selection(taken=tuple(taken), left=tuple(left))


def is_log(name: str) -> bool:
    """Whether a file is a log by its name."""
    return PurePosixPath(name).suffix in _LOGS


def _refusal(file: RunFile) -> str:
    path = PurePosixPath(file.name)
    if not file.plain:
        return "a link or a special file"
    if path.name in _SECRETS:
        return "may hold secrets"
    if path.name.startswith("."):
        return "a file of rlbox's own, or hidden"
    if path.suffix not in _TEXTS and EVIDENCE_FOLDER not in path.parts:
        return "no text of a known kind: perhaps a model, a checkpoint or data"
    if file.bytes > _FILE_BYTES and not is_log(file.name):
        return "larger than 8 MB"
    return ""


SUMMARY = "SUMMARY.md"
LAST_LINES = 500
"""Lines of each log of the last stage that a helper asks for first."""

_GATHER_S = 8.0
_LEFT = 20


def build_bundle_texts(run_dir: Path, run_id: str, state: RunState | None, selection: Selection) -> dict[str, str]:
    """Return the texts of a bundle (name to text): the summary, then what it rests on."""
    logs = [taken.name for taken in selection.taken if taken.is_log]
    last = _last_stage(state)
    errors = [text for log in logs if (text := _error(run_dir, log, state))]
    errors += [text for path in find_files_named(run_dir, f"{EVIDENCE_FOLDER}/{FATAL_FILE}") if (text := _text(path))]
    tails = {log: read_last_lines(run_dir / log, LAST_LINES) for log in logs if last and log.startswith(f"{last}/")}
    now = collect_texts(_parts(run_dir), _GATHER_S)
    absent = "".join(f"{name}: {why}\n" for name, why in now.missing.items())
    return {
        SUMMARY: "\n".join(_summary(run_id, state, selection)) + "\n",
        "errors.txt": "\n".join(errors) or "no log holds a line that looks fatal\n",
        "last-lines.txt": "\n".join(f"==> {log} <==\n{text}" for log, text in tails.items()) or "no stage has begun\n",
        **now.texts,
        **({"now/missing.txt": absent} if absent else {}),
    }


def _parts(run_dir: Path) -> dict[str, Collector]:
    return {
        "now/gpu.txt": collect_gpu_text,
        "now/system.json": collect_system_text,
        "now/disks.txt": lambda: collect_disk_text((run_dir, Path("/"))),
        "now/limits.json": collect_limits_text,
    }


def _last_stage(state: RunState | None) -> str:
    """Return the directory of the stage that the run ended in, or is at."""
    begun = [stage.directory for stage in state.stages if stage.started_at] if state else []
    return begun[-1] if begun else ""


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8", "replace")
    except OSError:
        return ""


def _error(run_dir: Path, log: str, state: RunState | None) -> str:
    """Return the first fatal line of a log with its context; not of a stage that passed, or has its evidence."""
    if is_regular_file((run_dir / log).parent.joinpath(EVIDENCE_FOLDER, FATAL_FILE)):
        return ""
    stage = next((s for s in state.stages if log.startswith(f"{s.directory}/")), None) if state else None
    if stage and stage.state == "passed":
        return ""
    spot = find_first_fatal(run_dir / log)
    return format_excerpt(LogFailure(log=log, line=read_fatal_line(run_dir / log, spot))) if spot else ""


def _summary(run_id: str, state: RunState | None, selection: Selection) -> Iterator[str]:
    yield f"# Bundle of run {run_id}"
    yield ""
    if state is None:
        yield "The run never began, or its state cannot be read: see run.json and events.jsonl."
    else:
        yield f"Job {state.job}, target {state.target}, profile {state.profile or 'none'}: **{state.state}**"
        yield ""
        yield from (_stage_row(stage) for stage in state.stages)
        yield from _cause_rows(state)
    yield ""
    yield "- [errors.txt](errors.txt): the first fatal line of each log, 100 lines around it"
    yield f"- [last-lines.txt](last-lines.txt): the last {LAST_LINES} lines of each log of the last stage"
    yield "- now/: GPUs, machine, disks and limits when this was made; stages/: logs and evidence"
    if selection.left:
        yield ""
        yield f"Left out: {len(selection.left)} files"
        yield from (f"- {left.name} ({left.bytes} bytes): {left.why}" for left in selection.left[:_LEFT])


def _stage_row(stage: StageState) -> str:
    page = f", see [REPORT.md]({stage.directory}/evidence/REPORT.md)" if stage.state == "failed" else ""
    return f"- stage {stage.name}: {stage.state}{page}"


def _cause_rows(state: RunState) -> Iterator[str]:
    cause = find_run_cause(state)
    rows: Mapping[str, str] = (
        {"Cause": cause.what, "Where": cause.where, "Line": cause.line, "Next step": cause.next_step} if cause else {}
    )
    if rows:
        yield ""
    yield from (f"- **{title}**: {text}" for title, text in rows.items() if text)


MANIFEST = "manifest.json"
_BLOCK = 1 << 20
_MEMORY = 4 << 20
_WALKED = 20_000
_LEVEL = 6

OnBytes = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class BundleEntry:
    """One file of a bundle: `bytes` and `sha256` as it is in there, `left_out` bytes of it that are not."""

    name: str
    bytes: int
    sha256: str
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What an archive holds, `manifest.json` last, and what it does not."""

    files: tuple[BundleEntry, ...]
    left: tuple[SkippedFile, ...]


def list_files(run_dir: Path) -> list[RunFile]:
    """Return the files below a run directory, links not followed; of a directory with very many, the first 20 000."""
    walked = itertools.islice(walk_files(run_dir), _WALKED)
    return [RunFile(name=name, bytes=facts.st_size, plain=stat.S_ISREG(facts.st_mode)) for name, facts in walked]


def require_bundle_path(run_dir: Path, out: Path) -> None:
    """Refuse a place for the bundle that cannot take it.

    Raises
    ------
    SpecError
        It is inside the run directory, which the bundle would then be a part of.
    NodeError
        As `check_output`.
    """
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(run_dir)):
        raise SpecError(
            _("the bundle would lie inside the run directory"),
            where=str(out),
            next_step=_("name another place with --out"),
        )
    require_writable_file(out, "another with --out")


def write_bundle(
    run_dir: Path, selection: Selection, texts: Mapping[str, str], out: Path, masks: SecretMasker, on_bytes: OnBytes
) -> Bundle:
    """Write the archive `out` and return what is in it, secrets masked in names as in contents.

    The same files give the same bytes. `texts` are further files (name to text) that come first.

    Raises
    ------
    NodeError
        The disk is full or cannot be written; nothing is left of the file.
    """
    rows: list[BundleEntry] = []
    with (
        open_atomic(out, 0) as file,
        gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        writer = _Writer(archive, run_dir.name, masks, out.parent)
        rows += [writer.add_text(name, text) for name, text in texts.items()]
        for taken in selection.taken:
            row = writer.add_file(run_dir / taken.name, taken, on_bytes)
            rows += [row] if row else []
        left = mask_file_names((*selection.left, *writer.unread), masks)
        manifest = {
            "schema": 1,
            "run": run_dir.name,
            "files": [vars(row) for row in rows],
            "left_out": [vars(each) for each in left],
        }
        rows.append(writer.add_text(MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"))
    return Bundle(files=tuple(rows), left=left)


def mask_file_names(skipped: Iterable[SkippedFile], masks: SecretMasker) -> tuple[SkippedFile, ...]:
    """Return files that are left out, with secrets masked in their names."""
    return tuple(dataclasses.replace(each, name=masks.mask_text(each.name)) for each in skipped)


class _Writer:
    def __init__(self, archive: tarfile.TarFile, folder: str, masks: SecretMasker, draft_folder: Path) -> None:
        self._archive = archive
        self._folder = folder
        self._masks = masks
        self._drafts = draft_folder
        self._names: set[str] = set()
        self.unread: list[SkippedFile] = []
        """What could not be read, or not to its end."""

    def add_text(self, name: str, text: str) -> BundleEntry:
        data = self._masks.mask_text(text).encode("utf-8", "replace")
        self._add(name, io.BytesIO(data), len(data))
        return BundleEntry(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def add_file(self, path: Path, taken: SelectedFile, on_bytes: OnBytes) -> BundleEntry | None:
        """Add the end of a file as long as it was when it was listed; None when it cannot be read."""
        try:
            source = open_regular_file(path)
        except OSError as error:
            self._miss(taken, error)
            return None
        digest = hashlib.sha256()
        # its size is known only once it is masked, and the archive wants it first
        with source, tempfile.SpooledTemporaryFile(_MEMORY, dir=str(self._drafts)) as draft:
            left_out = taken.bytes - taken.keep
            if left_out:
                left_out += _seek_line(source, left_out)
                note = f"=== rlbox: {left_out} bytes left out here; rlbox bundle --full keeps them ===\n".encode()
                draft.write(note)
                digest.update(note)
            for block in self._masked(self._blocks(source, taken, taken.bytes - left_out, on_bytes)):
                draft.write(block)
                digest.update(block)
            size = draft.tell()
            draft.seek(0)
            name = self._name(taken.name)
            self._add(name, draft, size)
        return BundleEntry(name=name, bytes=size, sha256=digest.hexdigest(), left_out=left_out)

    def _blocks(self, source: IO[bytes], taken: SelectedFile, size: int, on_bytes: OnBytes) -> Iterator[bytes]:
        while size > 0:
            try:
                block = source.read(min(_BLOCK, size))
            except OSError as error:
                self._miss(taken, error)
                return
            if not block:
                return
            size -= len(block)
            on_bytes(len(block))
            yield block

    def _masked(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        stream, rest = self._masks.open_stream(), b""
        for block in blocks:
            rest += stream.feed(block)
            end = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _BLOCK else 0)
            if end:
                yield _credentials(rest[:end])
                rest = rest[end:]
        yield _credentials(rest + stream.close())

    def _miss(self, taken: SelectedFile, error: OSError) -> None:
        self.unread.append(SkippedFile(name=taken.name, bytes=taken.bytes, why=f"cannot be read: {error.strerror}"))

    def _name(self, name: str) -> str:
        """Return a name with secrets masked, and unlike those before it, which may have been masked to the same."""
        found = masked = self._masks.mask_text(name)
        number = 1
        while found in self._names:
            number += 1
            found = f"{masked}~{number}"
        self._names.add(found)
        return found

    def _add(self, name: str, source: IO[bytes], size: int) -> None:
        info = tarfile.TarInfo(f"{self._folder}/{name}")
        info.size, info.mode = size, 0o644
        self._archive.addfile(info, source)


def _credentials(data: bytes) -> bytes:
    return mask_credentials(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _seek_line(source: IO[bytes], offset: int) -> int:
    """Go to the line that begins at `offset` or after it; return how many bytes further that is."""
    source.seek(offset)
    further = len(source.readline(_BLOCK))
    source.seek(offset + further)
    return further
