"""The digest of what decides an image, and whether an image that is there is still what the specs say."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.files.act.copies import sum_file
from rlbox.image.act.context import context_entries
from rlbox.image.labels import BUILD_LABEL, PARTS_LABEL, part_of, parts_text, why_outdated
from rlbox.image.plan import ImagePlan


def build_labels(entries: Mapping[str, str | Path], plan: ImagePlan) -> dict[str, str]:
    """Return the labels by which an unchanged image is recognised: the digest of all, and short ones of its parts."""
    total = hashlib.sha256(f"epoch={plan.epoch}\n".encode())
    parts: dict[str, Any] = {}
    for name in sorted(entries):
        source = entries[name]
        digest = sum_file(source) if isinstance(source, Path) else hashlib.sha256(source.encode()).hexdigest()
        mark = " executable" if isinstance(source, Path) and source.stat().st_mode & 0o100 else ""
        line = f"{name}\0{digest}{mark}\n".encode()
        total.update(line)
        parts.setdefault(part_of(name), hashlib.sha256()).update(line)
    short = {name: part.hexdigest() for name, part in parts.items()}
    short |= {"spec": plan.spec_checksum, "lock": plan.lock_checksum}
    return {BUILD_LABEL: total.hexdigest(), PARTS_LABEL: parts_text(short)}


def outdated(plan: ImagePlan, image: Mapping[str, Any]) -> str:
    """Return why the engine's image is not what the plan and this machine hold now; empty while it is."""
    config = image.get("Config")
    labels = config.get("Labels") or {} if isinstance(config, dict) else {}
    return why_outdated(labels, build_labels(context_entries(plan), plan))
