"""What Ray's heads of a run in place leave in their temporary folders: removed after it, that of others stays.

A container takes its /tmp along; on a machine of one's own each run of a head would leave a session there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from rlbox.job.plan import RunPlan

_LATEST = "session_latest"


class RayFolders:
    """The temporary folders of a run's heads, as they were before it."""

    def __init__(self, plan: RunPlan) -> None:
        folders = {Path(stage.ray.temp_dir) for stage in plan.stages if stage.ray}
        self._new = {folder for folder in folders if not os.path.lexists(folder)}
        self._before = {folder: _sessions(folder) for folder in folders - self._new}

    def clean(self) -> None:
        """Remove the folders that are new, and the sessions that are new in those that were there."""
        for folder in self._new:
            if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
        for folder, before in self._before.items():
            new = _sessions(folder) - before
            for name in new:
                shutil.rmtree(folder / name, ignore_errors=True)
            _drop(folder / _LATEST, new)


def _sessions(folder: Path) -> set[str]:
    """Return the names of a head's sessions that are folders of this user."""
    with contextlib.suppress(OSError):
        found = (path for path in folder.glob("session_*") if path.is_dir() and not path.is_symlink())
        return {path.name for path in found if path.stat().st_uid == os.getuid()}
    return set()


def _drop(link: Path, names: Iterable[str]) -> None:
    """Remove the link to the latest session when that is gone."""
    with contextlib.suppress(OSError):
        if Path(os.readlink(link)).name in set(names):
            link.unlink()
