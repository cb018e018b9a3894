"""Explain a failed stage, and keep what explains it in its folder `evidence/`, with secrets masked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.amounts import decimal_size_text, gpu_memory_text
from rlbox.diagnose.cause import EXHAUSTION_KINDS, Cause, CauseKind, describe_exit, make_disk_full_cause
from rlbox.diagnose.first_fatal import (
    LogFailure,
    find_known_cause,
    find_or_read_responsible_failure,
    format_excerpt,
    format_utc,
    read_log_failure,
    read_stored_run_signatures,
    sort_failures_by_time,
)
from rlbox.hang.evidence import write_hang_markdown
from rlbox.job.names import EVIDENCE_FOLDER, FATAL_FILE, REPORT_PAGE
from rlbox.record.state import read_events
from rlbox.secrets.masks import SecretMasker
from rlbox.supervise.evidence import (
    FILE_DESCRIPTIONS,
    CollectedTexts,
    MachineSnapshot,
    StageFailure,
    build_failure_facts,
    collect_texts,
    list_collectors,
)
from rlbox.system.files import compute_file_sha256, is_disk_full
from rlbox.system.safe_files import make_directories_replacing_non_directories, replace_file, walk_files

_LINE = 300
_STORY = 30
_NEAR = 4
"""Lines around the fatal one that the page shows; `first_fatal.txt` has a hundred."""

_ROWS = 12
_FATALS = 4
_BY_SIGNATURE: frozenset[CauseKind] = frozenset({"exit", "ray", "service", "ready", "silence", "total"})
"""Causes that say what ended, not why."""


@dataclass(frozen=True, kw_only=True)
class _FatalEntry:
    """The first fatal line of one log; `at` is UTC to a second, empty when not noted; `known` is the id of a fix."""

    log: str
    number: int
    text: str
    at: str = ""
    grade: str = "fatal"
    known: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """Something that happened: when (UTC), what, and in which log."""

    at: str
    what: str
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """What a failed stage's `REPORT.json` holds; `next_step` is empty when nobody knows one.

    `fatals` and `story` are ordered by time, the earliest first. `looked_at` says what the answer rests on, `machine`
    what the machine looked like.
    """

    run_id: str
    job: str
    target: str
    place: str
    profile: str
    attempt: int
    stage: str
    directory: str
    job_id: str
    started_at: str
    ended_at: str
    exit_code: int | None
    ray_status: str
    cause: Cause
    known_title: str
    next_step: str
    fatals: tuple[_FatalEntry, ...]
    story: tuple[TimelineEntry, ...]
    broken: tuple[str, ...]
    machine: tuple[str, ...]
    looked_at: tuple[str, ...]
    schema: int = 1

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"


def build_report(
    failure: StageFailure, cause: Cause, fatals: Sequence[LogFailure], gathered: CollectedTexts
) -> FailureReport:
    """Return the report of a failure whose `cause` is explained and whose parts are `gathered`."""
    stage, plan, state = failure.stage, failure.plan, failure.state
    title = next((fatal.known.title for fatal in fatals if fatal.known and fatal.known.fix == cause.known), "")
    return FailureReport(
        run_id=plan.run_id,
        job=plan.job,
        target=plan.target,
        place=plan.place,
        profile=plan.profile,
        attempt=plan.attempt,
        stage=stage.name,
        directory=stage.directory,
        job_id=stage.ray.submission_id if stage.ray else "",
        started_at=failure.started_at,
        ended_at=failure.ended_at,
        exit_code=state.exit_code,
        ray_status=state.ray_status,
        cause=cause,
        known_title=title,
        next_step=cause.next_step,
        fatals=tuple(_row(fatal, failure.masks) for fatal in fatals),
        story=_story(failure, cause, fatals),
        broken=tuple(
            _shown(f"{rule.kind}: {rule.rule}: {rule.seen}", failure.masks)
            for rule in state.gate
            if rule.state == "broken"
        ),
        machine=_machine(failure.snapshot),
        looked_at=_looked_at(failure, fatals, gathered),
    )


def _row(fatal: LogFailure, masks: SecretMasker) -> _FatalEntry:
    return _FatalEntry(
        log=fatal.log,
        number=fatal.number,
        text=_shown(fatal.text, masks),
        at=format_utc(fatal.time_unix) if fatal.time_unix is not None else "",
        grade=fatal.grade,
        known=fatal.known.fix if fatal.known else "",
        before=tuple(_shown(text, masks) for text in fatal.before[-_NEAR:]),
        after=tuple(_shown(text, masks) for text in fatal.after[:_NEAR]),
    )


def _shown(text: str, masks: SecretMasker) -> str:
    return masks.mask_text(text)[:_LINE]  # in this order: half a secret would not be masked


def _story(failure: StageFailure, cause: Cause, fatals: Iterable[LogFailure]) -> tuple[TimelineEntry, ...]:
    """Return what the journal noted of this attempt of the stage and the fatal lines, by time."""
    stage, begun = failure.stage.name, failure.started_at
    moments = [
        TimelineEntry(at=event["t"], what=what)
        for event in read_events(failure.run_dir)
        if event.get("stage") == stage and str(event.get("t", "")) >= begun and (what := _told(event))
    ]
    for fatal in fatals:
        if fatal.time_unix is not None:
            where = f"{fatal.log}:{fatal.number}"
            moments.append(
                TimelineEntry(at=format_utc(fatal.time_unix), what=_shown(fatal.text, failure.masks), where=where)
            )
    moments.append(TimelineEntry(at=failure.ended_at, what=f"stopped: {failure.cause.what}"))
    return tuple(sorted(moments, key=lambda moment: moment.at[:19])[-_STORY:])


def _told(event: dict[str, Any]) -> str:
    match event.get("event"):
        case "stage":
            return f"stage {event.get('state')}"
        case "service":
            return f"service {event.get('service')} {event.get('state')}"
        case "phase":
            return f"phase {event.get('phase')}"
        case "forbidden":
            return f"forbidden line {event.get('number')} of log {event.get('log')}"
        case "noted":
            return f"line {event.get('number')} of log {event.get('log')}, forbidden, of a process that went on"
        case "log-restored" | "log-emptied" | "left-running":
            return str(event["event"]).replace("-", " ")
        case _:
            return ""


def _machine(snapshot: MachineSnapshot | None) -> tuple[str, ...]:
    if snapshot is None:
        return ()
    rows = [f"taken {snapshot.taken_at}, {len(snapshot.processes)} processes of the run"]
    memory = snapshot.memory
    if memory.used_bytes is not None:
        of = f" of {decimal_size_text(memory.limit_bytes)}" if memory.limit_bytes else ", no limit"
        rows.append(
            f"memory {decimal_size_text(memory.used_bytes)}{of}; ended for memory by the kernel: {memory.kills}"
        )
    rows += [f"{decimal_size_text(free)} free at {folder}" for folder, free in snapshot.free_bytes.items()]
    rows += [f"port {port}: {holder or 'nobody'}" for port, holder in snapshot.ports.items()]
    own = {process.pid for process in snapshot.processes}
    for gpu in snapshot.gpus:
        others = [str(pid) for pid in gpu.processes if pid not in own]
        also = f"; also used by {', '.join(others)}" if others else ""
        used = f"{gpu_memory_text(gpu.memory_bytes)} of {gpu_memory_text(gpu.total_bytes)}"
        rows.append(f"GPU {gpu.index} {gpu.name}: {used}, {gpu.utilization} %, {gpu.power_w:.0f} W{also}")
    if snapshot.ray:
        rows.append(f"Ray at {snapshot.ray.get('dashboard')}: {snapshot.ray.get('error') or 'answered'}")
    return tuple(rows)


def _looked_at(failure: StageFailure, fatals: Sequence[LogFailure], gathered: CollectedTexts) -> tuple[str, ...]:
    names = [f"{service.name}.log" for service in failure.stage.services]
    known = len(read_stored_run_signatures(failure.run_dir).signatures)
    rows = [
        f"logs: {', '.join(['stage.log', *names])}; {len(fatals)} of them with a fatal line",
        f"{known} signatures of the fix catalogue against each fatal line and its traceback",
    ]
    return (
        *rows,
        *(f"{FILE_DESCRIPTIONS.get(name, name)}: not there ({why})" for name, why in gathered.missing.items()),
    )


def render_markdown_report(report: FailureReport) -> str:
    """Return the report as a page of Markdown: the answer first, then what it rests on."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: FailureReport) -> Iterator[str]:
    yield f"# {report.stage} failed: {report.cause.what}"
    yield ""
    yield from _answer(report)
    yield ""
    yield "## What happened, earliest first"
    yield ""
    for moment in report.story[-_ROWS:]:
        where = f" ({moment.where})" if moment.where else ""
        yield f"- {moment.at[11:19]} {_code(moment.what) if moment.where else moment.what}{where}"
    if report.fatals:
        yield ""
        yield "## First fatal line of each log"
        for fatal in report.fatals[:_FATALS]:
            yield from _fatal(fatal)
    yield from _section("Gate rules that were broken", report.broken)
    yield from _section("The machine when it failed", report.machine)
    yield from _section("What this rests on", report.looked_at)
    yield ""
    names = ("first_fatal.txt", "facts.json", "environment.txt", "packages.txt", "manifest.json")
    yield f"Beside this page: {', '.join(f'[{name}]({name})' for name in names)}."


