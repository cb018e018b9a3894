"""Remove runs from a data disk: each is gone from the list at once, whole, and then from the disk."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.record.host_record import HostRecordStore
from rlbox.record.ledger import RunStore
from rlbox.system.safe_files import make_directory, read_stat, remove_tree, rename_path, walk_files


def directory_bytes(folder: Path) -> int:
    """Return the bytes of all files of a folder; links are not followed, and not counted."""
    return sum(facts.st_size for __, facts in walk_files(folder) if stat.S_ISREG(facts.st_mode))


def remove_run(run_store: RunStore, run: str) -> None:
    """Remove one run that has ended; whoever calls holds the disk.

    It is moved out of the list of runs first, so that one which is removed in part looks like no run; what a kill left
    is removed by the next verb that settles runs.

    Raises
    ------
    NodeError
        Its files belong to somebody else, or the disk refuses.
    """
    gone = run_store.trash_dir / run
    try:
        for folder in (gone.parent.parent, gone.parent):
            make_directory(folder)
        if read_stat(gone):  # a run of this name that a kill left here
            remove_tree(gone)
        rename_path(run_store.run_dir(run), gone)
        HostRecordStore(run_store.data_dir).delete(run)
        remove_tree(gone)
    except OSError as error:
        with contextlib.suppress(OSError):
            whole = read_stat(run_store.run_dir(run)) is not None
            raise NodeError(
                _("run {run} cannot be removed: {strerror}").format(run=run, strerror=error.strerror)
                if whole
                else _("run {run} cannot be removed whole: {strerror}").format(run=run, strerror=error.strerror),
                where=str(error.filename or run_store.run_dir(run)),
                next_step=_("do it as the user whose files they are, or as root"),
            ) from error
