"""The shipped file of messages: how it is laid out, written and read.

A zip of members, each compressed with zstd and one dictionary: `meta` says the packages with their versions; a bucket
holds the messages whose anchor, a word that few others have, falls into it. So a line is looked up by its words, and a
look-up reads no more than their buckets.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlbox.inventory.messages import HOLE, Message

FILE = Path(__file__).with_name("messages.zip")
_BUCKETS = 384
_DICTIONARY_BYTES = 96 << 10
_EPOCH = (1980, 1, 1, 0, 0, 0)
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{3,}")
_ANCHOR = re.compile(rf"(?<![\w{HOLE}])[A-Za-z_][A-Za-z0-9_]{{3,}}(?![\w{HOLE}])")


@dataclass(frozen=True, kw_only=True)
class Known:
    """A message and the versions that have it: `versions` in the order of its package."""

    package: str
    versions: tuple[str, ...]
    message: Message


def packed(kept: Mapping[str, Sequence[tuple[str, Iterable[Message]]]]) -> bytes:
    """Return the file for packages with their versions, oldest first, each with its messages; the same for the same."""
    masks: dict[tuple[str, Message], int] = defaultdict(int)
    for package, versions in kept.items():
        for place, (_, messages) in enumerate(versions):
            for message in messages:
                masks[package, message] |= 1 << place
    common = Counter(word for _, message in masks for word in set(_ANCHOR.findall(message.template)))
    numbers = {package: number for number, package in enumerate(kept)}
    buckets: dict[int, list[str]] = defaultdict(list)
    for (package, message), mask in masks.items():
        words = _ANCHOR.findall(message.template)
        if words:
            anchor = min(words, key=lambda word: (common[word], -len(word), word))
            about = f"{message.kind[0]}{message.name}", message.where, message.template
            buckets[_bucket(anchor)].append("\t".join((anchor, f"{numbers[package]}", f"{mask:x}", *about)))
    meta = {package: [version for version, _ in versions] for package, versions in kept.items()}
    return _archive(json.dumps(meta), {number: "\n".join(sorted(rows)) for number, rows in buckets.items()})


def _bucket(word: str) -> int:
    return zlib.crc32(word.encode()) % _BUCKETS


def _archive(meta: str, buckets: Mapping[int, str]) -> bytes:
    zstd = _zstd()
    texts = [text.encode() for _, text in sorted(buckets.items())]
    dictionary = zstd.train_dict([row for text in texts for row in text.split(b"\n")], _DICTIONARY_BYTES)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("meta", _EPOCH), zstd.compress(meta.encode(), 19))
        archive.writestr(zipfile.ZipInfo("dictionary", _EPOCH), zstd.compress(dictionary.dict_content, 19))
        for number, text in sorted(buckets.items()):
            data = zstd.compress(text.encode(), 19, zstd_dict=dictionary)
            archive.writestr(zipfile.ZipInfo(str(number), _EPOCH), data)
    return out.getvalue()


class Table:
    """The messages of a file, read a bucket at a time."""

    def __init__(self, path: Path = FILE) -> None:
        self._archive = zipfile.ZipFile(path)
        zstd = _zstd()
        self.packages: dict[str, list[str]] = json.loads(zstd.decompress(self._archive.read("meta")))
        self._names = list(self.packages)
        self._dictionary = zstd.ZstdDict(zstd.decompress(self._archive.read("dictionary")))
        self._members = set(self._archive.namelist())

    def with_anchor(self, words: Iterable[str]) -> list[Known]:
        """Return the messages whose anchor is one of the words."""
        wanted = set(words)
        return [
            self._known(row)
            for bucket in sorted({_bucket(word) for word in wanted})
            for row in self._rows(bucket)
            if row.partition("\t")[0] in wanted
        ]

    def of(self, package: str) -> list[Known]:
        """Return all messages of a package."""
        number = f"\t{self._names.index(package)}\t"
        rows = (row for bucket in range(_BUCKETS) for row in self._rows(bucket))
        return [self._known(row) for row in rows if number in row[: row.index("\t") + len(number)]]

    def _rows(self, bucket: int) -> list[str]:
        if str(bucket) not in self._members:
            return []
        data: bytes = _zstd().decompress(self._archive.read(str(bucket)), zstd_dict=self._dictionary)
        return data.decode("utf-8").split("\n")

    def _known(self, row: str) -> Known:
        _, number, mask, about, where, template = row.split("\t")
        package = self._names[int(number)]
        versions = tuple(one for at, one in enumerate(self.packages[package]) if int(mask, 16) >> at & 1)
        kind = _KINDS[about[0]]
        message = Message(template=template, kind=kind, name=about[1:], where=where)
        return Known(package=package, versions=versions, message=message)


_KINDS: Any = {kind[0]: kind for kind in ("raise", "assert", "log", "exit", "native")}


@cache
def shipped() -> Table:
    """Return the table that rlbox ships."""
    return Table()


def _zstd() -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from backports import zstd
    return zstd
