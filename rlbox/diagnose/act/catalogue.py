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
from rlbox.version import __version__

_FORM = 3
_OWN, _PACK = "signatures", "pack"
"""What is kept of them: those of a pack were looked at, and found sound."""
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
    return _read_kept(files, _OWN) or _keep(files, _OWN, signatures_of(_fixes(files)))


def _read_kept(files: Mapping[str, Path], kind: str) -> tuple[LogSignature, ...]:
    with contextlib.suppress(OSError, ValueError):
        return rows_of(parse_json(_place_of(files, kind).read_bytes()), own=True)
    return ()


def _keep(files: Mapping[str, Path], kind: str, signatures: Sequence[LogSignature]) -> tuple[LogSignature, ...]:
    """Keep the signatures of files, with the texts that each needs, which take longest to work out; return them."""
    rows = tuple(replace(one, needs=anchors(one.pattern)) for one in signatures)
    with contextlib.suppress(OSError):
        if make_folder(_place_of(files, kind).parent):
            write_atomic(_place_of(files, kind), rows_json(rows), mode=0o600)
    return rows


def _place_of(files: Mapping[str, Path], kind: str) -> Path:
    return cache_folder("diagnose", f"{kind}-{_digest(files)}.json")


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
        raise SpecError(f"broken TOML: {error}", where=str(path), next_step="correct the file") from error


def _pack(folder: Path) -> tuple[LogSignature, ...]:
    """Return the signatures of a pack; what is kept of it was sound."""
    files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if not files:
        raise SpecError(
            f"{folder}: no signatures in it", next_step="name a folder with files like templates/fixes/*.toml"
        )
    if kept := _read_kept(files, _PACK):
        return kept
    problems: list[str] = []
    rows: list[LogSignature] = []
    for fix in _fixes(files):
        for signature, row in zip(signatures_of([fix]), fix.get("signature", ()), strict=True):
            problems += [f"{fix['id']}: {problem}" for problem in problems_of(signature, row.get("example", ""))]
            rows.append(signature)
    if problems:
        raise SpecError(f"{folder}: unsound signatures\n  " + "\n  ".join(problems), next_step="correct the pack")
    return _keep(files, _PACK, rows)


def read_run_catalogue(path: Path) -> SignatureSet:
    """Return the catalogue that a run carries beside its plan; an empty one when it carries none."""
    try:
        return SignatureSet(rows_of(parse_json(read_bytes(path))))
    except (OSError, ValueError):
        return SignatureSet(())
