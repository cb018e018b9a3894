"""Explain a failed stage, and keep what explains it in its folder `evidence/`, with secrets masked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.amounts import decimal_size_text, gpu_gib_or_mib_text
from rlbox.diagnose.api_names import format_missing_name_remedy_or_empty
from rlbox.diagnose.cause import EXHAUSTION_KINDS, Cause, CauseKind, describe_exit, make_disk_full_cause
from rlbox.diagnose.first_fatal import (
    LogFailure,
    find_failure_behind_cause_or_read_last_line,
    find_failure_signature_of_line,
    format_excerpt,
    format_utc_iso_seconds,
    read_log_failure,
    read_run_signatures_or_empty,
    sort_failures_by_time_services_first,
)
from rlbox.hang.evidence import write_hang_markdown_if_evidence
from rlbox.job.names import EVIDENCE_FOLDER, FATAL_FILE, REPORT_PAGE
from rlbox.record.state import iter_events_in_file_tail_or_nothing
from rlbox.secrets.masks import SecretMasker
from rlbox.supervise.evidence import (
    CollectedTexts,
    MachineSnapshot,
    StageFailure,
    build_failure_facts_json,
    collect_texts_within_time,
    failure_to_json,
    list_evidence_collectors,
)
from rlbox.system.files import compute_file_sha256, is_enospc_or_edquot
from rlbox.system.safe_files import make_directories_replacing_non_directories, replace_file, walk_non_directories

_LINE = 300
_STORY = 30
_NEAR = 4
"""Lines around the fatal one that the page shows; `first_fatal.txt` has a hundred."""

_ROWS = 12
_FATALS = 4
_BY_SIGNATURE: frozenset[CauseKind] = frozenset({"exit", "ray", "service", "ready", "silence", "total"})
"""Causes that say what ended, not why."""


def build_failure_report_json(
    failure: StageFailure, cause: Cause, fatals: Sequence[LogFailure], gathered: CollectedTexts
) -> dict[str, Any]:
    """Return what `REPORT.json` holds: `story` and `fatals` by time, `looked_at` what the answer rests on."""
    masks = failure.masks
    broken = [rule for rule in failure.state.gate if rule.state == "broken"]
    return {
        **failure_to_json(failure, cause),
        "place": failure.plan.place,
        "directory": failure.stage.directory,
        "known_title": next((f.known.title for f in fatals if f.known and f.known.fix == cause.known), ""),
        "next_step": cause.next_step,
        "fatals": [_describe_fatal(fatal, masks) for fatal in fatals],
        "story": _tell_story(failure, fatals),
        "broken": [_shown(f"{rule.kind}: {rule.rule}: {rule.seen}", masks) for rule in broken],
        "machine": _describe_machine(failure.snapshot),
        "looked_at": _looked_at(failure, fatals, gathered),
    }


def _describe_fatal(fatal: LogFailure, masks: SecretMasker) -> dict[str, Any]:
    return {
        "log": fatal.log,
        "number": fatal.number,
        "text": _shown(fatal.text, masks),
        "at": format_utc_iso_seconds(fatal.time_unix) if fatal.time_unix is not None else "",
        "grade": fatal.grade,
        "known": fatal.known.fix if fatal.known else "",
        "before": [_shown(text, masks) for text in fatal.before[-_NEAR:]],
        "after": [_shown(text, masks) for text in fatal.after[:_NEAR]],
    }


def _shown(text: str, masks: SecretMasker) -> str:
    return masks.mask_text(text)[:_LINE]  # in this order: half a secret would not be masked


def _tell_story(failure: StageFailure, fatals: Iterable[LogFailure]) -> list[dict[str, str]]:
    moments = [
        {"at": event["t"], "what": what, "where": ""}
        for event in iter_events_in_file_tail_or_nothing(failure.run_dir)
        if event.get("stage") == failure.stage.name
        and str(event.get("t", "")) >= failure.started_at
        and (what := _describe_event(event))
    ]
    moments += [
        {
            "at": format_utc_iso_seconds(fatal.time_unix),
            "what": _shown(fatal.text, failure.masks),
            "where": f"{fatal.log}:{fatal.number}",
        }
        for fatal in fatals
        if fatal.time_unix is not None
    ]
    moments.append({"at": failure.ended_at, "what": f"stopped: {failure.cause.what}", "where": ""})
    return sorted(moments, key=lambda moment: moment["at"][:19])[-_STORY:]


def _describe_event(event: dict[str, Any]) -> str:
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
        case "left-running":
            return "left running"
        case _:
            return ""


def _describe_machine(snapshot: MachineSnapshot | None) -> list[str]:
    if snapshot is None:
        return []
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
        used = f"{gpu_gib_or_mib_text(gpu.memory_bytes)} of {gpu_gib_or_mib_text(gpu.total_bytes)}"
        rows.append(f"GPU {gpu.index} {gpu.name}: {used}, {gpu.utilization} %, {gpu.power_w:.0f} W{also}")
    if snapshot.ray:
        rows.append(f"Ray at {snapshot.ray.get('dashboard')}: {snapshot.ray.get('error') or 'answered'}")
    return rows


def _looked_at(failure: StageFailure, fatals: Sequence[LogFailure], gathered: CollectedTexts) -> list[str]:
    names = ["stage.log", *(f"{service.name}.log" for service in failure.stage.services)]
    known = len(read_run_signatures_or_empty(failure.run_dir).signatures)
    return [
        f"logs: {', '.join(names)}; {len(fatals)} of them with a fatal line",
        f"{known} signatures of the fix catalogue against each fatal line and its traceback",
        *(f"{name}: not there ({why})" for name, why in gathered.missing.items()),
    ]


def _render_markdown_lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {report['stage']} failed: {report['cause']['what']}"
    yield ""
    yield from _answer(report)
    story = [
        f"{moment['at'][11:19]} {_code(moment['what'])} ({moment['where']})"
        if moment["where"]
        else f"{moment['at'][11:19]} {moment['what']}"
        for moment in report["story"][-_ROWS:]
    ]
    yield from _section("What happened, earliest first", story)
    if report["fatals"]:
        yield ""
        yield "## First fatal line of each log"
        for fatal in report["fatals"][:_FATALS]:
            yield from _fatal(fatal)
    yield from _section("Gate rules that were broken", report["broken"])
    yield from _section("The machine when it failed", report["machine"])
    yield from _section("What this rests on", report["looked_at"])
    yield ""
    names = ("first_fatal.txt", "facts.json", "environment.txt", "packages.txt", "manifest.json")
    yield f"Beside this page: {', '.join(f'[{name}]({name})' for name in names)}."


def _answer(report: Mapping[str, Any]) -> Iterator[str]:
    cause = report["cause"]
    where, known, waits = cause["where"], cause["known"], cause["waits"]
    yield f"- **Run**: {report['run_id']}, job {report['job']}, target {report['target']}"
    yield f"- **Time**: {report['started_at']} to {report['ended_at']}"
    if report["job_id"]:
        yield f"- **Ray job**: {report['job_id']}, {report['ray_status'] or 'status not told'}"
    if report["exit_code"] is not None:
        yield f"- **Exit**: {describe_exit(report['exit_code'])}"
    if where:
        yield f"- **Where**: [{where}](../../../{where.partition(':')[0]})"
    if waits:
        yield f"- **Waits for**: {_code(waits)}" + (" ([HANG.md](HANG.md))" if cause["report"] else "")
    if cause["line"]:
        yield f"- **First fatal line**: {_code(cause['line'])}"
    if known:
        yield f"- **Known cause**: {known}: {report['known_title']}"
    elif cause["kind"] in _BY_SIGNATURE:
        yield "- **Known cause**: unknown: the fix catalogue has no signature for this"
    unknown = (
        f"none is known; read the lines around {where or report['directory']} in first_fatal.txt, and send "
        f"`rlbox bundle {report['run_id']}`"
    )
    yield f"- **Next step**: {report['next_step'] or unknown}"


def _fatal(fatal: Mapping[str, Any]) -> Iterator[str]:
    at = f", {fatal['at']}" if fatal["at"] else ""
    known = f", known as {fatal['known']}" if fatal["known"] else ""
    yield ""
    yield f"{fatal['log']}:{fatal['number']}{at}{known}"
    yield ""
    yield "```text"
    yield from map(_plain, fatal["before"])
    yield f"> {_plain(fatal['text'])}"
    yield from map(_plain, fatal["after"])
    yield "```"


def _section(title: str, rows: Sequence[str]) -> Iterator[str]:
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
_STOPPED: frozenset[CauseKind] = frozenset({"silence", "total", "within"})
"""Causes by a limit: a rank that failed may be why the others wait, but a log's last line is no reason."""
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "[Errno 28]")

MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class FailureAnalysis:
    cause: Cause
    fatals: tuple[LogFailure, ...] = ()
    quoted: LogFailure | None = None


def analyze_failure_logs(failure: StageFailure) -> FailureAnalysis:
    """Return the cause with the line that shows it quoted as `where:NUMBER`, and the fatal lines of all logs.

    A log without any fatal line is quoted by its last line. A fatal line that speaks of a full disk becomes the cause.
    """
    cause = failure.cause
    fatals = sort_failures_by_time_services_first(
        [read_log_failure(failure.run_dir, *each) for each in failure.fatals.items()]
    )
    quoted = None
    if cause.kind in _QUOTED or (cause.kind in _STOPPED and any(fatal.grade == "fatal" for fatal in fatals)):
        quoted = find_failure_behind_cause_or_read_last_line(cause, fatals, failure.run_dir)
    if quoted is None:  # the catalogue may know the line that the cause itself quotes
        known = find_failure_signature_of_line(cause.line, failure.run_dir) if cause.line else None
        if known:
            cause = dataclasses.replace(cause, known=known.fix, next_step=cause.next_step or known.remedy)
        return FailureAnalysis(cause=cause, fatals=fatals)
    if any(text in quoted.text for text in _NO_SPACE):
        free, folder = failure.snapshot.free_bytes if failure.snapshot else {}, failure.plan.paths.data
        cause = make_disk_full_cause(folder, free.get(folder, 0))
    line = failure.masks.mask_text(quoted.text)[:_LINE_LIMIT]
    cause = dataclasses.replace(cause, where=f"{quoted.log}:{quoted.number}", line=line)
    if known := quoted.known:
        own = cause.next_step if cause.kind in EXHAUSTION_KINDS else ""
        releases = (
            format_missing_name_remedy_or_empty([quoted.text], "\n".join(quoted.before))
            if known.has_generic_remedy
            else ""
        )
        cause = dataclasses.replace(cause, known=known.fix, next_step=own or releases or known.remedy)
    return FailureAnalysis(cause=cause, fatals=fatals, quoted=quoted)