def _answer(report: FailureReport) -> Iterator[str]:
    cause = report.cause
    yield f"- **Run**: {report.run_id}, job {report.job}, target {report.target}"
    yield f"- **Time**: {report.started_at} to {report.ended_at}"
    if report.job_id:
        yield f"- **Ray job**: {report.job_id}, {report.ray_status or 'status not told'}"
    if report.exit_code is not None:
        yield f"- **Exit**: {describe_exit(report.exit_code)}"
    if cause.where:
        yield f"- **Where**: [{cause.where}](../../../{cause.where.partition(':')[0]})"
    if cause.waits:
        yield f"- **Waits for**: {_code(cause.waits)}" + (" ([HANG.md](HANG.md))" if cause.report else "")
    if cause.line:
        yield f"- **First fatal line**: {_code(cause.line)}"
    if cause.known:
        yield f"- **Known cause**: {cause.known}: {report.known_title}"
    elif cause.kind in _BY_SIGNATURE:
        yield "- **Known cause**: unknown: the fix catalogue has no signature for this"
    yield f"- **Next step**: {report.next_step or _honest(report)}"


def _honest(report: FailureReport) -> str:
    where = report.cause.where or report.directory
    return f"none is known; read the lines around {where} in first_fatal.txt, and send `rlbox bundle {report.run_id}`"


