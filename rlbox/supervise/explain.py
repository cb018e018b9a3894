"""Explain a failed stage, and keep what explains it in its folder `evidence/`, with secrets masked."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.diagnose.cause import EXHAUSTION_KINDS, Cause, CauseKind, make_disk_full_cause
from rlbox.diagnose.first_fatal import (
    LogFailure,
    find_known_cause,
    find_responsible_line,
    format_excerpt,
    read_log_failures,
)
from rlbox.hang.evidence import write_hang_page
from rlbox.job.names import EVIDENCE_FOLDER, FATAL_FILE, REPORT_PAGE
from rlbox.secrets.masks import SecretMasker
from rlbox.supervise.evidence_contents import FILE_DESCRIPTIONS, failure_facts, list_collectors
from rlbox.supervise.failure_report import make_report, report_page
from rlbox.supervise.gather import collect_texts
from rlbox.supervise.snapshot import StageFailure
from rlbox.system.files import is_disk_full
from rlbox.system.safe_files import force_directories, open_regular_file, replace_file, walk_files

GATHER_S = 10.0
"""How long the machine is asked; with the snapshot before the stage was stopped, evidence takes 15 s at most."""

_LINE_LIMIT = 1000
_QUOTED: frozenset[CauseKind] = frozenset({"exit", "ray", "service", "ready", "oom"})
"""Causes whose own sentence says what ended, not why; the logs say why."""
_STOPPED: frozenset[CauseKind] = frozenset({"silence", "total", "within", "busy", "throttled"})
"""Causes by a limit: a rank that failed may be why the others wait, but a log's last line is no reason."""
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "[Errno 28]")

MANIFEST_FILE = "manifest.json"
_BLOCK = 1 << 20
_SUMMED_BYTES = 4 << 30
_MOST_FILES = 10_000


@dataclass(frozen=True, kw_only=True)
class FailureAnalysis:
    """A failure with its `cause`, the fatal lines of all logs by time, and which of them is the cause's."""

    cause: Cause
    fatals: tuple[LogFailure, ...] = ()
    quoted: LogFailure | None = None


def explain_failure(failure: StageFailure) -> FailureAnalysis:
    """Return the cause with the line that shows it quoted as `where:NUMBER`, and the fatal lines of all logs.

    A log without any fatal line is quoted by its last line. A fatal line that speaks of a full disk becomes the cause.
    One that the fix catalogue knows gets its remedy as the next step.
    """
    cause = failure.cause
    fatals = read_log_failures(failure.run_dir, failure.fatals)
    quoted = None
    if cause.kind in _QUOTED or (cause.kind in _STOPPED and any(fatal.grade == "fatal" for fatal in fatals)):
        quoted = find_responsible_line(cause, fatals, failure.run_dir)
    if quoted is None:
        return FailureAnalysis(cause=_with_known(cause, failure.run_dir), fatals=fatals)
    if any(text in quoted.line.text for text in _NO_SPACE):
        free = failure.snapshot.free_bytes if failure.snapshot else {}
        folder = failure.plan.paths.data
        cause = make_disk_full_cause(folder, free.get(folder, 0))
    line = failure.masks.text(quoted.line.text)[:_LINE_LIMIT]
    cause = dataclasses.replace(cause, where=f"{quoted.log}:{quoted.line.number}", line=line)
    if known := quoted.known:
        own = cause.next_step if cause.kind in EXHAUSTION_KINDS else ""
        cause = dataclasses.replace(cause, known=known.id, next_step=own or known.remedy)
    return FailureAnalysis(cause=cause, fatals=fatals, quoted=quoted)


def _with_known(cause: Cause, run_dir: Path) -> Cause:
    """Return a cause that quotes a line of its own, with what the catalogue knows of that line."""
    known = find_known_cause(cause.line, run_dir) if cause.line else None
    if not known:
        return cause
    return dataclasses.replace(cause, known=known.id, next_step=cause.next_step or known.remedy)


def write_evidence(failure: StageFailure, explained: FailureAnalysis) -> Path:
    """Gather the evidence of a failed stage, write it with its report and manifest, and return the folder.

    What cannot be gathered or written is named in the manifest. On a full disk the report comes first.

    Raises
    ------
    OSError
        Not even the report could be written.
    """
    folder = force_directories(failure.run_dir, f"{failure.stage.directory}/{EVIDENCE_FOLDER}")
    gathered = collect_texts(list_collectors(failure), GATHER_S)
    report = make_report(failure, explained.cause, explained.fatals, gathered)
    found = explained.fatals or ((explained.quoted,) if explained.quoted else ())
    texts = {
        REPORT_PAGE: report_page(report),
        "REPORT.json": report.as_json(),
        FATAL_FILE: "\n".join(format_excerpt(fatal) for fatal in found),
        "facts.json": json.dumps(failure_facts(failure, explained.cause, gathered), indent=1, ensure_ascii=False)
        + "\n",
        **gathered.texts,
    }
    problems = write_texts(folder, {name: failure.masks.text(text) for name, text in texts.items()})
    with contextlib.suppress(OSError):  # the disk is full; the report is there
        write_hang_page(folder)
        write_manifest(folder, FILE_DESCRIPTIONS, {**gathered.missing, **problems}, failure.masks)
    return folder


def write_texts(folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Write `texts` (name below `folder` to text), empty ones left out; return why some were not written, by name.

    On a full disk what comes first is there and the rest is not, never a part of a file.

    Raises
    ------
    OSError
        Not even the first could be written.
    """
    problems: dict[str, str] = {}
    full = ""
    for number, (name, text) in enumerate(texts.items()):
        if full or not text:
            problems |= {name: full} if text else {}
            continue
        try:
            force_directories(folder, str(Path(name).parent))
            replace_file(folder / name, text.encode("utf-8", "replace"))
        except OSError as error:
            if number == 0:
                raise
            problems[name] = error.strerror or str(error)
            full = problems[name] if is_disk_full(error) else ""
    return problems


def write_manifest(folder: Path, what: Mapping[str, str], missing: Mapping[str, str], masks: SecretMasker) -> None:
    """Write `manifest.json`: `files` (name, bytes, sha256, what it is) and `missing` (name to why it is not there).

    Every file of the folder is named, also those that others put there, with secrets masked; of what is larger than
    all evidence may be there is no sum.
    """
    rows, left = [], _SUMMED_BYTES
    for name, facts in sorted(itertools.islice(_files(folder), _MOST_FILES)):
        summed = facts.st_size <= left
        left -= facts.st_size if summed else 0
        row = {"name": name, "bytes": facts.st_size, "sha256": _sum(folder / name) if summed else ""}
        rows.append({**row, "what": describe_file(what, name)})
    data = {"schema": 1, "files": rows, "missing": dict(sorted(missing.items()))}
    replace_file(folder / MANIFEST_FILE, (json.dumps(masks.tree(data), indent=1, ensure_ascii=False) + "\n").encode())


def describe_file(what: Mapping[str, str], name: str) -> str:
    """Return what a file is, by its name or by that of the folder it is in."""
    return what.get(name) or what.get(name.partition("/")[0], "")


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for name, facts in walk_files(folder):
        last = name.rpartition("/")[2]
        if stat.S_ISREG(facts.st_mode) and not last.startswith(".") and last != MANIFEST_FILE:
            yield name, facts


def _sum(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open_regular_file(path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()