def write_evidence_report_and_manifest(failure: StageFailure, explained: FailureAnalysis) -> None:
    """Gather the evidence of a failed stage, and write it with its report and manifest.

    What cannot be gathered or written is named in the manifest. On a full disk the report comes first; raises
    `OSError` when not even that could be written.
    """
    folder = make_directories_replacing_non_directories(failure.run_dir, f"{failure.stage.directory}/{EVIDENCE_FOLDER}")
    gathered = collect_texts_within_time(list_evidence_collectors(failure), GATHER_S)
    report = build_failure_report_json(failure, explained.cause, explained.fatals, gathered)
    found = explained.fatals or ((explained.quoted,) if explained.quoted else ())
    texts = {
        REPORT_PAGE: "\n".join(_render_markdown_lines(report)) + "\n",
        "REPORT.json": json.dumps(report, indent=1, ensure_ascii=False) + "\n",
        FATAL_FILE: "\n".join(format_excerpt(fatal) for fatal in found),
        "facts.json": json.dumps(
            build_failure_facts_json(failure, explained.cause, gathered), indent=1, ensure_ascii=False
        )
        + "\n",
        **gathered.texts,
    }
    texts = {name: failure.masks.mask_text(text) for name, text in texts.items()}
    problems = write_texts_and_get_errors_by_name(folder, texts)
    with contextlib.suppress(OSError):  # the disk is full; the report is there
        write_hang_markdown_if_evidence(folder, explained.cause)
        write_evidence_manifest(folder, {**gathered.missing, **problems}, failure.masks)


def write_texts_and_get_errors_by_name(folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Write `texts` (name below `folder` to text), empty ones left out; return why some were not written, by name.

    On a full disk what comes first is there and the rest is not, never a part of a file; raises `OSError` when not even
    the first could be written.
    """
    problems: dict[str, str] = {}
    full = ""
    for number, (name, text) in enumerate((name, text) for name, text in texts.items() if text):
        if full:
            problems[name] = full
            continue
        try:
            make_directories_replacing_non_directories(folder, str(Path(name).parent))
            replace_file(folder / name, text.encode("utf-8", "replace"))
        except OSError as error:
            if number == 0:
                raise
            problems[name] = error.strerror or str(error)
            full = problems[name] if is_enospc_or_edquot(error) else ""
    return problems


def write_evidence_manifest(folder: Path, missing: Mapping[str, str], masks: SecretMasker) -> None:
    rows = []
    for name, facts in sorted(walk_non_directories(folder)):
        last = name.rpartition("/")[2]
        if stat.S_ISREG(facts.st_mode) and not last.startswith(".") and last != MANIFEST_FILE:
            sha256 = ""
            with contextlib.suppress(OSError):
                sha256 = compute_file_sha256(folder / name)
            rows.append({"name": name, "bytes": facts.st_size, "sha256": sha256})
    data = masks.mask_json({"schema": 1, "files": rows, "missing": dict(sorted(missing.items()))})
    replace_file(folder / MANIFEST_FILE, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())
