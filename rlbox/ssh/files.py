"""Files there and back over one connection: each goes on where it was cut, and counts when its sha256 is right."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from rlbox.errors import NodeError, WorkFailed
from rlbox.files.act.copies import sum_file
from rlbox.machine.act.command import NOTHING, PIPE, Started
from rlbox.printable import isolated
from rlbox.ssh.connection import BROKEN, Connection, ConnectionLost
from rlbox.ssh.listing import PACK, PROGRAM, RemoteFile, read_listing

_BLOCK = 1 << 20
_SUMS_S = 6 * 3600.0
_PART = ".part"

Tell = Callable[[int], None]
"""Is told of bytes as they pass."""


class FileWay(Protocol):
    """A way to a machine's files: a connection, or this machine itself."""

    @property
    def name(self) -> str:
        """Whose files they are, for messages."""

    def need(self, command: str, what: str, stdin: str = "", *, timeout_s: float = 120.0) -> str:
        """Run a shell command there and return what it printed; `NodeError` when it fails."""

    def start(self, command: str, *, stdin: int, stdout: int) -> Started:
        """Start a shell command there whose streams are the caller's."""


def list_files(
    way: FileWay, base: str, roots: Iterable[str], *, sums: bool = False
) -> tuple[tuple[RemoteFile, ...], tuple[str, ...]]:
    """Return the regular files below `base/ROOT` for each root, and what could not be read; links are left out."""
    program = f"python3 -c {shlex.quote(PROGRAM)} {shlex.quote(base)} {'sums' if sums else 'times'}"
    told = way.need(program, "the files there cannot be listed", "\n".join(roots), timeout_s=_SUMS_S)
    return read_listing(told)


def fetch_file(way: FileWay, base: str, file: RemoteFile, into: Path, tell: Tell) -> None:
    """Bring one file to `into/PATH`; what an earlier call brought of it is kept, if the whole is right in the end.

    Raises
    ------
    WorkFailed
        Its sha256 is another, fetched anew as well: it changes meanwhile, or does not arrive whole.
    """
    goal = into / file.path
    part = _part(goal)
    for _ in range(2):
        _append(way, f"{base}/{file.path}", file.size, part, tell)
        if sum_file(part) == file.sha256:
            _whole(part, file, goal)
            return
        part.unlink()
    raise WorkFailed(
        f"{file.path} does not arrive as it is listed: it changes meanwhile, or bytes are lost on the way",
        where=way.name,
        next_step="the same command again, when nothing writes it",
    )


def fetch_together(
    way: FileWay, base: str, files: Sequence[RemoteFile], into: Path, tell: Tell
) -> Iterator[RemoteFile]:
    """Bring small files in one stream, and yield each that arrived as it is listed; the others are the caller's."""
    asked = "".join(f"{json.dumps([file.path, file.size])}\n" for file in files)
    process = way.start(f"python3 -c {shlex.quote(PACK)} {shlex.quote(base)}", stdin=PIPE, stdout=PIPE)
    with contextlib.suppress(BrokenPipeError):
        if process.stdin:
            process.stdin.write(asked.encode())
            process.stdin.close()
    process.stdin = None
    ended = False
    try:
        for file in files:
            data = process.stdout.read(file.size) if process.stdout else b""
            if len(data) < file.size:
                break
            if hashlib.sha256(data).hexdigest() == file.sha256:
                part = _part(into / file.path)
                with _written(part):
                    part.write_bytes(data)
                _whole(part, file, into / file.path)
                tell(file.size)
                yield file
        ended = True
    finally:
        if not ended:
            process.kill()
            process.communicate()
    _ended(process, f"{len(files)} files")


