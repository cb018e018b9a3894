"""An export: a checkpoint in Hugging Face's form, found at a path as frameworks lay it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rlbox.i18n import _

PLACES = ("", "huggingface", "actor/huggingface", "hf")
"""Where a checkpoint has its export: itself, verl's trainers, slime's converter."""
_STEP = re.compile(r"(?:global_steps?_?|step[_-]|iter_|checkpoint-)(\d+)(?:_hf)?")


@dataclass(frozen=True, kw_only=True)
class Export:
    """A checkpoint in Hugging Face's form: its folder, a name, the training step (-1: none, as of a base model)."""

    path: Path
    name: str
    step: int


def export_at(path: Path) -> Export:
    """Return the export that a checkpoint's folder is or has; `ValueError` where there is none."""
    folder = next((path / place for place in PLACES if (path / place / "config.json").is_file()), None)
    if folder is None:
        raise ValueError(
            _("{path} has no config.json, nor has {path2}: it is no export").format(path=path, path2=path / PLACES[1])
        )
    whole = folder.resolve()
    for part in reversed(whole.parts):
        if found := _STEP.fullmatch(part):
            return Export(path=folder, name=f"step_{int(found[1])}", step=int(found[1]))
    return Export(path=folder, name=re.sub(r"[^A-Za-z0-9._-]", "_", whole.name) or "export", step=-1)
