"""Write an image to an OCI archive: layers as the engine stores them; zstd where the engine stores them plain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.archive.act.save_pack import pack_layers
from rlbox.engine.act.api import engine
from rlbox.engine.oci import stored_digest
from rlbox.files.act.copies import whole_file

OnBytes = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """An archive on disk; `digest` is that of the image's manifest in it, `size` the file's in bytes."""

    digest: str
    size: int


def save_image(image: dict[str, Any], tag: str, path: Path, on_bytes: OnBytes = lambda count: None) -> Saved:
    """Write the engine's image `tag` to `path`; the file is whole or not there.

    Raises
    ------
    NodeError
        The disk is full or cannot be written.
    WorkFailed
        What the engine gave is not the image it described.
    """
    digest = stored_digest(image)
    size = int(image.get("Size") or 0)
    need = size if digest else size // 2  # zstd halves what an engine stores plain
    with whole_file(path, need) as file:
        exported = _told(engine().save(tag), on_bytes)
        if digest:
            file.writelines(exported)
        else:
            digest = pack_layers(file, tag, exported)
    return Saved(digest=digest, size=path.stat().st_size)


def _told(chunks: Iterator[bytes], on_bytes: OnBytes) -> Iterator[bytes]:
    for chunk in chunks:
        on_bytes(len(chunk))
        yield chunk
