"""What a live view shows beside the state of a run, read from the ends of its files and only when they grew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rlbox.amounts import moment
from rlbox.job.names import METRICS_FILE
from rlbox.logs.lines import clean_text
from rlbox.logs.progress import ProgressBar, Reading, find_candidates, last_bar, latest, read_progress, read_record
from rlbox.record.resources import RESOURCES_FILE, Sample, parse_sample, seconds_until_disk_full
from rlbox.record.state import RunState, StageState
from rlbox.report.doing import Doing, find_doing
from rlbox.system.json_files import parse_json_lines
from rlbox.system.tail import read_last_bytes

_END_BYTES = 64 * 1024
_LINE_LIMIT = 300

_NOTHING = Reading()

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One look at a run: `stage` is the one that goes on, `line` the last of its logs with that log's name before it.

    `progress` is what logs and metrics of the stage told last, `doing` what it is busy with besides its steps;
    `full_in_s` when the disk will be full at its present rate (None: it does not fill).
    """

    state: RunState
    stage: StageState | None = None
    progress: Reading = _NOTHING
    doing: Doing | None = None
    sample: Sample | None = None
    full_in_s: float | None = None
    line: str = ""


class RunWatch:
    """Looks at a run's directory again and again; a file that did not grow is not read again."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[Path, tuple[tuple[int, int], Any]] = {}

    def look(self, state: RunState) -> RunFacts:
        """Return the facts now; what cannot be read is left out."""
        stage = next((s for s in state.stages if s.state in ("starting", "running")), None)
        samples = self._read(self._run_dir / RESOURCES_FILE, _samples) or []
        history = [(at, sample.disk_free_bytes) for sample in samples if (at := moment(sample.t)) is not None]
        return RunFacts(
            state=state,
            stage=stage,
            progress=self._progress(stage) if stage else _NOTHING,
            doing=find_doing(stage, samples, self._bars(stage)) if stage else None,
            sample=samples[-1] if samples else None,
            full_in_s=seconds_until_disk_full(history),
            line=self._last_line(stage) if stage else "",
        )

    def _progress(self, stage: StageState) -> Reading:
        logs = [self._read(path, _log_readings) or [] for path in self._logs(stage)]
        rows = self._read(self._run_dir / METRICS_FILE, _rows) or []
        own = [found for row in rows if row.get("stage", stage.name) == stage.name and (found := read_record(row))]
        return latest([*own, *(reading for readings in logs for reading in readings)])

    def _bars(self, stage: StageState) -> dict[str, ProgressBar | None]:
        return {path.stem: self._read(path, last_bar) for path in self._logs(stage)}

    def _last_line(self, stage: StageState) -> str:
        logs = sorted((path for path in self._logs(stage) if _stamp(path)), key=lambda path: _stamp(path)[0])
        for path in reversed(logs):
            if line := self._read(path, _last_line):
                return f"{path.stem}: {line}"
        return ""

    def _logs(self, stage: StageState) -> list[Path]:
        """Return the logs of a stage, its own last: what it says of itself counts most."""
        folder = self._run_dir / stage.directory
        return [*(folder / f"{service.name}.log" for service in stage.services), folder / "stage.log"]

    def _read(self, path: Path, read: Callable[[bytes], T]) -> T | None:
        key = path / read.__name__
        stamp = _stamp(path)
        known = self._known.get(key)
        if known is None or known[0] != stamp:
            self._known[key] = known = (stamp, read(read_last_bytes(path, _END_BYTES)) if stamp != (0, 0) else None)
        found: T | None = known[1]
        return found


def _stamp(path: Path) -> tuple[int, int]:
    try:
        facts = path.stat()
    except OSError:
        return 0, 0
    return facts.st_mtime_ns, facts.st_size


def _samples(data: bytes) -> list[Sample]:
    return [sample for row in parse_json_lines(data.splitlines()) if (sample := parse_sample(row))]


def _rows(data: bytes) -> list[dict[str, Any]]:
    return list(parse_json_lines(data.splitlines()))


def _log_readings(data: bytes) -> list[Reading]:
    texts = (text.decode("utf-8", "replace") for _, line in find_candidates(data) for text in line.split(b"\r"))
    return [found for text in texts if (found := read_progress(text))]


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").replace("\r", "\n").split("\n")
    for line in reversed(lines):
        if shown := "".join(c if c.isprintable() else " " for c in clean_text(line)[:_LINE_LIMIT]).strip():
            return shown
    return ""
