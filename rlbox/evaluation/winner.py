"""What of an evaluation comes home: where a run has its results, and which export is the best of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from rlbox.i18n import _

HISTORY, BEST = "eval_history.jsonl", "best_checkpoint.json"
"""What a gate asks for in a folder of results (P186)."""


def results_folders(plan: Mapping[str, Any]) -> list[str]:
    """Return the folders of results of a run, as its processes see them: where a gate of its plan asks for them.

    `plan` is `plan.json`; what is no plan has none.
    """
    found: list[str] = []
    for stage in _rows(plan.get("stages")):
        for file in _rows(stage.get("files")):
            path = PurePosixPath(str(file.get("path", "")))
            if path.name in (HISTORY, BEST):
                found.append(str(path.parent))
    return list(dict.fromkeys(found))


def data_of(plan: Mapping[str, Any]) -> str:
    """Return the data disk as the processes of a run see it; empty where its plan does not say."""
    paths = plan.get("paths")
    return str(paths.get("data") or "") if isinstance(paths, Mapping) else ""


def best_of(document: Any) -> tuple[str, str]:
    """Return name and export of `best_checkpoint.json`; `ValueError` where it is none, or does not know the export."""
    if not isinstance(document, Mapping) or not document.get("name") or not document.get("model"):
        raise ValueError(_("it does not say which export is the best"))
    return str(document["name"]), str(document["model"])


def below_disk(path: str, disks: Sequence[str]) -> str:
    """Return a path as it is below the data disk, which has one of some names; `ValueError` when it is below none."""
    whole = PurePosixPath(path)
    for disk in disks:
        if disk and ".." not in whole.parts and whole.is_relative_to(disk):
            return str(whole.relative_to(disk))
    raise ValueError(_("{path} is not on the data disk {disk}").format(path=path, disk=disks[-1]))


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
