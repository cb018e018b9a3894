"""The repairs of `rlbox doctor --fix`: links, folders, modes. No process is ended, nothing that holds data removed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from rlbox.findings import Finding


def repair(findings: Iterable[Finding]) -> Iterator[tuple[Finding, str]]:
    """Carry out what can safely be done and yield each finding with what was done, or why it was not."""
    for finding in findings:
        if finding.repair:
            try:
                yield finding, _carry_out(finding.repair)
            except OSError as error:
                yield finding, f"not repaired: {error.filename}: {error.strerror}"


def _carry_out(words: tuple[str, ...]) -> str:
    match words:
        case ("link", path, to):
            return _link(path, to)
        case ("folder", path):
            os.makedirs(path, exist_ok=True)
            return f"made the folder {path}"
        case ("mode", path, mode):
            os.chmod(path, int(mode, 8))
            return f"gave {path} the mode {mode}"
        case ("empty-lock", path):
            os.truncate(path, 0)
            return f"emptied {path}, whose rlbox has ended"
        case _:
            return f"not repaired: this rlbox knows no repair {' '.join(words)}"


def _link(path: str, to: str) -> str:
    """Make a link; one that leads nowhere is replaced, anything else that stands there is left."""
    if os.path.lexists(path):
        if not stat.S_ISLNK(os.lstat(path).st_mode) or os.path.exists(path):
            return f"not repaired: {path} is there already"
        os.unlink(path)
    os.symlink(to, path)
    return f"made the link {path} -> {to}"
