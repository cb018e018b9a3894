"""Write a little to every folder that a run needs, and read how much room it has."""

from __future__ import annotations

import errno
import functools
import os
import stat
import tempfile
import threading
from collections.abc import Mapping, Sequence

from rlbox.amounts import limit_text
from rlbox.doctor.judge.disks import PlaceFacts

_PROBE_BYTES = 256 << 10
_SLOW_S = 4.0
# Variables whose folder a program of the stack makes and writes to; it need not be there, but it must be possible.
FOLDERS = (
    "FLASHINFER_WORKSPACE_BASE", "HF_DATASETS_CACHE", "HF_HOME", "HF_HUB_CACHE", "NUMBA_CACHE_DIR", "RAY_TMPDIR",
    "PYTHONPYCACHEPREFIX", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCH_HOME", "TRITON_CACHE_DIR",
    "VLLM_CACHE_ROOT", "WANDB_DIR", "XDG_CACHE_HOME",
)  # fmt: skip


def places_of(environ: Mapping[str, str], mount: str) -> list[tuple[str, str]]:
    """Return role and path of the folders to look at; a variable that names none is left out."""
    temporary = environ.get("TMPDIR") or "/tmp"  # noqa: S108 - where programs write
    named = [(name, environ[name]) for name in FOLDERS if environ.get(name, "").startswith("/")]
    return [("data", mount), ("tmp", temporary), *named]


def probe_places(places: Sequence[tuple[str, str]]) -> tuple[PlaceFacts, ...]:
    """Return the state of each folder; one that does not answer in 4 s (a dead network disk) is called slow."""
    found: dict[int, PlaceFacts] = {}

    def look(number: int, role: str, path: str) -> None:
        try:
            found[number] = _probe(role, path)
        except OSError as error:
            found[number] = PlaceFacts(role=role, path=path, kind=_kind(error), error=error.strerror or str(error))

    threads = [
        threading.Thread(target=look, args=(number, role, path), daemon=True)
        for number, (role, path) in enumerate(places)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SLOW_S)
    waited = f"no answer in {limit_text(_SLOW_S)}"
    return tuple(
        found.get(number) or PlaceFacts(role=role, path=path, kind="slow", error=waited)
        for number, (role, path) in enumerate(places)
    )


@functools.cache
def answers(path: str) -> bool:
    """Return whether a path is answered about in 2 s, be it there or not; one of a server that is away never is."""
    thread = threading.Thread(target=os.path.lexists, args=(path,), daemon=True)
    thread.start()
    thread.join(_SLOW_S / 2)
    return not thread.is_alive()


def _probe(role: str, path: str) -> PlaceFacts:
    target = path if role in ("data", "tmp") else _nearest(path)
    if not os.path.isdir(target):
        kind = "file" if os.path.lexists(target) else "missing"
        words = "there is something else" if kind == "file" else "no such folder"
        return PlaceFacts(role=role, path=path, kind=kind, error=f"{target}: {words}")
    facts, room = os.stat(target), os.statvfs(target)
    kind, error = _write(target)
    return PlaceFacts(
        role=role,
        path=path,
        kind=kind,
        error=error,
        owner=f"{target} is uid {facts.st_uid}'s, mode {stat.S_IMODE(facts.st_mode):04o}",
        total=room.f_blocks * room.f_frsize,
        free=room.f_bavail * room.f_frsize,
        inodes=room.f_files,
        inodes_free=room.f_favail,
        mine=facts.st_uid == os.getuid(),
    )


def _nearest(path: str) -> str:
    """Return the path itself, or the folder in which it would be made."""
    while path != "/" and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _write(folder: str) -> tuple[str, str]:
    """Return what stands in the way of writing there, as a kind and in words; empty when it can be done."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
    except OSError as error:
        return _kind(error), error.strerror or str(error)
    return "", ""


def _kind(error: OSError) -> str:
    """Return what an error says of a folder."""
    kinds = {errno.EROFS: "read-only", errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EIO: "broken"}
    return kinds.get(error.errno or 0, "denied")
