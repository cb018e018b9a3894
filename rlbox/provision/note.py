"""The note of an unpacked base image, which lies beside its tree and says what it is, however the place came to it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rlbox.provision.unpacked import LIBRARIES, NOTE, BaseNote
from rlbox.system.files import write_atomic
from rlbox.system.safe_files import read_bytes

PARTIAL = ".partial"


def unpacked_image(folder: Path) -> BaseNote | None:
    """Return what lies unpacked in a folder and can be used."""
    note = read_note(folder)
    return note if note and note.whole and (folder / LIBRARIES).is_dir() else None


def read_note(folder: Path) -> BaseNote | None:
    """Return what lies unpacked in a folder; None where nothing does, or what does is not rlbox's."""
    try:
        return TypeAdapter(BaseNote).validate_json(read_bytes(folder / NOTE, links=True))
    except (OSError, ValidationError):
        return None


def partial_of(folder: Path) -> Path:
    """Return where an image is unpacked before it is whole."""
    return folder.with_name(folder.name + PARTIAL)


def write_note(folder: Path, note: BaseNote) -> None:
    """Write what lies in a folder, whole or not at all."""
    write_atomic(folder / NOTE, json.dumps(dataclasses.asdict(note), indent=1) + "\n")
