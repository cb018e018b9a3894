"""Evidence of a hang: `hang.json`, the page `HANG.md`, stacks, NCCL's report."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlbox.amounts import (
    decimal_size_text,
    duration_text,
    exact_duration_text,
    gpu_memory_text,
    precise_duration_text,
    utc_now,
)
from rlbox.errors import get_docs_url
from rlbox.hang.context import WatchContext
from rlbox.hang.detector import AgedRates, Stall
from rlbox.hang.nccl import NCCL_FOLDER, collect_nccl_evidence
from rlbox.hang.stacks import STACKS_FOLDER, add_py_spy_stacks
from rlbox.hang.wait_probe import probe_waits
from rlbox.hang.waits import ProcessWait, describe_wait, sort_by_suspicion
from rlbox.job.names import HANG_FILE, HANG_PAGE
from rlbox.system.counters import ActivityRates
from rlbox.system.gpu import probe_gpus
from rlbox.system.json_files import read_json_object_or_empty
from rlbox.system.safe_files import make_directories_replacing_non_directories, replace_file

_MOST_PROCESSES = 64
_MOST_ROWS = 12
_MOST_FRAMES = 12


def write_hang_markdown(evidence_dir: Path) -> Path | None:
    """Write `HANG.md` beside the `hang.json` in a stage's evidence; None when there is no hang to tell of.

    Secrets were masked when `hang.json` was written.

    Raises
    ------
    OSError
        The disk is full.
    """
    facts = read_json_object_or_empty(evidence_dir / HANG_FILE)
    if not facts:
        return None
    path = evidence_dir / HANG_PAGE
    replace_file(path, _render_markdown(facts).encode("utf-8", "replace"))
    return path


def _render_markdown(facts: Mapping[str, Any]) -> str:
    processes = facts["processes"]
    parts = [
        f"# Stage {facts['stage']} {_ENDS[facts['rule']]}" + (f": {facts['phase']}" if facts["phase"] else ""),
        _since(facts),
        "## What it waits for\n\n" + (_waits(processes) or "No process of the stage was left to look into."),
        "## What to do next\n\n" + (facts["remedy"] or _UNKNOWN),
        "## What its processes did in the last minute\n\n" + _activity(facts["activity"]),
        _gpus(facts["gpus"]),
        _nccl(facts["nccl"]),
        "## Where each process stands\n\n" + _stacks(processes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


_ENDS = {
    "silence": "hung",
    "steps": "hung",
    "ranks": "hung",
    "ready": "waited for a service",
    "total": "ran out of time",
}
_UNKNOWN = (
    "No phase of this stage is known, so there is no remedy to name: look at the first process above. If it was no "
    "hang, raise `limits.silence_s` of the stage, or describe the phase "
    f"(`[[stages.phases]]`, {get_docs_url('hangs')})."
)


def _since(facts: Mapping[str, Any]) -> str:
    found, silent, limit = (
        f"Found {facts['detected_at']}",
        duration_text(facts["silent_s"]),
        f"limit {exact_duration_text(facts['limit_s'])}",
    )
    match facts["rule"]:
        case "steps":
            usual = f"one came every {precise_duration_text(facts['step_s'])}"
            return f"{found}: no step for {silent} where {usual}, and its processes did nothing ({limit})."
        case "ranks":
            return f"{found}: {facts['ranks']}. No rank worked for {silent} ({limit})."
        case "ready":
            return f"{found}: it did not answer as told within its time ({limit})."
        case "total":
            return f"{found}: it ran for longer than it may ({limit}); its last sign of life was {silent} ago."
        case _:
            return f"{found}: no sign of life for {silent} ({limit})."


def _waits(processes: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"- {_subject(process)} {process['waits']}." for process in processes[:_MOST_PROCESSES]]
    left = len(processes) - len(lines)
    return "\n".join([*lines, *([f"- … and {left} more, see `{HANG_FILE}`"] if left > 0 else [])])


def _subject(process: Mapping[str, Any]) -> str:
    rank = f"rank {process['rank']}, " if process["rank"] else ""
    role = f"{process['role']}, " if process["role"] not in ("", "main") else ""
    return f"**{rank}{role}pid {process['pid']}** ({process['name']})"


def _activity(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "It was not measured: the stage was silent for too short a time."
    head = "| seconds ago | read | written | network | memory | cpu | GPU |\n|---:|---:|---:|---:|---:|---:|---:|"
    return "\n".join([head, *(_row(row) for row in rows[-_MOST_ROWS:])])


def _row(row: Mapping[str, Any]) -> str:
    rates = " | ".join(f"{decimal_size_text(row[name])}/s" for name in ("read", "write", "network", "memory"))
    gpu = f"{row['gpu']} %, {100 * row['gpu_power']:.0f} % of its power" if row["gpu_power"] else "-"
    return f"| {row['ago_s']:g} | {rates} | {100 * row['cpu']:.0f} % | {gpu} |"


def _gpus(gpus: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        f"| {gpu['index']} {gpu['name']} | {gpu['utilization']} % "
        f"| {gpu['power_w']:.0f} of {gpu['power_limit_w']:.0f} W "
        f"| {gpu_memory_text(gpu['memory_bytes'])} of {gpu_memory_text(gpu['total_bytes'])} |"
        for gpu in gpus
    ]
    if not rows:
        return ""
    note = "A GPU that shows 100 % at the power of an idle one waits for other ranks: it does not compute."
    return "\n".join(["## GPUs", "", "| GPU | busy | power | memory |", "|---|---:|---:|---:|", *rows, "", note])


def _nccl(nccl: Mapping[str, Any]) -> str:
    if not nccl["files"]:
        return ""
    return "## NCCL\n\n" + "\n".join(f"- `nccl/{name}`" for name in nccl["files"])


def _stacks(processes: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for process in processes[:_MOST_PROCESSES]:
        frames = process["stack"][:_MOST_FRAMES]
        stack = "\n".join(f"    {frame}" for frame in frames) or f"    no Python stack: {process['trouble']}"
        parts.append(
            f"{_subject(process)}: `{STACKS_FOLDER}/{process['pid']}.txt`\n\n    {process['command']}\n{stack}"
        )
    return "\n\n".join(parts) or "None was left."


_STACKS_S = 25.0


def collect_hang_evidence(
    watched: WatchContext,
    stall: Stall,
    recent_rates: Sequence[AgedRates],
    *,
    ignored_name_prefixes: tuple[str, ...],
    stage_start_unix_s: float,
) -> tuple[ProcessWait, ...]:
    """Write `hang.json`, `stacks/` and `nccl/` into the stage's evidence; return its processes, the odd one first.

    Takes half a second and 50 ms for each Python process, 40 s at most.

    Parameters
    ----------
    ignored_name_prefixes
        Beginnings of the names of processes that are left out of the account.

    Raises
    ------
    OSError
        The disk is full.
    """
    folder, going = watched.evidence_dir, watched.may_continue
    make_directories_replacing_non_directories(folder.parents[1], f"{folder.parent.name}/{folder.name}")
    pids = [pid for pid, name in watched.list_process_names().items() if not name.startswith(ignored_name_prefixes)]
    odd = stall.deadlock.absent_pids if stall.deadlock else frozenset[int]()
    waits = sort_by_suspicion(probe_waits(pids), odd)
    until_s = time.monotonic() + _STACKS_S
    waits = sort_by_suspicion(
        add_py_spy_stacks(
            waits, folder / STACKS_FOLDER, watched.mask, deadline_monotonic_s=until_s, may_continue=going
        ),
        odd,
    )
    nccl = (
        collect_nccl_evidence(pids, folder / NCCL_FOLDER, stage_start_unix_s)
        if going()
        else {"files": [], "trouble": ""}
    )
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
        "processes": [_process(wait) for wait in waits],
        "activity": [{"ago_s": round(ago, 1), **_rounded(rates)} for ago, rates in recent_rates],
        "gpus": [dataclasses.asdict(gpu) for gpu in probe_gpus()],
        "nccl": nccl,
    }
    text = json.dumps(watched.mask(facts), indent=1, ensure_ascii=False) + "\n"
    replace_file(folder / HANG_FILE, text.encode("utf-8", "replace"))
    return tuple(waits)


def _process(wait: ProcessWait) -> dict[str, Any]:
    return {
        "pid": wait.pid,
        "name": wait.name,
        "role": wait.role,
        "rank": wait.rank,
        "command": wait.command_line,
        "cpu": wait.cpu_cores,
        "kind": wait.decisive_thread.kind if wait.decisive_thread else "",
        "waits": describe_wait(wait),
        "holder": wait.decisive_thread.holder_pid if wait.decisive_thread else 0,
        "collective": wait.collective,
        "stack": [str(frame) for frame in wait.stack],
        "trouble": wait.stack_error,
        "threads": len(wait.threads),
    }


def _rounded(rates: ActivityRates) -> dict[str, float]:
    return {name: round(value, 2) for name, value in dataclasses.asdict(rates).items()}
