"""Take down what a hung stage was doing, before anything of it is stopped."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

from rlbox.hang.judge import Stall
from rlbox.hang.nccl import NCCL_FOLDER, collect_nccl
from rlbox.hang.stacks import STACKS_FOLDER, add_stacks
from rlbox.hang.wait_probe import probe_waits
from rlbox.hang.waits import ProcessWait, order_waits, wait_sentence
from rlbox.hang.watched import Watched
from rlbox.job.names import HANG_FILE
from rlbox.system.clock import utc_now
from rlbox.system.counters import ActivityRates
from rlbox.system.gpu import probe_gpus
from rlbox.system.safe_files import force_directories, replace_file

_STACKS_S = 25.0


def collect_hang(
    watched: Watched,
    stall: Stall,
    recent: Sequence[tuple[float, ActivityRates]],
    *,
    background: tuple[str, ...],
    began_unix: float,
) -> tuple[ProcessWait, ...]:
    """Write `hang.json`, `stacks/` and `nccl/` into the stage's evidence; return its processes, the odd one first.

    Takes half a second and 50 ms for each Python process, 40 s at most.

    Parameters
    ----------
    recent
        The activities of the last minute with how many seconds ago each was measured.
    background
        Beginnings of the names of processes that are left out of the account.

    Raises
    ------
    OSError
        The disk is full.
    """
    folder, going = watched.folder, watched.going_on
    force_directories(folder.parents[1], f"{folder.parent.name}/{folder.name}")
    pids = [pid for pid, name in watched.members().items() if not name.startswith(background)]
    odd = stall.deadlock.odd if stall.deadlock else frozenset[int]()
    waits = order_waits(probe_waits(pids), odd)
    until_s = time.monotonic() + _STACKS_S
    waits = order_waits(add_stacks(waits, folder / STACKS_FOLDER, watched.hide, until_s=until_s, going=going), odd)
    nccl = collect_nccl(pids, folder / NCCL_FOLDER, began_unix) if going() else {"files": [], "trouble": ""}
    facts = {
        "schema": 1,
        "stage": watched.stage.name,
        "detected_at": utc_now(),
        "rule": stall.rule,
        "phase": stall.phase.name,
        "silent_s": round(stall.silent_s, 1),
        "limit_s": stall.limit_s,
        "step_s": round(stall.step_s, 3),
        "ranks": stall.deadlock.what if stall.deadlock else "",
        "remedy": stall.phase.remedy,
        "processes": [_process(wait) for wait in waits],
        "activity": [{"ago_s": round(ago, 1), **_rounded(rates)} for ago, rates in recent],
        "gpus": [dataclasses.asdict(gpu) for gpu in probe_gpus()],
        "nccl": nccl,
    }
    text = json.dumps(watched.hide(facts), indent=1, ensure_ascii=False) + "\n"
    replace_file(folder / HANG_FILE, text.encode("utf-8", "replace"))
    return tuple(waits)


def _process(wait: ProcessWait) -> dict[str, Any]:
    return {
        "pid": wait.pid,
        "name": wait.name,
        "role": wait.role,
        "rank": wait.rank,
        "command": wait.command,
        "cpu": wait.cpu,
        "kind": wait.telling.kind if wait.telling else "",
        "waits": wait_sentence(wait),
        "holder": wait.telling.holder if wait.telling else 0,
        "collective": wait.collective,
        "stack": [str(frame) for frame in wait.stack],
        "trouble": wait.trouble,
        "threads": len(wait.threads),
    }


def _rounded(rates: ActivityRates) -> dict[str, float]:
    return {name: round(value, 2) for name, value in dataclasses.asdict(rates).items()}
