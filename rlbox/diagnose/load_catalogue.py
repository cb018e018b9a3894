"""The catalogue of signatures, from the files of fixes and of packs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlbox.config.pattern import check_pattern
from rlbox.diagnose.catalogue import LogSignature, SignatureSet, rows_of, signatures_of
from rlbox.errors import SpecError
from rlbox.foreign import parse_json, toml_table
from rlbox.logs.lines import block_of
from rlbox.logs.patterns import find_hits
from rlbox.system.safe_files import read_bytes

_MOST_BYTES = 4 << 20


def load_catalogue(files: Mapping[str, Path], packs: Sequence[Path] = ()) -> SignatureSet:
    """Return the catalogue of fixes (id to file) and of packs, folders with such files of other teams.

    A pack adds to the catalogue and takes no one's place: its fix of a known id keeps its own signatures beside those
    that are there.

    Raises
    ------
    SpecError
        A file cannot be read, or a signature of a pack is wrong; all that is wrong is named.
    """
    rows = signatures_of(_fixes(files))
    for pack in packs:
        rows = (*rows, *_pack(pack))
    return SignatureSet(rows)


def _fixes(files: Mapping[str, Path]) -> list[dict[str, Any]]:
    return [{**_table(path), "id": name} for name, path in sorted(files.items())]


def _table(path: Path) -> dict[str, Any]:
    try:
        return toml_table(path.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        raise SpecError(f"broken TOML: {error}", where=str(path), next_step="correct the file") from error


def _pack(folder: Path) -> tuple[LogSignature, ...]:
    """Return the signatures of a pack."""
    files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if not files:
        raise SpecError(
            f"{folder}: no signatures in it", next_step="name a folder with files like templates/fixes/*.toml"
        )
    fixes = _fixes(files)
    problems = [f"{fix['id']}: {problem}" for fix in fixes for problem in _problems_of(fix)]
    if problems:
        raise SpecError(f"{folder}: wrong signatures\n  " + "\n  ".join(problems), next_step="correct the pack")
    return signatures_of(fixes)


def _problems_of(fix: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the signatures of a pack's fix: shipped ones are held against their model instead."""
    for signature, row in zip(signatures_of([fix]), fix.get("signature", ()), strict=True):
        example = row.get("example", "")
        try:
            check_pattern(signature.pattern)
        except ValueError as error:
            yield str(error)
            continue
        known = SignatureSet([signature])
        if example and not known.knows(example):
            yield f"{signature.pattern!r} does not fit its own example"
        elif example and signature.role != "benign" and not find_hits(known.scan_expressions, block_of([example])):
            yield "no scan finds its example: name a text of it as `anchor`"


def read_run_catalogue(path: Path) -> SignatureSet:
    """Return the catalogue that a run carries beside its plan; an empty one when it carries none."""
    try:
        return SignatureSet(rows_of(parse_json(read_bytes(path))))
    except (OSError, ValueError):
        return SignatureSet(())
