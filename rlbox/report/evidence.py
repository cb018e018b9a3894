"""Keep what explains a failed stage in its folder `evidence/`, with secrets masked."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.act.log_lines import read_lines
from rlbox.act.supervisor import StageFailure
from rlbox.plan.causes import Cause, CauseKind, full_disk
from rlbox.report.first_fatal import CONTEXT_LINES, FatalLine, find_first_fatal
from rlbox.report.known_causes import find_known_cause

EVIDENCE_FOLDER = "evidence"
FATAL_FILE = "first_fatal.txt"
FACTS_FILE = "facts.json"
_LINE_LIMIT = 1000
_QUOTED: frozenset[CauseKind] = frozenset({"exit", "ray", "service", "ready", "oom"})
"""Causes whose own sentence says what ended, not why; the log says why."""
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "[Errno 28]")


def explain_failure(failure: StageFailure) -> tuple[Cause, FatalLine | None]:
    """Return the cause with the first fatal line of its log quoted as `where:NUMBER`, and that line with context.

    A log without any fatal line is quoted by its last line. A fatal line that speaks of a full disk becomes the cause.
    One that the fix catalogue knows gets its remedy as the next step.
    """
    cause = failure.cause
    log = failure.run_dir / cause.where
    if cause.kind not in _QUOTED or not cause.where or not log.is_file():
        return cause, None
    fatal = find_first_fatal(read_lines(log)) or _last_line(log)
    if fatal is None:
        return cause, None
    if any(text in fatal.text for text in _NO_SPACE):
        free = failure.end.snapshot.free_bytes if failure.end.snapshot else {}
        folder = failure.plan.paths.data
        cause = dataclasses.replace(full_disk(folder, free.get(folder, 0)), where=cause.where)
    line = failure.masks.text(fatal.text)[:_LINE_LIMIT]
    cause = dataclasses.replace(cause, where=f"{cause.where}:{fatal.number}", line=line)
    if known := find_known_cause(fatal, failure.run_dir):
        cause = dataclasses.replace(cause, known=known.id, next_step=cause.next_step or known.remedy)
    return cause, fatal


def write_evidence(failure: StageFailure, cause: Cause, fatal: FatalLine | None, packages: tuple[str, ...]) -> Path:
    """Write `evidence/first_fatal.txt` and `evidence/facts.json` of a failed stage; return the folder.

    Parameters
    ----------
    packages
        `name==version` of everything in the stack's Python.

    Raises
    ------
    OSError
        The disk is full.
    """
    folder = failure.run_dir / failure.end.stage.directory / EVIDENCE_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if fatal:
        (folder / FATAL_FILE).write_text(failure.masks.text(_excerpt(cause, fatal)), encoding="utf-8")
    facts = failure.masks.tree(_facts(failure, cause, packages)) | {"environment": _environment(failure)}
    (folder / FACTS_FILE).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder


def _excerpt(cause: Cause, fatal: FatalLine) -> str:
    first = fatal.number - len(fatal.before)
    rows = [(number, " ", text) for number, text in enumerate(fatal.before, start=first)]
    rows.append((fatal.number, ">", fatal.text))
    rows += [(number, " ", text) for number, text in enumerate(fatal.after, start=fatal.number + 1)]
    body = "\n".join(f"{mark}{number:7d} {text}" for number, mark, text in rows)
    return f"{cause.what}\n{cause.where}\n\n{body}\n"


def _facts(failure: StageFailure, cause: Cause, packages: tuple[str, ...]) -> dict[str, Any]:
    end, state, plan = failure.end, failure.state, failure.plan
    return {
        "schema": 1,
        "run_id": plan.run_id,
        "job": plan.job,
        "target": plan.target,
        "profile": plan.profile,
        "params": dict(plan.params),
        "stage": end.stage.name,
        "job_id": end.stage.ray.submission_id if end.stage.ray else "",
        "started_at": end.started_at,
        "ended_at": end.ended_at,
        "exit_code": state.exit_code,
        "ray_status": state.ray_status,
        "cause": dataclasses.asdict(cause),
        "services": [dataclasses.asdict(service) for service in state.services],
        "gate": [dataclasses.asdict(rule) for rule in state.gate],
        "command": list(end.stage.argv),
        "machine": dataclasses.asdict(end.snapshot) if end.snapshot else {},
        "packages": list(packages),
    }


def _environment(failure: StageFailure) -> Mapping[str, str]:
    return failure.masks.environment({**os.environ, **failure.plan.env, **failure.end.stage.env})


def _last_line(log: Path) -> FatalLine | None:
    recent = deque(read_lines(log), maxlen=CONTEXT_LINES + 1)
    while recent and not recent[-1].text.strip():
        recent.pop()
    if not recent:
        return None
    last = recent.pop()
    before = tuple(line.text for line in recent)
    return FatalLine(number=last.number, text=last.text.strip(), before=before, after=())
