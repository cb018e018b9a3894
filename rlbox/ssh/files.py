"""List, fetch and send files over one connection.

Each transfer resumes where it was cut off, and counts only when its sha256 is right.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rlbox.amounts import decimal_size_text
from rlbox.errors import MachineError, WorkFailed
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.ssh.connection import CONNECTION_LOST_CODE, SshConnection, SshConnectionFailed
from rlbox.system.command import DEVNULL, PIPE, ProcessHandle
from rlbox.system.files import compute_file_sha256, free_bytes_or_0, write_atomic
from rlbox.system.json_files import read_json_object_or_empty

_BLOCK = 1 << 20
_LONG_COMMAND_S = 6 * 3600.0  # sums of a terabyte
_PART = ".part"
_SEND_ERROR = "a file cannot be sent"

ReportBytes = Callable[[int], None]
"""Called with the number of bytes that have passed since the last call."""

# Python 3.6 or newer, standard library only. Of a growing file it lists the bytes that it has now. `.reserve` is the
# space that a run keeps back to be able to write its last records on a full disk.
_LIST_PROGRAM = r"""
import hashlib, json, os, stat, sys
base, sums, roots = sys.argv[1], sys.argv[2] == "sums", sys.stdin.read().splitlines()
def files(root):
    if not os.path.isdir(root):
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(set(names) - {".reserve"}):
            yield os.path.join(folder, name)
for root in roots:
    for path in files(os.path.join(base, root)):
        try:
            facts = os.lstat(path)
            if not stat.S_ISREG(facts.st_mode):
                continue
            row = {"path": os.path.relpath(path, base), "size": facts.st_size, "mtime": int(facts.st_mtime)}
            if sums:
                whole, left = hashlib.sha256(), facts.st_size
                with open(path, "rb") as file:
                    while left:
                        block = file.read(min(left, 1 << 20))
                        if not block:
                            raise OSError("it has shrunk")
                        whole.update(block)
                        left -= len(block)
                row["sha256"] = whole.hexdigest()
        except FileNotFoundError:
            continue
        except OSError as error:
            row = {"path": os.path.relpath(path, base), "size": 0, "mtime": 0, "trouble": str(error)}
        print(json.dumps(row), flush=True)
"""

# Sends files one behind the other, each from an offset up to the size that was asked for; what a file lacks by now
# becomes zeros, so that only its own checksum is wrong.
_SEND_PROGRAM = r"""
import json, os, sys
base, files = sys.argv[1], [json.loads(line) for line in sys.stdin]
for name, offset, size in files:
    left = size - offset
    try:
        with open(os.path.join(base, name), "rb") as file:
            file.seek(offset)
            while left:
                data = file.read(min(left, 1 << 20))
                if not data:
                    break
                sys.stdout.buffer.write(data)
                left -= len(data)
    except OSError:
        pass
    while left:
        left -= sys.stdout.buffer.write(bytes(min(left, 1 << 20)))
