"""The status of a run that passed, a page beside its record: what held, was met, was made, and what comes next."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rlbox.amounts import duration_text
from rlbox.job.names import STATUS_PAGE
from rlbox.job.plan import RunPlan
from rlbox.record.state import EVENTS_FILE, RunState
from rlbox.system.json_files import parse_valid_json_objects
from rlbox.system.safe_files import read_bytes, replace_file
from rlbox.terminal import sanitize_for_terminal

_MOST, _LONGEST = 20, 300


def write_passed_run_status_markdown(
    run_dir: Path, plan: RunPlan, state: RunState, archive_dir_to_mention: str
) -> Path:
    """Write the page of a run that passed, and return where it is; an archive that is not there is left out."""
    there = archive_dir_to_mention if archive_dir_to_mention and os.path.isdir(archive_dir_to_mention) else ""
    path = run_dir / STATUS_PAGE
    replace_file(path, "\n".join([*_lines(run_dir, plan, state, there), ""]).encode())
    return path


def _lines(run_dir: Path, plan: RunPlan, state: RunState, archive: str) -> Iterator[str]:
    profile = f", profile {plan.profile}" if plan.profile else ""
    yield from (f"# {plan.run_id}: {plan.job} on {plan.target}{profile}", "", "## Passed", "")
    for stage in state.stages:
        again = f", attempt {stage.attempt}" if stage.attempt > 1 else ""
        yield f"- {stage.name}: {stage.state} in {duration_text(stage.seconds)}{again}"
    yield from ("", "## Met and overcome", "")
    met = list(dict.fromkeys(_met(run_dir)))[:_MOST]
    yield from (f"- {text}" for text in met or ["nothing: every stage passed at its first attempt"])
    yield from ("", "## Made", "", f"- {run_dir}")
    made = dict.fromkeys(file.path for stage in plan.stages for file in stage.files)
    yield from (f"- {path}" for path in made)
    if archive:
        yield from (
            "",
            "## Archive",
            "",
            f"- {archive} is there, for archives alone: cp -a PRODUCT {archive}/{plan.run_id}",
        )
    if plan.next_steps:
        yield from ("", "## Next, one at a time, each once the one before it passed", "")
        yield from (f"- rlbox run {plan.job} {words}" for words in plan.next_steps)


def _met(run_dir: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for event in parse_valid_json_objects(read_bytes(run_dir / EVENTS_FILE).splitlines()):
            if event.get("cause"):
                yield sanitize_for_terminal(f"{event.get('stage', 'run')}: {event['cause']}")[:_LONGEST]
