"""The one page that a failed stage leaves: `REPORT.md`."""

from __future__ import annotations

from collections.abc import Iterator

from rlbox.causes.cause import CauseKind, ended
from rlbox.evidence.act.failure_report import FailureReport, FatalRow

_ROWS = 12
_FATALS = 4
_BY_SIGNATURE: frozenset[CauseKind] = frozenset({"exit", "ray", "service", "ready", "silence", "total"})
"""Causes that say what ended, not why."""


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
        yield f"- **Exit**: {ended(report.exit_code)}"
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


def _fatal(fatal: FatalRow) -> Iterator[str]:
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
