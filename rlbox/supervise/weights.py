"""How large the weights are that a service loads, as far as its command names them: what its start is measured by."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

_KINDS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_MOST_FILES = 10_000


def weights_bytes(argv: Iterable[str]) -> int:
    """Return the size of the weights below the folders that a command names, and of the files; 0 without any.

    A folder with weights in two forms counts once, as the form that loaders prefer.
    """
    named = {os.path.realpath(path) for word in argv for path in (word, word.partition("=")[2]) if path[:1] == "/"}
    return sum(map(_size, sorted(named)))


def _size(path: str) -> int:
    sizes: dict[str, int] = {}
    try:
        for name, size in _files(path):
            kind = os.path.splitext(name)[1]
            sizes[kind] = sizes.get(kind, 0) + size
    except OSError:  # it is not there yet, or nobody's to look into
        return 0
    return next((sizes[kind] for kind in _KINDS if kind in sizes), 0)


def _files(path: str) -> Iterator[tuple[str, int]]:
    if not os.path.isdir(path):
        yield path, os.stat(path).st_size
        return
    with os.scandir(path) as entries:
        for count, entry in enumerate(entries):
            if count == _MOST_FILES:
                return
            if entry.is_file():
                yield entry.name, entry.stat().st_size
