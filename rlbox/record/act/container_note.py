"""Which container carries out a run, and on which engine: written before it is made, removed after it is gone.

The notes lie outside the run directories, so that a container is found again though its run directory was removed,
from a shell that speaks to another engine, without asking any engine when there is nothing to find.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from rlbox.files.act.folders import write_atomic
from rlbox.record.act.folder import OWN

_FOLDER = "containers"


@dataclass(frozen=True, kw_only=True)
class ContainerNote:
    """The container `name` of the run `run`; `engine` is the address that the engine had when it was made.

    `started` says that the engine had started it: one that is missing then was removed by somebody else.
    """

    run: str
    name: str
    engine: str
    started: bool = False


def write_note(data: Path, note: ContainerNote) -> None:
    """Write down a container that is about to be made, or that has started."""
    write_atomic(_path(data, note.run), json.dumps(dataclasses.asdict(note)))


def list_notes(data: Path) -> dict[str, ContainerNote]:
    """Return the notes of a data disk by run id."""
    found = {}
    for path in sorted((data / OWN / _FOLDER).glob("*.json")):
        try:
            note = ContainerNote(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            continue
        found[note.run] = note
    return found


def forget_note(data: Path, run: str) -> None:
    """Remove the note of a container that is gone."""
    _path(data, run).unlink(missing_ok=True)


def _path(data: Path, run: str) -> Path:
    return data / OWN / _FOLDER / f"{run}.json"
