"""The report of a failed stage: one value, one page of Markdown, one JSON object."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import card_text, size_text
from rlbox.diagnose.cause import Cause, CauseKind, describe_exit
from rlbox.diagnose.first_fatal import LogFailure, format_utc, load_run_signatures
from rlbox.record.rebuild import read_events
from rlbox.secrets.masks import SecretMasker
from rlbox.supervise.evidence_contents import FILE_DESCRIPTIONS
from rlbox.supervise.gather import CollectedTexts
from rlbox.supervise.snapshot import MachineSnapshot, StageFailure

_LINE = 300
_STORY = 30
_NEAR = 4
"""Lines around the fatal one that the page shows; `first_fatal.txt` has a hundred."""

_ROWS = 12
_FATALS = 4
_BY_SIGNATURE: frozenset[CauseKind] = frozenset({"exit", "ray", "service", "ready", "silence", "total"})
"""Causes that say what ended, not why."""


@dataclass(frozen=True, kw_only=True)
class FatalEntry:
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
    fatals: tuple[FatalEntry, ...]
    story: tuple[TimelineEntry, ...]
    broken: tuple[str, ...]
    machine: tuple[str, ...]
    looked_at: tuple[str, ...]
    schema: int = 1

    def as_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"


def make_report(
    failure: StageFailure, cause: Cause, fatals: Sequence[LogFailure], gathered: CollectedTexts
) -> FailureReport:
    """Return the report of a failure whose `cause` is explained and whose parts are `gathered`."""
    stage, plan, state = failure.stage, failure.plan, failure.state
    title = next((fatal.known.title for fatal in fatals if fatal.known and fatal.known.id == cause.known), "")
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


def _row(fatal: LogFailure, masks: SecretMasker) -> FatalEntry:
    line = fatal.line
    return FatalEntry(
        log=fatal.log,
        number=line.number,
        text=_shown(line.text, masks),
        at=format_utc(fatal.at) if fatal.at is not None else "",
        grade=fatal.grade,
        known=fatal.known.id if fatal.known else "",
        before=tuple(_shown(text, masks) for text in line.before[-_NEAR:]),
        after=tuple(_shown(text, masks) for text in line.after[:_NEAR]),
    )


def _shown(text: str, masks: SecretMasker) -> str:
    return masks.text(text)[:_LINE]  # in this order: half a secret would not be masked


def _story(failure: StageFailure, cause: Cause, fatals: Iterable[LogFailure]) -> tuple[TimelineEntry, ...]:
    """Return what the journal noted of this attempt of the stage and the fatal lines, by time."""
    stage, begun = failure.stage.name, failure.started_at
    moments = [
        TimelineEntry(at=event["t"], what=what)
        for event in read_events(failure.run_dir)
        if event.get("stage") == stage and str(event.get("t", "")) >= begun and (what := _told(event))
    ]
    for fatal in fatals:
        if fatal.at is not None:
            where = f"{fatal.log}:{fatal.line.number}"
            moments.append(
                TimelineEntry(at=format_utc(fatal.at), what=_shown(fatal.line.text, failure.masks), where=where)
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
        of = f" of {size_text(memory.limit_bytes)}" if memory.limit_bytes else ", no limit"
        rows.append(f"memory {size_text(memory.used_bytes)}{of}; ended for memory by the kernel: {memory.kills}")
    rows += [f"{size_text(free)} free at {folder}" for folder, free in snapshot.free_bytes.items()]
    rows += [f"port {port}: {holder or 'nobody'}" for port, holder in snapshot.ports.items()]
    own = {process.pid for process in snapshot.processes}
    for gpu in snapshot.gpus:
        others = [str(pid) for pid in gpu.processes if pid not in own]
        also = f"; also used by {', '.join(others)}" if others else ""
        used = f"{card_text(gpu.memory_bytes)} of {card_text(gpu.total_bytes)}"
        rows.append(f"GPU {gpu.index} {gpu.name}: {used}, {gpu.utilization} %, {gpu.power_w:.0f} W{also}")
    if snapshot.ray:
        rows.append(f"Ray at {snapshot.ray.get('dashboard')}: {snapshot.ray.get('error') or 'answered'}")
    return tuple(rows)


def _looked_at(failure: StageFailure, fatals: Sequence[LogFailure], gathered: CollectedTexts) -> tuple[str, ...]:
    names = [f"{service.name}.log" for service in failure.stage.services]
    known = len(load_run_signatures(failure.run_dir).signatures)
    rows = [
        f"logs: {', '.join(['stage.log', *names])}; {len(fatals)} of them with a fatal line",
        f"{known} signatures of the fix catalogue against each fatal line and its traceback",
    ]
    return (
        *rows,
        *(f"{FILE_DESCRIPTIONS.get(name, name)}: not there ({why})" for name, why in gathered.missing.items()),
    )


def report_page(report: FailureReport) -> str:
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


def _fatal(fatal: FatalEntry) -> Iterator[str]:
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
