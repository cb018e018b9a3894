"""The shipped file of the inventory, made of what `inventory.py walk` kept, and what an upgrade kills."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from rlbox.fixes.load import load_fixes
from rlbox.inventory.messages import Message, shortened
from rlbox.inventory.table import FILE, Table, packed
from rlbox.inventory.upgrade import deaths
from rlbox.spec.project import Project


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
    return [
        replace(row, template=shortened(row.template)) for row in rows if row.kind != "warn" and "warn" not in row.name
    ]


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
