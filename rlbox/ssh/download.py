"""Copies of another machine's files that grow over any number of calls, with a record of what arrived complete."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rlbox.amounts import decimal_size_text
from rlbox.errors import NodeError, WorkFailed
from rlbox.i18n import _
from rlbox.ssh.connection import SshConnection
from rlbox.ssh.files import RemoteFile, ReportBytes, fetch_files_yield_verified, total_bytes
from rlbox.system.files import compute_file_sha256, get_free_bytes, write_atomic
from rlbox.system.json_files import read_json_object_or_empty

_BYTES_PER_RECORD_WRITE = 1 << 26


class DownloadDirectory:
    """`path` holds the files; the file `record` says which of them were verified against the machine's sha256.

    Without `path` it is the one that the record names.
    """

    def __init__(self, record: Path, path: Path | None = None) -> None:
        self._record = record
        saved = read_json_object_or_empty(record, follow_links=True)
        self.path = path or Path(str(saved.get("folder", "")))
        self._verified = {}
        if str(saved.get("folder")) == str(self.path):
            self._verified = {str(file["path"]): RemoteFile(**file) for file in saved.get("files", ())}

    @property
    def was_used(self) -> bool:
        """Whether anything was fetched from that machine before."""
        return bool(self._verified)

    def find_missing(self, files: Iterable[RemoteFile]) -> list[RemoteFile]:
        """Return the files that are not here, or have changed there since."""
        return [file for file in files if not self._has(file)]

    def _has(self, file: RemoteFile) -> bool:
        path = self.path / file.path
        unchanged = file.is_unchanged(self._verified.get(file.path))
        return unchanged and path.is_file() and path.stat().st_size == file.size

    def fetch(self, shell: SshConnection, base: str, files: Sequence[RemoteFile], report: ReportBytes) -> None:
        """Fetch files; each is recorded once it is verified, so that an interrupted call is continued by the next."""
        free, need = get_free_bytes(self.path), total_bytes(files)
        if free < need:
            raise NodeError(
                _("{need} come home, and {free} are free").format(
                    need=decimal_size_text(need), free=decimal_size_text(free)
                ),
                where=str(self.path),
                next_step=_("free disk space, or name another folder with --to DIR"),
            )
        unrecorded = 0
        try:
            for file in self._fetch_each(shell, base, files, report):
                self._verified[file.path] = file
                unrecorded += file.size
                if unrecorded > _BYTES_PER_RECORD_WRITE:
                    self._write_record()
                    unrecorded = 0
        finally:
            self._write_record()

    def _fetch_each(
        self, shell: SshConnection, base: str, files: Sequence[RemoteFile], report: ReportBytes
    ) -> Iterator[RemoteFile]:
        missing = []
        for file in files:
            path = self.path / file.path
            if path.is_file() and path.stat().st_size == file.size and compute_file_sha256(path) == file.sha256:
                report(file.size)
                yield file
            else:
                missing.append(file)
        for __ in range(2):
            fetched: set[str] = set()
            for file in fetch_files_yield_verified(shell, base, missing, self.path, report):
                fetched.add(file.path)
                yield file
            missing = [file for file in missing if file.path not in fetched]
            if not missing:
                return
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
