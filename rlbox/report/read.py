"""Everything that a run directory tells, read for a report: whatever is missing or torn is left out and named."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from rlbox.config.toml_files import parse_toml
from rlbox.errors import SpecError
from rlbox.foreign import parse_untrusted_json
from rlbox.job.names import ATTEMPT_PREFIX, EVIDENCE_FOLDER, FATAL_FILE, HANG_PAGE
from rlbox.job.plan import parse_run_plan
from rlbox.record.host_record import load_outcome_from_host_record, mark_failed_if_outcome_differs
from rlbox.record.resources import RESOURCES_FILE, ResourceSample, parse_sample
from rlbox.record.run_dir import PLAN_FILE
from rlbox.record.state import EVENTS_FILE, RUN_FILE, RunState, create_run_state, load_run_state
from rlbox.report.metrics import MetricSeries, read_metrics
from rlbox.secrets.masks import SecretMasker
from rlbox.system.json_files import iter_tail_lines_or_raise, parse_valid_json_objects
from rlbox.system.safe_files import (
    is_regular_file,
    list_directory_empty_if_missing,
    open_regular_file,
    read_bytes,
    walk_non_directories,
)
from rlbox.target.lock import Lock, parse_lock

_MOST_SAMPLES = 20_000
_TEXT_BYTES = 256 * 1024
_MOST_EVENTS = 20_000


@dataclass(frozen=True, kw_only=True)
class StageEvidence:
    stage: str
    folder: str
    fatal_excerpt: str = ""
    hang_report_text: str = ""
    facts: Mapping[str, Any]
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as its directory tells it; every text is masked. `gaps` says what was missing or could not be read.

    `began` is false for a run of which there is a plan alone. `evidence` is that of each stage that failed.
    """

    folder: Path
    began: bool
    state: RunState
    plan: Mapping[str, Any]
    overrides: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]
    samples: tuple[ResourceSample, ...]
    metrics: tuple[MetricSeries, ...]
    evidence: tuple[StageEvidence, ...]
    packages: tuple[str, ...]
    gaps: tuple[str, ...]

    def read_spec_toml_or_empty(self, name: Literal["job", "target", "source"]) -> Mapping[str, Any]:
        path = self.folder / "spec" / f"{name}.toml"
        try:
            return parse_toml(read_bytes(path).decode(), str(path))
        except (OSError, ValueError, SpecError):
            return {}

    def load_lock_or_none(self) -> Lock | None:
        path = self.folder / "spec/lock.json"
        try:
            return parse_lock(read_bytes(path), str(path), "")
        except (OSError, SpecError):
            return None


def load_run_record(run_dir: Path, masks: SecretMasker, *, max_points_per_series: int) -> RunRecord:
    """Read the directory of a run that is going on, ended, or was broken off anywhere; 0 points: no series is read.

    Raises
    ------
    SpecError
        The folder holds neither a state nor a plan that this rlbox can read.
    """
    files = _Files(run_dir, masks)
    plan = files.read_object_or_empty(PLAN_FILE)
    began, state = _state(files, plan)
    evidence = tuple(_evidence(files, state))
    metrics = read_metrics(run_dir, state.stages, max_points_per_series) if max_points_per_series else []
    return RunRecord(
        folder=run_dir,
        began=began,
        state=state,
        plan=plan,
        overrides=files.read_object_or_empty("overrides.json", wanted=False),
        events=tuple(files.read_last_event_rows(EVENTS_FILE)),
        samples=tuple(_samples(files)),
        metrics=tuple(metric for metric in metrics if len(metric.points) > 1),
        evidence=evidence,
        packages=_packages(files, evidence),
        gaps=tuple(files.gaps),
    )


