"""What the watch for hangs needs of a stage: its context, its log, the sink of its events, the cause of its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from rlbox.amounts import duration_text, exact_duration_text, precise_duration_text
from rlbox.diagnose.cause import Cause, get_stage_log_path
from rlbox.hang.detector import Stall, select_last_lines
from rlbox.hang.phases import PhaseChange
from rlbox.job.names import EVIDENCE_FOLDER, HANG_PAGE, STAGE_LOG
from rlbox.job.phase import PhasePlan
from rlbox.job.plan import StagePlan

_RECORD_S = 1.0
_QUOTED = 200

_BAR_S = 0.2
_BATCH_S = 0.4
"""How long lines may wait when there were some a moment ago: a log that never rests is heard twice a second."""
_MUCH_BYTES, _END_BYTES = 1 << 18, 1 << 14
"""When this much waits, only the end of each further block is kept."""


@dataclass(frozen=True, kw_only=True)
class WatchContext:
    """One stage, as whoever carries it out hands it to the watch; `evidence_dir` may not be there yet.

    `list_process_names()` are the living processes of the run, pid to name as the kernel shows it. `record_event(kind,
    **what)` notes what happened. `mask` hides the secrets in JSON types. `is_running()` is False once somebody waits
    for the end of the run.
    """

    stage: StagePlan
    evidence_dir: Path
    list_process_names: Callable[[], Mapping[int, str]]
    record_event: Callable[..., None]
    record_phase: Callable[[str], None]
    mask: Callable[[Any], Any]
    may_continue: Callable[[], bool]


class EventRecorder:
    """Records each thing once, and phases once a second at most: markers may come with every step."""

    def __init__(self, watched: WatchContext) -> None:
        self._watched = watched
        self._line: PhaseChange | None = None
        self._phase = ""
        self._at_s = -math.inf
        self._noticed = False

    def keep_last_phase_change(self, changes: Sequence[PhaseChange]) -> None:
        """Take the lines that began or ended a phase; the last one is quoted."""
        if changes:
            self._line = changes[-1]

    def record_phase_if_changed(self, phase: PhasePlan, now_s: float, *, skip_rate_limit: bool = False) -> None:
        """Record the phase that the stage is in when it changed; soon, or `skip_rate_limit`."""
        line = self._line
        if line is None or (now_s - self._at_s < _RECORD_S and not skip_rate_limit):
            return
        self._line = None
        if phase.name == self._phase:
            return
        self._phase, self._at_s = phase.name, now_s
        self._watched.record_phase(phase.name)
        self._watched.record_event(
            "phase", phase=phase.name, log=STAGE_LOG, line=line.text[:_QUOTED], limit_s=phase.silence_s
        )

    def record_possible_stall_start(self, stall: Stall | None) -> None:
        """Record what may be a hang when it begins to be one; None: it is none."""
        if stall and not self._noticed:
            self.record_stall("stalled", stall)
        self._noticed = stall is not None

    def record_stall(self, event: Literal["stalled", "hang"], stall: Stall) -> None:
        self._watched.record_event(
            event,
            phase=stall.phase.name,
            rule=stall.rule,
            silent_s=round(stall.silent_s, 1),
            limit_s=round(stall.limit_s, 1),
            step_s=round(stall.step_s, 3),
        )


class LogSource(Protocol):
    @property
    def bytes_read_per_log(self) -> Mapping[str, int]:
        """How many bytes of each log were handed over."""

    def get_partial_line(self, name: str) -> str:
        """Return the line of a log that has not ended yet, as it is shown now."""


class LineBuffer:
    """The lines that wait to be judged, and the line that has not ended yet (a progress bar)."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._bytes = 0
        self._handed_s = self._looked_s = -math.inf
        self._size = -1

    def add(self, block: bytes) -> None:
        self._size = -1
        self._blocks.append(select_last_lines(block, _END_BYTES) if self._bytes > _MUCH_BYTES else block)
        self._bytes += len(self._blocks[-1])

    def pop_complete_lines(self, now_s: float, *, skip_rate_limit: bool = False) -> bytes | None:
        """Return the lines that wait, once; None without any, and unless `skip_rate_limit` when some were returned
        just now.
        """
        if not self._blocks or (now_s - self._handed_s < _BATCH_S and not skip_rate_limit):
            return None
        block, self._blocks, self._bytes = b"\n".join(self._blocks), [], 0
        self._handed_s = now_s
        return block

    def read_changed_progress_bar(self, logs: LogSource, now_s: float) -> str | None:
        """Return the line that has not ended yet when it grew; it is looked at five times a second at most."""
        if now_s - self._looked_s < _BAR_S:
            return None
        self._looked_s, before, self._size = now_s, self._size, logs.bytes_read_per_log.get(STAGE_LOG, 0)
        return logs.get_partial_line(STAGE_LOG) if self._size != before >= 0 else None


def make_hang_cause(stage: StagePlan, stall: Stall, wait_description: str) -> Cause:
    """The stage showed no sign of life for longer than its phase may; `wait_description` says what its first process
    waits for.
    """
    phase, name = stall.phase, stage.name
    advice = f"if that was no hang, raise limits.silence_s of stage {name}"
    if stall.deadlock:
        advice = (
            f"make every rank reach the same collectives in the same order; {get_hang_report_path(stage)} shows each"
        )
        odd = f"; {wait_description}" if stall.deadlock.absent_pids and wait_description else ""
        what = f"stage {name} hangs: {stall.deadlock.description}{odd}; no rank worked for"
        what += f" {duration_text(stall.silent_s)}, and it was stopped"
    elif stall.rule == "steps":
        usual = precise_duration_text(stall.step_s)
        what = f"stage {name} made no step for {duration_text(stall.silent_s)}, usually {usual} apart,"
        what += " its processes do nothing, and was stopped"
        advice = f"if that was no hang, raise limits.steps of stage {name}"
    elif phase.name:
        silent = exact_duration_text(stall.limit_s)
        what = f"stage {name} hung in phase {phase.name}: no sign of life for {silent}, and was stopped"
    else:
        what = f"stage {name} wrote nothing for {exact_duration_text(stall.limit_s)} and was stopped"
    own = next((own for own in stage.phases if own.name == phase.name), None)
    if own and stall.rule == "silence":
        advice = f"if that was no hang, raise silence_s of phase {own.name}"
    return Cause(
        kind="silence",
        what=what,
        where=get_stage_log_path(stage),
        next_step="; ".join(part for part in (phase.remedy, advice) if part),
        phase=phase.name,
        waits=wait_description,
        report=get_hang_report_path(stage),
    )


def get_hang_report_path(stage: StagePlan) -> str:
    return f"{stage.directory}/{EVIDENCE_FOLDER}/{HANG_PAGE}"
