"""What this host knows of the runs that it started, where no program of a run can write: a file a run, by data disk.

A data disk is seen by the programs of its runs, so what lies there is for people and for reports. What rlbox does on
this host follows from these files alone: which container carries a run, by its engine, and how the run ended.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.errors import RlboxError, SpecError
from rlbox.i18n import _
from rlbox.job.plan import RunPlan, load_run_plan
from rlbox.record.kinds import parse_as
from rlbox.record.verdict import RunOutcome
from rlbox.system.files import state_path, write_atomic
from rlbox.system.json_files import read_json_object

_RUNS = "runs"


@dataclass(frozen=True, kw_only=True)
class ContainerRef:
    """The carrier `name` of the run `run`; `engine` is the address that what runs it had when it was made.

    `started` is when it was started, by its engine; empty before. One that is missing then was removed by somebody
    else. `place` is where the run takes place.
    """

    run: str
    name: str
    engine: str
    started: str = ""
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class HostRecord:
    """What is known of one run: the plan it was started with, what carries it while that is there, how it ended.

    `project` is the folder of the project that it was started from.
    """

    plan: RunPlan | None = None
    note: ContainerRef | None = None
    verdict: RunOutcome | None = None
    project: str = ""


class HostRecordStore:
    """The records of the runs of one data disk."""

    def __init__(self, data: Path) -> None:
        self.folder = state_path(_RUNS, hashlib.sha256(str(data).encode("utf-8", "replace")).hexdigest()[:16])

    def run_ids(self) -> list[str]:
        """Return the runs of which there is a record."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def read(self, run: str) -> HostRecord:
        """Return what is known of a run; nothing when it was not started from here."""
        data = self._table(run)
        project = data.get("project", "")
        return HostRecord(
            plan=_plan(data.get("plan")),
            note=_note(data),
            verdict=_verdict(data),
            project=project if isinstance(project, str) else "",
        )

    def read_ref(self, run: str) -> ContainerRef | None:
        """Return what carries a run, its plan left unread; None when nothing is known to."""
        return _note(self._table(run))

    def read_outcome(self, run: str) -> RunOutcome | None:
        """Return how a run ended, its plan left unread; None when that is not known."""
        return _verdict(self._table(run))

    def write(self, run: str, record: HostRecord) -> None:
        """Write down what is known of a run; `OSError` when the folder cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(self._path(run), json.dumps({"schema": 1, **dataclasses.asdict(record)}), mode=0o600)

    def delete(self, run: str) -> None:
        """Remove what is known of a run."""
        self._path(run).unlink(missing_ok=True)

    def extra_path(self, run: str, name: str) -> Path:
        """Return where a file about a run lies that is no record."""
        return self.folder / f"{run}.{name}"

    def _table(self, run: str) -> dict[str, Any]:
        return read_json_object(self._path(run), links=True)

    def _path(self, run: str) -> Path:
        if Path(run).name != run or run in ("", ".."):
            raise SpecError(_("{run!r} is no name of a run").format(run=run))
        return self.folder / f"{run}.json"


def load_run_outcome(run_dir: Path) -> RunOutcome | None:
    """Return how the run of a directory ended, as this host kept it; None when it does not know."""
    return HostRecordStore(run_dir.parent.parent).read_outcome(run_dir.name)


def _plan(data: Any) -> RunPlan | None:
    try:
        return load_run_plan(data) if data else None
    except RlboxError:
        return None  # of another rlbox


def _note(data: dict[str, Any]) -> ContainerRef | None:
    return parse_as(ContainerRef, data.get("note"))


def _verdict(data: dict[str, Any]) -> RunOutcome | None:
    return parse_as(RunOutcome, data.get("verdict"))
