"""Read files into the page cache by four threads (`rlbox warm`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlbox.amounts import decimal_size_text
from rlbox.errors import NodeError, SpecError, WorkFailed
from rlbox.i18n import _

_THREADS = 4  # measured: one thread reads at half the speed, sixteen no faster
_CHUNK_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20


def find_files(paths: Sequence[Path]) -> dict[Path, int]:
    """Return the sizes of the files at, or below, `paths`, each once; links are followed, as in a Hugging Face cache.

    Raises SpecError: a path is missing, or there is no file below it.
    """
    files: dict[tuple[int, int], tuple[Path, int]] = {}
    for path in paths:
        names = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
        if not names:
            raise SpecError(
                _("there is no file to warm"), where=str(path), next_step=_("name a file, or a model's folder")
            )
        for name in names:
            status = name.stat()
            files.setdefault((status.st_dev, status.st_ino), (name, status.st_size))
    return dict(files.values())


def require_free_memory(files: dict[Path, int], available: int) -> None:
    """Refuse files that `available` bytes of memory cannot hold: reading their end would evict their beginning."""
    if (total := sum(files.values())) <= available:
        return
    first = next(iter(files))
    raise NodeError(
        _("{size} do not stay in memory: the page cache can have {room} here").format(
            size=decimal_size_text(total), room=decimal_size_text(available)
        ),
        where=str(first) if len(files) == 1 else f"{len(files)} files from {first} on",
        next_step=_("warm fewer files, end what uses the memory, or raise the container's limit (run.memory_gib)"),
    )


def read_into_page_cache(files: dict[Path, int], on_bytes: Callable[[int], None]) -> None:
    """Read the files; `on_bytes` is called with the size of every block, from any thread.

    Raises WorkFailed: a file is unreadable.
    """
    chunks = [(path, offset) for path, size in files.items() for offset in range(0, size, _CHUNK_BYTES)]
    with ThreadPoolExecutor(_THREADS) as workers:
        list(workers.map(lambda chunk: _read_chunk(chunk[0], chunk[1], on_bytes), chunks))


def _read_chunk(path: Path, offset: int, on_bytes: Callable[[int], None]) -> None:
    done, buffer = 0, memoryview(bytearray(_BLOCK_BYTES))
    try:
        with open(path, "rb", buffering=0) as file:
            while done < _CHUNK_BYTES and (count := os.preadv(file.fileno(), [buffer], offset + done)):
                done += count
                on_bytes(count)
    except OSError as error:
        raise WorkFailed(
            _("the file cannot be read: {strerror}").format(strerror=error.strerror), where=str(path)
        ) from error