"""


@dataclass(frozen=True, kw_only=True)
class RemoteStat:
    """A regular file: `path` below the base directory, `size` in bytes, `mtime` in whole seconds since 1970.

    `sha256` is of the first `size` bytes; empty where it was not computed.
    """

    path: str
    size: int
    mtime: int
    sha256: str = ""

    def is_unchanged_since(self, earlier: RemoteStat | None) -> bool:
        return earlier is not None and (self.path, self.size, self.mtime) == (earlier.path, earlier.size, earlier.mtime)


class Listing(NamedTuple):
    """`errors` are lines about what could not be read."""

    files: tuple[RemoteStat, ...]
    errors: tuple[str, ...]


def list_remote_files(shell: SshConnection, base: str, roots: Iterable[str], *, with_sha256: bool = False) -> Listing:
    """Return the regular files below `base/ROOT` for each root; symbolic links are left out."""
    mode = "sums" if with_sha256 else "times"
    command = f"python3 -c {shlex.quote(_LIST_PROGRAM)} {shlex.quote(base)} {mode}"
    error = "the files there cannot be listed"
    return parse_remote_file_listing(shell.check_output(command, error, "\n".join(roots), timeout_s=_LONG_COMMAND_S))


def parse_remote_file_listing(json_lines: str) -> Listing:
    """Return what the list program printed; `WorkFailed` for a path that leads out of the base directory."""
    files, errors = [], []
    for line in json_lines.splitlines():
        try:
            record = parse_untrusted_json(line)
            path, error = str(record["path"]), record.get("trouble")
            file = RemoteStat(
                path=path, size=int(record["size"]), mtime=int(record["mtime"]), sha256=str(record.get("sha256", ""))
            )
        except (ValueError, KeyError, TypeError) as problem:
            raise WorkFailed(_("the list of files cannot be read: {line!r}").format(line=line[:80])) from problem
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or not parts:
            raise WorkFailed(_("the list of files names {path!r}, which is not below its folder").format(path=path))
        if error:
            errors.append(f"{path}: {error}")
        else:
            files.append(file)
    return Listing(tuple(files), tuple(errors))


def total_bytes(files: Iterable[RemoteStat]) -> int:
    return sum(file.size for file in files)


def _fetch_files_yield_verified(
    shell: SshConnection, base: str, files: Sequence[RemoteStat], directory: Path, report: ReportBytes
) -> Iterator[RemoteStat]:
    """Fetch files to `directory` in one stream, each continuing what an earlier call fetched of it.

    Yield each whose sha256 is right; what arrived of the others is removed.
    """
    requests = []
    for file in files:
        target = directory / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + _PART)
        if part.exists() and part.stat().st_size > file.size:
            part.unlink()
        requests.append((file, part, part.stat().st_size if part.exists() else 0))
    process = shell.start(f"python3 -c {shlex.quote(_SEND_PROGRAM)} {shlex.quote(base)}", stdin=PIPE, stdout=PIPE)
    with contextlib.suppress(BrokenPipeError):
        if process.stdin:
            rows = (json.dumps([file.path, offset, file.size]) + "\n" for file, __, offset in requests)
            process.stdin.write("".join(rows).encode())
            process.stdin.close()
    process.stdin = None
    is_complete = False
    try:
        for file, part, offset in requests:
            report(offset)
            if not _receive(process, part, file.size - offset, report):
                break
            if compute_file_sha256(part) == file.sha256:
                os.utime(part, (file.mtime, file.mtime))
                part.replace(directory / file.path)
                yield file
            else:
                part.unlink()
        is_complete = True
    finally:
        if not is_complete:
            process.kill()
            process.communicate()
    _check_exit(process, f"{len(files)} files")


def _receive(process: ProcessHandle, part: Path, size: int, report: ReportBytes) -> bool:
    """Append the next `size` bytes of a stream to a file; return whether all of them came."""
    try:
        with part.open("ab") as file:
            while size and process.stdout and (data := process.stdout.read(min(size, _BLOCK))):
                file.write(data)
                report(len(data))
                size -= len(data)
    except OSError as error:
        raise MachineError(
            _("{part} cannot be written: {strerror}").format(part=part.name, strerror=error.strerror),
            where=str(part.parent),
            next_step=_("free disk space, then repeat the same command: downloaded files are kept"),
        ) from error
    return not size


_BYTES_PER_RECORD_WRITE = 1 << 26


class DownloadDirectory:
    """`path` holds the files; the file `record` says which of them were verified against the machine's sha256.

    Without `path` it is the one that the record names.
    """

    def __init__(self, record_file: Path, path: Path | None = None) -> None:
        self._record = record_file
        saved = read_json_object_or_empty(record_file, follow_links=True)
        self.path = path or Path(str(saved.get("folder", "")))
        self._verified = {}
        if str(saved.get("folder")) == str(self.path):
            self._verified = {str(file["path"]): RemoteStat(**file) for file in saved.get("files", ())}

    @property
    def has_recorded_verified_files(self) -> bool:
        return bool(self._verified)

    def find_unverified(self, files: Iterable[RemoteStat]) -> list[RemoteStat]:
        return [file for file in files if not self._has(file)]

    def _has(self, file: RemoteStat) -> bool:
        path = self.path / file.path
        unchanged = file.is_unchanged_since(self._verified.get(file.path))
        return unchanged and path.is_file() and path.stat().st_size == file.size

    def fetch_verified(self, shell: SshConnection, base: str, files: Sequence[RemoteStat], report: ReportBytes) -> None:
        """Fetch files; each is recorded once it is verified, so that an interrupted call is continued by the next."""
        free, need = free_bytes_or_0(self.path), total_bytes(files)
        if free < need:
            raise MachineError(
                _("{need} come home, and {free} are free").format(
                    need=decimal_size_text(need), free=decimal_size_text(free)
                ),
                where=str(self.path),
                next_step=_("free disk space, or name another folder with --to DIR"),
            )
        unrecorded = 0
        try:
            for file in _fetch_files_yield_verified(shell, base, files, self.path, report):
                self._verified[file.path] = file
                unrecorded += file.size
                if unrecorded > _BYTES_PER_RECORD_WRITE:
                    self._write_record()
                    unrecorded = 0
        finally:
            self._write_record()
        if missing := self.find_unverified(files):
            raise WorkFailed(
                _("{path} does not arrive as it is listed: it changes meanwhile, or bytes are lost on the way").format(
                    path=missing[0].path
                ),
                where=shell.ssh_destination,
                next_step=_("the same command again, when nothing writes it"),
            )

    def _write_record(self) -> None:
        files = [vars(file) for file in self._verified.values()]
        write_atomic(self._record, json.dumps({"schema": 1, "folder": str(self.path), "files": files}) + "\n")


def resume_verified_upload(shell: SshConnection, path: Path, remote: str, report: ReportBytes) -> None:
    """Send a file to the path `remote` there, continuing what an earlier call sent; an equal one stays."""
    sha256, size = compute_file_sha256(path), path.stat().st_size
    part, parent, goal = (shlex.quote(name) for name in (remote + _PART, os.path.dirname(remote), remote))
    sum_there = f"sha256sum <{goal} 2>/dev/null | cut -c1-64"
    if shell.check_output(f"mkdir -p {parent} && [ ! -f {goal} ] || {sum_there}", _SEND_ERROR).strip() == sha256:
        report(size)
        return
    commit = f'[ "$(sha256sum <{part} | cut -c1-64)" = {sha256} ] && mv -f {part} {goal} && echo sent || rm -f {part}'
    for __ in range(2):
        offset = int(shell.check_output(f"stat -c %s {part} 2>/dev/null || echo 0", _SEND_ERROR))
        if offset > size:
            offset = 0
            shell.check_output(f"rm -f {part}", _SEND_ERROR)
        with path.open("rb") as file:
            file.seek(offset)
            report(offset)
            _check_exit(shell.start(f"cat >>{part}", stdin=file.fileno(), stdout=DEVNULL), path.name)
        report(size - offset)
        if shell.check_output(commit, _SEND_ERROR, timeout_s=_LONG_COMMAND_S).strip() == "sent":
            return
    raise WorkFailed(
        _("{path} changes while it is transferred").format(path=path),
        where=shell.ssh_destination,
        next_step=_("the same command again, when nothing writes it"),
    )


def replace_remote_tree(shell: SshConnection, file_by_relative_path: Mapping[str, Path], remote_target: str) -> None:
    """Send small files in one stream, in place of everything below `remote_target` there."""
    goal = shlex.quote(remote_target)
    unpack = f"rm -rf {goal}.new && mkdir -p {goal}.new && tar -xf - -C {goal}.new"
    process = shell.start(f"{unpack} && rm -rf {goal} && mv {goal}.new {goal}", stdin=PIPE, stdout=DEVNULL)
    with contextlib.suppress(BrokenPipeError), tarfile.open(fileobj=process.stdin, mode="w|") as archive:
        for name, path in file_by_relative_path.items():
            archive.add(path, name)
    _check_exit(process, f"{len(file_by_relative_path)} files")


def _check_exit(process: ProcessHandle, what: str) -> None:
    __, errors = process.communicate()
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        failure = SshConnectionFailed if process.returncode == CONNECTION_LOST_CODE else MachineError
        raise failure(
            f"{what} did not get through: {lines[-1] if lines else f'exit code {process.returncode}'}",
            next_step="the same command again: it goes on where it was cut",
        )