def send_file(connection: Connection, path: Path, goal: str, tell: Tell) -> None:
    """Bring a file of this machine to `goal` there; as `fetch_file`."""
    wanted, part = sum_file(path), shlex.quote(goal + _PART)
    folder, place = shlex.quote(os.path.dirname(goal)), shlex.quote(goal)
    sum_of = f"sha256sum <{place} 2>/dev/null | cut -c1-64"
    if connection.need(f"mkdir -p {folder} && [ ! -f {place} ] || {sum_of}", "a file cannot be sent").strip() == wanted:
        tell(path.stat().st_size)
        return
    for _ in range(2):
        at = int(connection.need(f"stat -c %s {part} 2>/dev/null || echo 0", "a file cannot be sent"))
        with path.open("rb") as file:
            if at > path.stat().st_size:
                at = 0
                connection.need(f"rm -f {part}", "a file cannot be sent")
            file.seek(at)
            tell(at)
            process = connection.start(f"cat >>{part}", stdin=file.fileno(), stdout=NOTHING)
            _ended(process, path.name)
        tell(path.stat().st_size - at)
        done = connection.need(
            f'[ "$(sha256sum <{part} | cut -c1-64)" = {wanted} ] && mv -f {part} {place} && echo whole || rm -f {part}',
            "a file cannot be sent",
            timeout_s=_SUMS_S,
        )
        if done.strip() == "whole":
            return
    raise WorkFailed(
        f"{path} does not arrive whole",
        where=connection.address.name,
        next_step="the same command again, when nothing writes it",
    )


def send_folder(connection: Connection, folder: Path, names: Sequence[str], goal: str, tell: Tell) -> None:
    """Bring the files `names` below a folder of this machine to the same names below `goal`."""
    for name in names:
        send_file(connection, folder / name, f"{goal}/{name}", tell)


def send_tree(connection: Connection, folder: Path, names: Sequence[str], goal: str) -> None:
    """Bring small files at once, in place of all that lies at `goal` there."""
    place = shlex.quote(goal)
    unpack = f"rm -rf {place}.new && mkdir -p {place}.new && tar -xf - -C {place}.new"
    command = f"{unpack} && rm -rf {place} && mv {place}.new {place}"
    process = connection.start(command, stdin=PIPE, stdout=NOTHING)
    with contextlib.suppress(BrokenPipeError), tarfile.open(fileobj=process.stdin, mode="w|") as archive:
        for name in names:
            archive.add(folder / name, name)
    _ended(process, f"{len(names)} files")


def _part(goal: Path) -> Path:
    """Return where a file grows before it is whole; its folder is there."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    return goal.with_name(goal.name + _PART)


def _whole(part: Path, file: RemoteFile, goal: Path) -> None:
    os.utime(part, (file.mtime, file.mtime))
    part.replace(goal)


@contextlib.contextmanager
def _written(part: Path) -> Iterator[None]:
    """Say what to do where a file cannot be written here."""
    try:
        yield
    except OSError as error:
        raise NodeError(
            f"{part.name} cannot be written: {error.strerror}",
            where=str(part.parent),
            next_step="make room, and the same command again: what is here stays",
        ) from error


def _append(way: FileWay, source: str, size: int, part: Path, tell: Tell) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have > size:
        part.unlink()
        have = 0
    tell(have)
    if have == size:
        part.touch()
        return
    command = f"tail -c +{have + 1} -- {shlex.quote(source)} | head -c {size - have}"
    process = way.start(command, stdin=NOTHING, stdout=PIPE)
    try:
        with _written(part), part.open("ab") as file:
            while process.stdout and (block := process.stdout.read1(_BLOCK)):  # type: ignore[attr-defined]
                file.write(block)
                tell(len(block))
    except NodeError:
        process.kill()
        process.wait()
        raise
    _ended(process, source)


def _ended(process: Started, what: str) -> None:
    _, said = process.communicate()
    if process.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines()
        failure = ConnectionLost if process.returncode == BROKEN else NodeError
        raise failure(
            f"{what} did not get through: {isolated(lines[-1]) if lines else f'exit code {process.returncode}'}",
            next_step="the same command again: it goes on where it was cut",
        )
