"""Exports that appear below a folder while a training writes them: which are there, and what they still lack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlbox.evaluation.ckpt import kind_of, problems_of
from rlbox.evaluation.ckpt_files import entries_of, read_tracker
from rlbox.evaluation.export import PLACES, Export, export_at
from rlbox.evaluation.weights import TOKENIZER, Marks, marks_of
from rlbox.foreign import whole_number

_WORDS = [name for name in TOKENIZER if name.endswith((".json", ".model", ".txt")) and "config" not in name]
_SINGLE = {"added_tokens.json", "special_tokens_map.json", "merges.txt"}
"""Files of a tokenizer that are none by themselves."""


@dataclass(frozen=True, kw_only=True)
class Appearing:
    """A checkpoint that is there, or on its way: `lacks` says what is missing or cut short, empty for a whole one."""

    folder: Path
    export: Export | None
    lacks: str
    marks: Marks


def find_appearing(folder: Path) -> list[Appearing]:
    """Return the checkpoints right below a folder that have an export, or whose trainer writes one, by their steps.

    Of verl, and in Hugging Face's form; those of other trainers where a converter has laid an export into them.
    """
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []
    found, tracker = [], whole_number(read_tracker(folder) or "")
    for name in names:
        kind, step = kind_of(name) or (None, None)
        export = _export(folder / name)
        if export or kind in ("verl", "hf"):
            lacks = _lacks(export) if export else "it has no export: no config.json"
            if kind == "verl" and tracker is not None and (step or 0) > tracker:
                lacks = lacks or f"it was never finished: the tracker names step {tracker}"
            place = export.path if export else folder / name
            found.append(Appearing(folder=folder / name, export=export, lacks=lacks, marks=marks_of(place)))
    return sorted(found, key=lambda one: (one.export.step if one.export else 1 << 62, one.folder.name))


def _export(folder: Path) -> Export | None:
    if not any((folder / place / "config.json").is_file() for place in PLACES):
        return None
    return export_at(folder)


def _lacks(export: Export) -> str:
    entries = entries_of(export.path)
    if problem := next(iter(problems_of("hf", entries)), ""):
        return problem
    return "" if _has_words([entry.path for entry in entries]) else "it has no tokenizer"


def _has_words(names: Sequence[str]) -> bool:
    return any(name in names for name in _WORDS if name not in _SINGLE)
