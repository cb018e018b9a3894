"""The tree of one commit as a tar with the same bytes on every machine.

Tar entries are written here, not by tarfile: locks hold the sha256 of the archive, and no Python version may change it.
Source: POSIX.1-2008, pax: the ustar header, and extended headers for what does not fit into it.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rlbox.artifacts.download import AllMirrorsFailedError, FailedAttempt
from rlbox.artifacts.mirrors import DownloadLocation, MirrorName
from rlbox.artifacts.object_store import PartialObject
from rlbox.errors import RlboxError, WorkFailed
from rlbox.i18n import _
from rlbox.secrets.url_credentials import mask_url_and_header_credentials
from rlbox.system.command import DEVNULL, PIPE, run_command, start_command
from rlbox.target.artifact import Artifact
from rlbox.target.lock import GitTree
from rlbox.values import Command

TAR_MTIME = 315_532_800
"""Time stamp of every entry, 1980-01-01: the first that a zip, and so a wheel built from the files, can hold."""

FILE, SYMLINK, FOLDER = b"0", b"2", b"5"
TAR_END = bytes(1024)
_BLOCK = 512
_LARGEST = 8**11 - 1


def _format_tar_header(name: str, type_flag: bytes, mode: int, size: int = 0, link_target: str = "") -> bytes:
    """Return the header of one entry; its `size` bytes follow, then `_format_tar_padding(size)`."""
    values = {"path": name, "linkpath": link_target}
    records = [(key, text) for key, text in values.items() if len(text.encode()) > 100 or not text.isascii()]
    records += [("size", str(size))] if size > _LARGEST else []
    body = b"".join(_record(key, text) for key, text in records)
    before = _ustar(b"", b"x", 0o644, len(body), b"") + body + _format_tar_padding(len(body)) if body else b""
    return before + _ustar(name.encode(), type_flag, mode, min(size, _LARGEST), link_target.encode())


def _format_tar_padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def _record(key: str, text: str) -> bytes:
    rest = f" {key}={text}\n".encode()
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def _ustar(name: bytes, kind: bytes, mode: int, size: int, link: bytes) -> bytes:
    def number(value: int, digits: int) -> bytes:
        return b"%0*o\0" % (digits, value)

    fields = [name[:100].ljust(100, b"\0"), number(mode, 7), number(0, 7), number(0, 7), number(size, 11)]
    fields += [number(TAR_MTIME, 11), b" " * 8, kind, link[:100].ljust(100, b"\0"), b"ustar\x0000"]
    block = b"".join(fields).ljust(_BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


_COMMIT = re.compile(r"[0-9a-f]{40}")
_FETCH_S = 3600.0
_STALL_S = 30
_CHUNK = 1 << 20


def hash_git_ref_tree(
    name: str, url: str, ref: str, clone_urls: Iterable[DownloadLocation], ca_bundle: str = ""
) -> GitTree:
    """Return what `ref` (branch, tag or commit) of `url` means now at the first of `clone_urls` that has it.

    Raises WorkFailed: no place has it, or its tree has submodules.
    """
    tries = []
    for place in clone_urls:
        try:
            with _fetched(place.url, ref, ca_bundle) as (repository, commit):
                tree = _git(repository, "rev-parse", f"{commit}^{{tree}}")
                digest, size = hashlib.sha256(), 0
                for block in _read_tree_tar(repository, commit):
                    digest.update(block)
                    size += len(block)
                sha256 = digest.hexdigest()
                return GitTree(name=name, url=url, ref=ref, commit=commit, tree=tree, sha256=sha256, size=size)
        except _NotThere as error:
            tries.append(f"\n  {place.mirror}: {error}")
    raise WorkFailed(
        _("{mask_urls}: no place has {ref}{tries}").format(
            mask_urls=mask_url_and_header_credentials(url), ref=ref, tries="".join(tries)
        )
    )


def fetch_git_tree_into_store(
    artifact: Artifact, clone_urls: Iterable[DownloadLocation], partial: PartialObject, ca_bundle: str
) -> MirrorName:
    """Fill and keep the draft of a `git` artifact; return the mirror that had the commit.

    A mirror that has not copied the commit yet is passed over. `AllMirrorsFailedError` when none has it.
    """
    tries, wanted = [], artifact.origin.rpartition(" ")[2]
    for place in clone_urls:
        partial.truncate()
        try:
            with _fetched(place.url, wanted, ca_bundle) as (repository, commit):
                for block in _read_tree_tar(repository, commit):
                    partial.write(block)
            if partial.digest_so_far == artifact.sha256:
                partial.commit()
                return place.mirror
            reason = _("another tree: sha256 {digest}…").format(digest=partial.digest_so_far[:12])
            tries.append(FailedAttempt(mirror=place.mirror, reason=reason))
        except (_NotThere, RlboxError) as error:
            tries.append(FailedAttempt(mirror=place.mirror, reason=mask_url_and_header_credentials(str(error))))
    partial.truncate()
    raise AllMirrorsFailedError(tuple(tries))


def _read_tree_tar(repository: Path, commit: str) -> Iterator[bytes]:
    """Yield the tar of a commit's tree: sorted, owned by root, modes 644 and 755, links kept, no attribute applied.

    `WorkFailed` when the tree has a submodule, or a name that is not UTF-8.
    """
    rows = [_row(line) for line in _git(repository, "ls-tree", "-rtz", "--full-tree", commit).split("\0") if line]
    if strange := [name for __, __, name in rows if "\ufffd" in name]:
        raise WorkFailed(_("the repository has a file whose name is not UTF-8: {strange}").format(strange=strange[0]))
    if modules := [name for mode, __, name in rows if mode == "160000"]:
        raise WorkFailed(
            _("the repository has the submodule {module}, which an archive of its tree cannot hold").format(
                module=modules[0]
            ),
            next_step=_("name a fork in url that has the submodule's files in its own tree"),
        )
    with _blobs(repository, [sha for mode, sha, __ in rows if mode != "040000"]) as blobs:
        for mode, __, name in rows:
            if mode == "040000":
                yield _format_tar_header(name, FOLDER, 0o755)
                continue
            size = int(blobs.readline().split()[2])
            if mode == "120000":
                yield _format_tar_header(name, SYMLINK, 0o777, link_target=blobs.read(size).decode())
            else:
                yield _format_tar_header(name, FILE, 0o755 if mode == "100755" else 0o644, size)
                left = size
                while left and (block := blobs.read(min(left, _CHUNK))):
                    yield block
                    left -= len(block)
                yield _format_tar_padding(size)
            blobs.read(1)  # the line end behind each blob
    yield TAR_END


def _row(line: str) -> tuple[str, str, str]:
    facts, __, name = line.partition("\t")
    mode, __, sha = facts.split(" ")
    return mode, sha, name


@contextmanager
def _blobs(repository: Path, names: list[str]) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as asked:
        asked.write("".join(f"{name}\n" for name in names).encode())
        asked.seek(0)
        command = Command(argv=("git", "-C", str(repository), "cat-file", "--batch"))
        with start_command(command, stdin=asked, stdout=PIPE, stderr=DEVNULL, new_session=False) as process:
            assert process.stdout is not None  # noqa: S101  (asked for above)
            yield process.stdout


class _NotThere(Exception):
    """A place does not have the commit, or does not answer."""


@contextmanager
def _fetched(url: str, ref: str, ca_bundle: str) -> Iterator[tuple[Path, str]]:
    with tempfile.TemporaryDirectory(prefix="rlbox-git-") as directory:
        repository = Path(directory)
        _git(repository, "init", "--quiet", "--bare")
        remote = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-gc")
        wanted = "FETCH_HEAD"
        try:
            _git(repository, *remote, "--depth=1", "--", url, ref, ca_bundle=ca_bundle)
        except _NotThere:  # a server that hands out no single commits, or a short commit: take all there is
            _git(repository, *remote, "--", url, "+refs/*:refs/*", ca_bundle=ca_bundle)
            wanted = ref
        commit = _git(repository, "rev-parse", "--verify", "--end-of-options", f"{wanted}^{{commit}}")
        if _COMMIT.fullmatch(ref) and commit != ref:
            raise _NotThere(f"gives {commit[:12]} for {ref[:12]}")
        yield repository, commit


def _git(repository: Path, *words: str, ca_bundle: str = "") -> str:
    env = {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -oBatchMode=yes"),
        "GIT_HTTP_LOW_SPEED_LIMIT": "1",
        "GIT_HTTP_LOW_SPEED_TIME": str(_STALL_S),
        "LC_ALL": "C",
        **({"GIT_SSL_CAINFO": ca_bundle} if ca_bundle else {}),
    }
    outcome = run_command(Command(argv=("git", "-C", str(repository), *words), env=env, timeout_s=_FETCH_S))
    if not outcome.ok:
        lines = [line for line in outcome.stderr.strip().splitlines() if line.startswith(("fatal: ", "error: "))]
        reason = lines[0].partition(": ")[2] if lines else f"git {words[0]} failed"
        raise _NotThere(mask_url_and_header_credentials(reason))
    return outcome.stdout.strip("\n")
