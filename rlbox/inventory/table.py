"""The shipped file of messages: how it is laid out, and how it is read a few buckets at a time.

A zip of members, each deflated with one dictionary: `meta` says the packages with their versions; a bucket holds the
messages whose anchor, a word that few others have, falls into it. So a line is looked up by its words, and that reads
no more than their buckets. `scripts/inventory.py build` writes it.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlbox.foreign import parse_json
from rlbox.inventory.messages import HOLE, Message

FILE = Path(__file__).with_name("messages.zip")
BUCKETS = 128
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{3,}")
ANCHOR = re.compile(rf"(?<![\w{HOLE}])[A-Za-z_][A-Za-z0-9_]{{3,}}(?![\w{HOLE}])")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A message and the versions that have it: `versions` in the order of its package."""

    package: str
    versions: tuple[str, ...]
    message: Message


def bucket_of(word: str) -> int:
    """Return the bucket of the messages with that anchor."""
    return zlib.crc32(word.encode()) % BUCKETS


def row_of(anchor: str, number: int, mask: int, message: Message) -> str:
    """Return the row of a message: `number` is its package's place, `mask` has a bit for each version that has it."""
    about = f"{message.kind[0]}{message.name}", message.where, message.template
    return "\t".join((anchor, f"{number}", f"{mask:x}", *about))


class Table:
    """The messages of a file, read a bucket at a time."""

    def __init__(self, path: Path = FILE) -> None:
        self._archive = zipfile.ZipFile(path)
        self._dictionary = zlib.decompress(self._archive.read("dictionary"))
        self.packages: dict[str, list[str]] = parse_json(zlib.decompress(self._archive.read("meta")))
        self._names = list(self.packages)
        self._members = set(self._archive.namelist())

    def with_anchor(self, words: Iterable[str]) -> list[Origin]:
        """Return the messages whose anchor is one of the words."""
        wanted = set(words)
        return [
            self._origin(row)
            for bucket in sorted({bucket_of(word) for word in wanted})
            for row in self._rows(bucket)
            if row.partition("\t")[0] in wanted
        ]

    def of(self, package: str) -> list[Origin]:
        """Return all messages of a package."""
        number = f"\t{self._names.index(package)}\t"
        rows = (row for bucket in range(BUCKETS) for row in self._rows(bucket))
        return [self._origin(row) for row in rows if number in row[: row.index("\t") + len(number)]]

    def _rows(self, bucket: int) -> list[str]:
        if str(bucket) not in self._members:
            return []
        data = zlib.decompressobj(zdict=self._dictionary).decompress(self._archive.read(str(bucket)))
        return data.decode("utf-8").split("\n")

    def _origin(self, row: str) -> Origin:
        _, number, mask, about, where, template = row.split("\t")
        package = self._names[int(number)]
        versions = tuple(one for at, one in enumerate(self.packages[package]) if int(mask, 16) >> at & 1)
        kind = _KINDS[about[0]]
        message = Message(template=template, kind=kind, name=about[1:], where=where)
        return Origin(package=package, versions=versions, message=message)


_KINDS: Any = {kind[0]: kind for kind in ("raise", "assert", "log", "exit", "native")}


@cache
def shipped() -> Table:
    """Return the table that rlbox ships."""
    return Table()
