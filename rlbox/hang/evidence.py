"""Evidence of a hang: its cause, `hang.json`, the page `HANG.md`, stacks, NCCL's report."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.amounts import duration_text, duration_text_precise_below_minute, exact_duration_text, utc_now
from rlbox.diagnose.cause import Cause, get_stage_log_path
from rlbox.hang.detector import HangOrTimeout
from rlbox.hang.nccl import NCCL_FOLDER, write_ras_report_and_copy_dumps
from rlbox.hang.stacks import STACKS_FOLDER, add_and_write_py_spy_stacks
from rlbox.hang.waits import ProcessWait, describe_wait, probe_process_waits_without_stacks, sort_by_suspicion
from rlbox.i18n import _, join
from rlbox.job.names import EVIDENCE_FOLDER, HANG_FILE, HANG_PAGE
from rlbox.job.plan import StagePlan
from rlbox.system.counters import ActivityRates
from rlbox.system.gpu import query_gpus_or_empty
from rlbox.system.json_files import read_json_object_or_empty
from rlbox.system.safe_files import make_directories_replacing_non_directories, replace_file

_MOST_PROCESSES = 64
_MOST_FRAMES = 12
_STACKS_S = 25.0


@dataclass(frozen=True, kw_only=True)
class WatchContext:
    """One stage, as its supervisor hands it to the watch; `evidence_dir` may not be there yet.

    `list_process_names()` are the living processes of the run, pid to name as the kernel shows it. `mask` hides the
    secrets in JSON types. `may_continue()` is False once somebody waits for the end of the run.
    """

    stage: StagePlan
    evidence_dir: Path
    list_process_names: Callable[[], Mapping[int, str]]
    record_event: Callable[..., None]
    record_phase: Callable[[str], None]
    mask: Callable[[Any], Any]
    may_continue: Callable[[], bool]


def make_hang_cause(stage: StagePlan, stall: HangOrTimeout, suspect_wait_description: str) -> Cause:
    """The stage showed no sign of life for too long. `suspect_wait_description`: what its first process waits for."""
    phase, name, report = stall.phase, stage.name, get_hang_report_path(stage)
    advice = _("if it was not a hang, raise limits.silence_s of stage {name}").format(name=name)
    if stall.deadlock:
        advice = _("make every rank reach the same collectives in the same order; {report} shows each")
        advice = advice.format(report=report)
        suspect = suspect_wait_description if stall.deadlock.absent_pids else ""
        how = join("; ", filter(None, (stall.deadlock.description, suspect)))
        what = _("stage {name} hangs: {how}; no rank worked for {duration}, and it was stopped")
        what = what.format(name=name, how=how, duration=duration_text(stall.silent_s))
    elif stall.rule == "steps":
        what = _(
            "stage {name} made no step for {duration}, usually {usual} apart, its processes do nothing, and was stopped"
        )
        usual = duration_text_precise_below_minute(stall.step_s)
        what = what.format(name=name, duration=duration_text(stall.silent_s), usual=usual)
        advice = _("if it was not a hang, raise limits.steps of stage {name}").format(name=name)
    elif phase.name:
        silent = exact_duration_text(stall.limit_s)
        what = _("stage {name} hung in phase {phase}: no sign of life for {silent}, and was stopped")
        what = what.format(name=name, phase=phase.name, silent=silent)
    else:
        what = _("stage {name} wrote nothing for {duration} and was stopped")
        what = what.format(name=name, duration=exact_duration_text(stall.limit_s))
    if stall.rule == "silence" and any(own.name == phase.name for own in stage.phases):
        advice = _("if it was not a hang, raise silence_s of phase {phase}").format(phase=phase.name)
    return Cause(
        kind="silence",
        what=what,
        where=get_stage_log_path(stage),
        next_step=join("; ", filter(None, (phase.remedy, advice))),
        phase=phase.name,
        waits=suspect_wait_description,
        report=report,
    )


def get_hang_report_path(stage: StagePlan) -> str:
    return f"{stage.directory}/{EVIDENCE_FOLDER}/{HANG_PAGE}"


def write_hang_evidence(
    watched: WatchContext,
    stall: HangOrTimeout,
    rates_by_age_s: Sequence[tuple[float, ActivityRates]],
    *,
    ignored_name_prefixes: tuple[str, ...],
    stage_start_unix_s: float,
) -> tuple[ProcessWait, ...]:
    """Write `hang.json`, `stacks/` and `nccl/` into the stage's evidence; return its processes, the odd one first.

    Takes half a second and 50 ms for each Python process, 40 s at most; raises `OSError` on a full disk.
    """
    directory, going = watched.evidence_dir, watched.may_continue
    make_directories_replacing_non_directories(directory.parents[1], f"{directory.parent.name}/{directory.name}")
    pids = [pid for pid, name in watched.list_process_names().items() if not name.startswith(ignored_name_prefixes)]
    suspects = stall.deadlock.absent_pids if stall.deadlock else frozenset[int]()
    until_s = time.monotonic() + _STACKS_S
    waits = add_and_write_py_spy_stacks(
        sort_by_suspicion(probe_process_waits_without_stacks(pids), suspects),
        directory / STACKS_FOLDER,
        watched.mask,
        deadline_monotonic_s=until_s,
        may_continue=going,
    )
    waits = tuple(sort_by_suspicion(waits, suspects))
    nccl = {"files": [], "trouble": ""}
    if going():
        nccl = write_ras_report_and_copy_dumps(pids, directory / NCCL_FOLDER, stage_start_unix_s)
    facts = {
        "schema": 1,
        "stage": watched.stage.name,
        "detected_at": utc_now(),
        "rule": stall.rule,
        "phase": stall.phase.name,
        "silent_s": round(stall.silent_s, 1),
        "limit_s": stall.limit_s,
        "step_s": round(stall.step_s, 3),
        "ranks": stall.deadlock.description if stall.deadlock else "",
        "remedy": stall.phase.remedy,
        "processes": [_process_to_json(wait) for wait in waits],
        "activity": [
            {"ago_s": round(ago, 1), **{name: round(rate, 2) for name, rate in dataclasses.asdict(rates).items()}}
            for ago, rates in rates_by_age_s
        ],
        "gpus": [dataclasses.asdict(gpu) for gpu in query_gpus_or_empty()],
        "nccl": nccl,
    }
    text = json.dumps(watched.mask(facts), indent=1, ensure_ascii=False) + "\n"
    replace_file(directory / HANG_FILE, text.encode("utf-8", "replace"))
    return waits


def _process_to_json(wait: ProcessWait) -> dict[str, Any]:
    thread = wait.decisive_thread
    return {
        "pid": wait.pid,
        "name": wait.name,
        "role": wait.role,
        "rank": wait.rank,
        "command": wait.command_line,
        "cpu": wait.cpu_cores,
        "kind": thread.kind if thread else "",
        "waits": describe_wait(wait),
        "holder": thread.holder_pid_or_0 if thread else 0,
        "collective": wait.collective_name_or_empty,
        "stack": [str(frame) for frame in wait.stack],
        "trouble": wait.stack_error,
        "threads": len(wait.threads),
    }


def write_hang_markdown_if_evidence(evidence_dir: Path, cause: Cause) -> None:
    """Explain what was collected of a hang; nothing is written where there was none."""
    if facts := read_json_object_or_empty(evidence_dir / HANG_FILE):
        replace_file(evidence_dir / HANG_PAGE, _render_markdown(facts, cause).encode("utf-8", "replace"))


def _render_markdown(facts: Mapping[str, Any], cause: Cause) -> str:
    processes, files = facts["processes"][:_MOST_PROCESSES], facts["nccl"]["files"]
    waits = [f"- {_subject(process)} {process['waits']}." for process in processes]
    phase = f" in phase {facts['phase']}" if facts["phase"] else ""
    parts = [
        f"# {cause.what}",
        f"Found {facts['detected_at']}{phase}, {duration_text(facts['silent_s'])} after the last sign of life.",
        "## What it waits for",
        "\n".join(waits) or "No process of the stage was left to look into.",
        "## What to do next",
        cause.next_step or "Look at the first process above.",
        f"`{HANG_FILE}` has what its processes and GPUs did in the last minute. A GPU that shows 100 % at the power "
        "of an idle one waits for other ranks: it does not compute.",
    ]
    if files:
        parts += ["## NCCL", "\n".join(f"- `{NCCL_FOLDER}/{name}`" for name in files)]
    parts += ["## Where each process stands", *(map(_stack, processes) if processes else ["None was left."])]
    return "\n\n".join(parts) + "\n"


def _subject(process: Mapping[str, Any]) -> str:
    rank = f"rank {process['rank']}, " if process["rank"] else ""
    role = f"{process['role']}, " if process["role"] not in ("", "main") else ""
    return f"**{rank}{role}pid {process['pid']}** ({process['name']})"


def _stack(process: Mapping[str, Any]) -> str:
    frames = process["stack"][:_MOST_FRAMES] or [f"no Python stack: {process['trouble']}"]
    lines = "\n".join(f"    {line}" for line in (process["command"], *frames))
    return f"{_subject(process)}: `{STACKS_FOLDER}/{process['pid']}.txt`\n\n{lines}"
