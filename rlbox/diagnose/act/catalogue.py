"""The catalogue as a diagnosis needs it: from the files of fixes, kept ready so that it is read in milliseconds."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlbox.diagnose.catalogue import LogSignature, SignatureSet, rows_json, rows_of, signatures_of
from rlbox.diagnose.literals import anchors
from rlbox.diagnose.soundness import problems_of
from rlbox.errors import SpecError
from rlbox.files.act.beneath import read_bytes
from rlbox.files.act.folders import cache_folder, make_folder, write_atomic
from rlbox.foreign import parse_json, toml_table
from rlbox.printable import isolated
from rlbox.version import __version__

_FORM = 2
_MOST_BYTES = 4 << 20


def load_catalogue(files: Mapping[str, Path], packs: Sequence[Path] = ()) -> SignatureSet:
    """Return the catalogue of fixes (id to file) and of packs, folders with such files of other teams.

    A pack adds to the catalogue and takes no one's place: its fix of a known id keeps its own signatures beside those
    that are there.

    Raises
    ------
    SpecError
        A file cannot be read, or a signature of a pack is unsound; all that is wrong is named.
    """
    rows = _kept(files)
    for pack in packs:
        rows = (*rows, *_pack(pack))
    return SignatureSet(rows)


def _kept(files: Mapping[str, Path]) -> tuple[LogSignature, ...]:
    """Return the signatures of files, from this user's cache while none of them changed."""
    place = cache_folder("diagnose", f"signatures-{_digest(files)}.json")
    with contextlib.suppress(OSError, ValueError):
        if kept := rows_of(parse_json(place.read_bytes()), own=True):
            return kept
    rows = tuple(replace(one, needs=anchors(one.pattern)) for one in signatures_of(_fixes(files)))
    with contextlib.suppress(OSError):
        if make_folder(place.parent):
            write_atomic(place, rows_json(rows), mode=0o600)
    return rows


def _digest(files: Mapping[str, Path]) -> str:
    facts = []
    for name, path in sorted(files.items()):
        with contextlib.suppress(OSError):
            stat = os.stat(path)
            facts.append(f"{name} {path} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}")
    return hashlib.sha256("\n".join((f"{_FORM} {__version__}", *facts)).encode()).hexdigest()[:24]


def _fixes(files: Mapping[str, Path]) -> list[dict[str, Any]]:
    return [{**_table(path), "id": name} for name, path in sorted(files.items())]


def _table(path: Path) -> dict[str, Any]:
    try:
        return toml_table(path.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        raise SpecError(f"broken TOML: {isolated(error)}", where=str(path), next_step="correct the file") from error


def _pack(folder: Path) -> tuple[LogSignature, ...]:
    files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if not files:
        raise SpecError(
            f"{folder}: no signatures in it", next_step="name a folder with files like templates/fixes/*.toml"
        )
    problems, rows = [], []
    for fix in _fixes(files):
        for signature, row in zip(signatures_of([fix]), fix.get("signature", ()), strict=True):
            problems += [
                f"{isolated(fix['id'])}: {problem}" for problem in problems_of(signature, row.get("example", ""))
            ]
            rows.append(signature)
    if problems:
        raise SpecError(f"{folder}: unsound signatures\n  " + "\n  ".join(problems), next_step="correct the pack")
    return tuple(rows)


def read_run_catalogue(path: Path) -> SignatureSet:
    """Return the catalogue that a run carries beside its plan; an empty one when it carries none."""
    try:
        return SignatureSet(rows_of(parse_json(read_bytes(path))))
    except (OSError, ValueError):
        return SignatureSet(())
