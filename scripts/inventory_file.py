"""The shipped file of the inventory, made of what `inventory.py walk` kept, and what an upgrade kills."""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backports import zstd
from packaging.version import Version

from rlbox.fixes.load import load_fixes
from rlbox.inventory.messages import Message, shortened
from rlbox.inventory.table import ANCHOR, FILE, Table, bucket_of, row_of
from rlbox.inventory.upgrade import deaths
from rlbox.spec.project import Project

SKIPPED = re.compile(
    r"(^|/)(tests?|testing|docs?|examples?|benchmarks?)/|(^|/)(setup|conftest|convert_\w+)\.py|third_?party(_files)?/|_vendor/"
    r"|^ray/rllib/|^torch/onnx/"
)
"""Files whose messages no training or serving prints."""
DICTIONARY_BYTES = 32 << 10
"""As much as deflate looks back."""
EPOCH = (1980, 1, 1, 0, 0, 0)


def packed(kept: Mapping[str, Sequence[tuple[str, Iterable[Message]]]]) -> bytes:
    """Return the file for packages with their versions, oldest first, each with its messages; the same for the same."""
    masks: dict[tuple[str, Message], int] = defaultdict(int)
    for package, versions in kept.items():
        for place, (_, messages) in enumerate(versions):
            for message in messages:
                masks[package, message] |= 1 << place
    common = Counter(word for _, message in masks for word in set(ANCHOR.findall(message.template)))
    numbers = {package: number for number, package in enumerate(kept)}
    buckets: dict[int, list[str]] = defaultdict(list)
    for (package, message), mask in masks.items():
        words = ANCHOR.findall(message.template)
        if words:
            anchor = min(words, key=lambda word: (common[word], -len(word), word))
            buckets[bucket_of(anchor)].append(row_of(anchor, numbers[package], mask, message))
    meta = {package: [version for version, _ in versions] for package, versions in kept.items()}
    return _archive(json.dumps(meta), {number: "\n".join(sorted(rows)) for number, rows in buckets.items()})


def _archive(meta: str, buckets: Mapping[int, str]) -> bytes:
    texts = [text.encode() for _, text in sorted(buckets.items())]
    samples = [row for text in texts for row in text.split(b"\n")]
    dictionary = zstd.train_dict(samples, DICTIONARY_BYTES).dict_content
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("meta", EPOCH), zlib.compress(meta.encode(), 9))
        archive.writestr(zipfile.ZipInfo("dictionary", EPOCH), zlib.compress(dictionary, 9))
        for number, text in sorted(buckets.items()):
            packer = zlib.compressobj(9, zdict=dictionary)
            archive.writestr(zipfile.ZipInfo(str(number), EPOCH), packer.compress(text.encode()) + packer.flush())
    return out.getvalue()


def tell(text: str) -> None:
    """Say something."""
    sys.stdout.write(text + "\n")


def build(kept: Path, packages: dict[str, dict[str, Any]]) -> int:
    """Write the file from every version that is kept."""
    table = {}
    for name in sorted({*packages, *(path.stem.rpartition("-")[0] for path in kept.glob("*.jsonl"))}):
        paths = {path.stem[len(name) + 1 :]: path for path in kept.glob(f"{name}-[0-9v]*.jsonl")}
        versions = sorted(paths, key=lambda version: Version(version.lstrip("v")))
        if versions:
            table[name] = [(version, _read(paths[version])) for version in versions]
    FILE.write_bytes(packed(table))
    count = sum(len(Table().of(name)) for name in table)
    size = FILE.stat().st_size
    tell(f"{len(table)} packages, {sum(map(len, table.values()))} versions, {count} messages, {size} bytes")
    return 0


def _read(path: Path) -> list[Message]:
    rows = [Message(**json.loads(row)) for row in path.read_text(encoding="utf-8").splitlines() if row]
    return [replace(row, template=shortened(row.template)) for row in rows if not SKIPPED.search(row.where)]


def diff(package: str, old: str, new: str) -> int:
    """Say which signatures an upgrade kills; 1 when there is one."""
    table = Table()
    for version in (old, new):
        if version not in table.packages[package]:
            raise SystemExit(
                f"inventory.py: the inventory has no {package} {version}: {', '.join(table.packages[package])}"
            )
    messages = table.of(package)
    lost = [known for known in messages if old in known.versions and new not in known.versions]
    came = [known for known in messages if new in known.versions and old not in known.versions]
    tell(f"{package} {old} -> {new}: {len(lost)} messages gone, {len(came)} new")
    catalogue = {fix.id: [rule.pattern for rule in fix.signature] for fix in load_fixes(Project(folder=Path.cwd()))}
    dead = deaths(catalogue, messages, old, new)
    for death in dead:
        tell(f"dead: {death.signature}: {death.pattern}\n  was: {death.template}\n  in:  {package} {old} {death.where}")
    tell(f"{len(dead)} signatures die")
    return 1 if dead else 0
