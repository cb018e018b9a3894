"""What a bundle says before its files: how the run stands, errors, the ends of logs, the machine now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rlbox.diagnose.first_fatal import LogFailure, find_first_fatal, format_excerpt, read_fatal_line, read_last_lines
from rlbox.job.names import EVIDENCE_FOLDER, FATAL_FILE
from rlbox.record.state import RunState, StageState, run_cause
from rlbox.supervise.bundle_plan import Selection
from rlbox.supervise.evidence_parts import disk_text, gpu_text, limit_text, system_text
from rlbox.supervise.gather import Collector, collect_texts
from rlbox.system.safe_files import find_files, is_file, read_bytes

SUMMARY = "SUMMARY.md"
LAST_LINES = 500
"""Lines of each log of the last stage that a helper asks for first (seed 003, "when asking for help")."""

_GATHER_S = 8.0
_LEFT = 20


def bundle_texts(run_dir: Path, run_id: str, state: RunState | None, selection: Selection) -> dict[str, str]:
    """Return the texts of a bundle (name to text): the summary, then what it rests on."""
    logs = [taken.name for taken in selection.taken if taken.is_log]
    last = _last_stage(state)
    errors = [text for log in logs if (text := _error(run_dir, log, state))]
    errors += [text for path in find_files(run_dir, f"{EVIDENCE_FOLDER}/{FATAL_FILE}") if (text := _text(path))]
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
        "now/gpu.txt": gpu_text,
        "now/system.json": system_text,
        "now/disks.txt": lambda: disk_text((run_dir, Path("/"))),
        "now/limits.json": limit_text,
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
    if is_file((run_dir / log).parent.joinpath(EVIDENCE_FOLDER, FATAL_FILE)):
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
    cause = run_cause(state)
    rows: Mapping[str, str] = (
        {"Cause": cause.what, "Where": cause.where, "Line": cause.line, "Next step": cause.next_step} if cause else {}
    )
    if rows:
        yield ""
    yield from (f"- **{title}**: {text}" for title, text in rows.items() if text)
