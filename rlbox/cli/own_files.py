"""Files of the user's project that verbs write."""

from __future__ import annotations

from rlbox.app import App
from rlbox.errors import NodeError


def write_own(app: App, name: str, text: str) -> None:
    """Write a file of the project folder, whole or not at all.

    Raises
    ------
    NodeError
        The folder is read-only or full.
    """
    from rlbox.system.files import write_atomic

    path = app.project.folder / name
    try:
        write_atomic(path, text)
    except OSError as error:
        raise NodeError(
            f"{name} cannot be written: {error.strerror}",
            where=str(path),
            next_step="make the project folder writable, or name another with --project DIR",
        ) from error