def _fatal(fatal: _FatalEntry) -> Iterator[str]:
    known = f", known as {fatal.known}" if fatal.known else ""
    yield ""
    yield f"{fatal.log}:{fatal.number}{f', {fatal.at}' if fatal.at else ''}{known}"
    yield ""
    yield "```text"
    yield from (_plain(text) for text in fatal.before)
    yield f"> {_plain(fatal.text)}"
    yield from (_plain(text) for text in fatal.after)
    yield "```"


def _section(title: str, rows: tuple[str, ...]) -> Iterator[str]:
    if rows:
        yield ""
        yield f"## {title}"
        yield ""
        yield from (f"- {row}" for row in rows)


def _code(text: str) -> str:
    return f"`{_plain(text).replace('`', chr(39))}`"


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text).replace("```", "'''")


GATHER_S = 10.0
"""How long the machine is asked; with the snapshot before the stage was stopped, evidence takes 15 s at most."""

_LINE_LIMIT = 1000
_QUOTED: frozenset[CauseKind] = frozenset({"exit", "ray", "service", "ready", "oom"})
"""Causes whose own sentence says what ended, not why; the logs say why."""
_STOPPED: frozenset[CauseKind] = frozenset({"silence", "total", "within", "busy", "throttled"})
"""Causes by a limit: a rank that failed may be why the others wait, but a log's last line is no reason."""
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "[Errno 28]")

