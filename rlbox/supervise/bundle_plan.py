"""Which files of a run directory a bundle takes, and how much of each. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from rlbox.job.names import EVIDENCE_FOLDER

LOG_TAIL_BYTES = 20 * 1000 * 1000
"""What is kept of a longer log: its end; the part around its first fatal line is kept in a file of its own."""

_FILE_BYTES = 8 * 1000 * 1000
_COUNT = 2000
_TEXTS = frozenset({
    ".cfg", ".csv", ".err", ".html", ".ini", ".json", ".jsonl", ".lock", ".log", ".md", ".out", ".png", ".py", ".sh",
    ".svg", ".times", ".toml", ".txt", ".yaml", ".yml",
})  # fmt: skip
_LOGS = frozenset({".log", ".err", ".out"})
_SECRETS = frozenset({".env", ".netrc", ".git-credentials", "auth_token", "id_rsa", "id_ed25519"})


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """A file below a run directory: its path there with `/`, and its bytes; `plain` is False for links and pipes."""

    name: str
    bytes: int
    plain: bool = True


@dataclass(frozen=True, kw_only=True)
class SelectedFile:
    """A file that is taken: its last `keep` bytes of `bytes`."""

    name: str
    bytes: int
    keep: int

    @property
    def is_log(self) -> bool:
        """Whether it is a log, in which fatal lines are looked for."""
        return is_log(self.name)


@dataclass(frozen=True, kw_only=True)
class SkippedFile:
    """A file that is left out, and why."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a bundle takes and leaves out, both in order of their names."""

    taken: tuple[SelectedFile, ...]
    left: tuple[SkippedFile, ...]


def select_files(files: Iterable[RunFile], *, full: bool) -> Selection:
    """Return what a bundle takes of a run's `files`: what it is about and can be read, never models or checkpoints.

    Parameters
    ----------
    full
        Take logs whole, however long they are.
    """
    taken: list[SelectedFile] = []
    left: list[SkippedFile] = []
    for file in sorted(files, key=lambda file: file.name):
        why = _refusal(file) or ("more than 2000 files" if len(taken) >= _COUNT else "")
        if why:
            left.append(SkippedFile(name=file.name, bytes=file.bytes, why=why))
            continue
        keep = file.bytes if full or not is_log(file.name) else min(file.bytes, LOG_TAIL_BYTES)
        taken.append(SelectedFile(name=file.name, bytes=file.bytes, keep=keep))
    return Selection(taken=tuple(taken), left=tuple(left))


def is_log(name: str) -> bool:
    """Whether a file is a log by its name."""
    return PurePosixPath(name).suffix in _LOGS


def _refusal(file: RunFile) -> str:
    path = PurePosixPath(file.name)
    if not file.plain:
        return "a link or a special file"
    if path.name in _SECRETS:
        return "may hold secrets"
    if path.name.startswith("."):
        return "a file of rlbox's own, or hidden"
    if path.suffix not in _TEXTS and EVIDENCE_FOLDER not in path.parts:
        return "no text of a known kind: perhaps a model, a checkpoint or data"
    if file.bytes > _FILE_BYTES and not is_log(file.name):
        return "larger than 8 MB"
    return ""
