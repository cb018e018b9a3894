"""Bring a blob from a registry into a file: resumed where it was cut, verified, whole or not there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from rlbox.engine.oci import Descriptor
from rlbox.errors import NodeError
from rlbox.registry.act.client import Registry, wrong_digest
from rlbox.registry.act.connections import CHUNK


def fetch_blob(
    registry: Registry,
    repository: str,
    blob: Descriptor,
    path: Path,
    on_bytes: Callable[[int], None] = lambda count: None,
) -> None:
    """Write a blob to `path`; what an earlier call left in `path.part` is not asked for again.

    Parameters
    ----------
    on_bytes
        Told how many bytes came, each time some did.

    Raises
    ------
    RegistryError
        It is not there, cannot be had, or its bytes are wrong; `path` is not made then.
    NodeError
        The disk is full.
    """
    part = path.with_name(f"{path.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(part, "a+b") as file:
            resumed = file.tell() > 0
            got = registry.retry(lambda: _append(registry, repository, blob, file, on_bytes))
            if got != blob.digest and resumed:
                file.truncate(0)
                got = registry.retry(lambda: _append(registry, repository, blob, file, on_bytes))
            os.fsync(file.fileno())
    except OSError as error:
        raise NodeError(
            f"the blob cannot be kept: {error.strerror}", where=str(part), next_step="free space"
        ) from error
    if got != blob.digest:
        part.unlink()
        raise wrong_digest(f"{registry.host}/{repository}", blob.digest, got)
    os.replace(part, path)


def _append(
    registry: Registry, repository: str, blob: Descriptor, file: BinaryIO, on_bytes: Callable[[int], None]
) -> str:
    """Add what is missing to `file` and return the digest of the whole."""
    file.seek(0)
    hasher = hashlib.sha256()
    while chunk := file.read(CHUNK):
        hasher.update(chunk)
    if (have := file.tell()) < blob.size:
        with registry.open_blob(repository, blob.digest, start=have) as (start, chunks):
            if start != have:
                file.truncate(0)
                hasher = hashlib.sha256()
            for chunk in chunks:
                file.write(chunk)
                hasher.update(chunk)
                on_bytes(len(chunk))
            file.flush()
    return f"sha256:{hasher.hexdigest()}"