MANIFEST_FILE = "manifest.json"


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
    fatals = sort_failures_by_time([read_log_failure(failure.run_dir, *one) for one in failure.fatals.items()])
    quoted = None
    if cause.kind in _QUOTED or (cause.kind in _STOPPED and any(fatal.grade == "fatal" for fatal in fatals)):
        quoted = find_or_read_responsible_failure(cause, fatals, failure.run_dir)
    if quoted is None:
        return FailureAnalysis(cause=_with_known(cause, failure.run_dir), fatals=fatals)
    if any(text in quoted.text for text in _NO_SPACE):
        free = failure.snapshot.free_bytes if failure.snapshot else {}
        folder = failure.plan.paths.data
        cause = make_disk_full_cause(folder, free.get(folder, 0))
    line = failure.masks.mask_text(quoted.text)[:_LINE_LIMIT]
    cause = dataclasses.replace(cause, where=f"{quoted.log}:{quoted.number}", line=line)
    if known := quoted.known:
        own = cause.next_step if cause.kind in EXHAUSTION_KINDS else ""
        cause = dataclasses.replace(cause, known=known.fix, next_step=own or known.remedy)
    return FailureAnalysis(cause=cause, fatals=fatals, quoted=quoted)


def _with_known(cause: Cause, run_dir: Path) -> Cause:
    """Return a cause that quotes a line of its own, with what the catalogue knows of that line."""
    known = find_known_cause(cause.line, run_dir) if cause.line else None
    if not known:
        return cause
    return dataclasses.replace(cause, known=known.fix, next_step=cause.next_step or known.remedy)


def write_evidence_folder(failure: StageFailure, explained: FailureAnalysis) -> Path:
    """Gather the evidence of a failed stage, write it with its report and manifest, and return the folder.

    What cannot be gathered or written is named in the manifest. On a full disk the report comes first.

    Raises
    ------
    OSError
        Not even the report could be written.
    """
    folder = make_directories_replacing_non_directories(failure.run_dir, f"{failure.stage.directory}/{EVIDENCE_FOLDER}")
    gathered = collect_texts(list_collectors(failure), GATHER_S)
    report = build_report(failure, explained.cause, explained.fatals, gathered)
    found = explained.fatals or ((explained.quoted,) if explained.quoted else ())
    texts = {
        REPORT_PAGE: render_markdown_report(report),
        "REPORT.json": report.as_json(),
        FATAL_FILE: "\n".join(format_excerpt(fatal) for fatal in found),
        "facts.json": json.dumps(build_failure_facts(failure, explained.cause, gathered), indent=1, ensure_ascii=False)
        + "\n",
        **gathered.texts,
    }
    problems = write_texts_and_list_problems(
        folder, {name: failure.masks.mask_text(text) for name, text in texts.items()}
    )
    with contextlib.suppress(OSError):  # the disk is full; the report is there
        write_hang_markdown(folder)
        write_manifest(folder, FILE_DESCRIPTIONS, {**gathered.missing, **problems}, failure.masks)
    return folder


def write_texts_and_list_problems(folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
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
            make_directories_replacing_non_directories(folder, str(Path(name).parent))
            replace_file(folder / name, text.encode("utf-8", "replace"))
        except OSError as error:
            if number == 0:
                raise
            problems[name] = error.strerror or str(error)
            full = problems[name] if is_disk_full(error) else ""
    return problems


def write_manifest(
    folder: Path, descriptions: Mapping[str, str], missing: Mapping[str, str], masks: SecretMasker
) -> None:
    """Write `manifest.json`: `files` (name, bytes, sha256, what it is) and `missing` (name to why it is not there).

    Every file of the folder is named, also those that others put there, with secrets masked.
    """
    rows = [
        {
            "name": name,
            "bytes": facts.st_size,
            "sha256": _sum(folder / name),
            "what": _describe_file(descriptions, name),
        }
        for name, facts in sorted(_files(folder))
    ]
    data = {"schema": 1, "files": rows, "missing": dict(sorted(missing.items()))}
    replace_file(
        folder / MANIFEST_FILE, (json.dumps(masks.mask_json(data), indent=1, ensure_ascii=False) + "\n").encode()
    )


def _describe_file(descriptions: Mapping[str, str], name: str) -> str:
    """Return what a file is, by its name or by that of the folder it is in."""
    return descriptions.get(name) or descriptions.get(name.partition("/")[0], "")


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for name, facts in walk_files(folder):
        last = name.rpartition("/")[2]
        if stat.S_ISREG(facts.st_mode) and not last.startswith(".") and last != MANIFEST_FILE:
            yield name, facts


def _sum(path: Path) -> str:
    with contextlib.suppress(OSError):
        return compute_file_sha256(path)
    return ""