class _Files:
    def __init__(self, run_dir: Path, masks: SecretMasker) -> None:
        self.run_dir = run_dir
        self.masks = masks
        self.gaps: list[str] = []

    def read_object_or_empty(self, name: str, *, wanted: bool = True) -> dict[str, Any]:
        """Return the JSON object in a file; empty, and a gap when it is `wanted`, where there is none."""
        path = self.run_dir / name
        try:
            found = parse_untrusted_json(read_bytes(path))
        except FileNotFoundError:
            if wanted:
                self.gaps.append(f"{name}: missing")
            return {}
        except (OSError, ValueError) as error:
            self.gaps.append(f"{name}: cannot be read: {error}")
            return {}
        return self.masks.mask_json(found) if isinstance(found, dict) else {}

    def read_last_event_rows(self, name: str) -> list[dict[str, Any]]:
        rows = (self.masks.mask_json(row) for row in parse_valid_json_objects(self.read_lines(name)))
        return list(deque(rows, maxlen=_MOST_EVENTS))

    def read_lines(self, name: str) -> Iterator[bytes]:
        try:
            yield from iter_tail_lines_or_raise(self.run_dir / name)
        except FileNotFoundError:
            self.gaps.append(f"{name}: missing")
        except OSError as error:
            self.gaps.append(f"{name}: cannot be read: {error.strerror}")

    def read_masked_text_or_empty(self, path: Path) -> str:
        try:
            with open_regular_file(path) as file:
                return self.masks.mask_text(file.read(_TEXT_BYTES).decode("utf-8", "replace"))
        except OSError:
            return ""


def _state(files: _Files, plan: Mapping[str, Any]) -> tuple[bool, RunState]:
    try:
        return True, _masked(
            mark_failed_if_outcome_differs(load_run_state(files.run_dir), load_outcome_from_host_record(files.run_dir)),
            files.masks,
        )
    except SpecError as error:
        problem = error
    files.gaps.append(f"{RUN_FILE}: {problem.what}")
    try:
        known = parse_run_plan(plan)
    except SpecError:
        raise problem from None
    began = is_regular_file(files.run_dir / EVENTS_FILE)
    return began, _masked(create_run_state(known, supervisor_pid=0), files.masks)


def _masked(state: RunState, masks: SecretMasker) -> RunState:
    masked: RunState = TypeAdapter(RunState).validate_python(masks.mask_json(dataclasses.asdict(state)))
    return masked


def _samples(files: _Files) -> list[ResourceSample]:
    """Return the samples, of a run of more than a day every second one, and so on."""
    kept: list[ResourceSample] = []
    stride = 1
    for number, row in enumerate(parse_valid_json_objects(files.read_lines(RESOURCES_FILE))):
        if number % stride == 0 and (sample := parse_sample(row)):
            kept.append(sample)
        if len(kept) > _MOST_SAMPLES:
            kept, stride = kept[::2], 2 * stride
    return kept


def _evidence(files: _Files, state: RunState) -> Iterator[StageEvidence]:
    for stage in state.stages:
        folder = files.run_dir / stage.directory
        for found in [folder / EVIDENCE_FOLDER, *(folder / name / EVIDENCE_FOLDER for name in _attempts(folder))]:
            held = [name for name, _ in walk_non_directories(found)] if stage.directory else []
            if not held:
                continue
            yield StageEvidence(
                stage=stage.name,
                folder=str(found.relative_to(files.run_dir)),
                fatal_excerpt=files.read_masked_text_or_empty(found / FATAL_FILE),
                hang_report_text=files.read_masked_text_or_empty(found / HANG_PAGE),
                facts=files.read_object_or_empty(str(found.relative_to(files.run_dir) / "facts.json"), wanted=False),
                files=tuple(sorted(held)),
            )


def _attempts(folder: Path) -> list[str]:
    try:
        return [name for name in list_directory_empty_if_missing(folder) if name.startswith(ATTEMPT_PREFIX)]
    except OSError:
        return []


def _packages(files: _Files, evidence: tuple[StageEvidence, ...]) -> tuple[str, ...]:
    for found in evidence:
        if packages := list_or_empty(found.facts, "packages"):
            return tuple(map(str, packages))
    groups = dicts_in_list(files.read_object_or_empty("spec/lock.json", wanted=False), "groups")
    rows = [row for group in groups for row in dicts_in_list(group, "packages")]
    return tuple(sorted({f"{row.get('name', '')}=={row.get('version', '')}" for row in rows}))


def list_or_empty(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name)
    return value if isinstance(value, list) else []


def dicts_in_list(row: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [value for value in list_or_empty(row, name) if isinstance(value, dict)]


def dict_or_empty(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}
