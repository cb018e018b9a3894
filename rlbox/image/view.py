"""An image that explains itself: as text, as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import size_text
from rlbox.image.facts import ImagePart, LayerFacts, LockChange, lock_groups
from rlbox.image.labels import FORCED_LABEL
from rlbox.target.lock import Lock

_WIDTH = 100
_JOINED = "\xa0"  # a space that no line is broken at
_LABELS = ("rlbox.target", "rlbox.spec", "rlbox.lock", "rlbox.build", "rlbox.fixes", "rlbox.patches")
_NO_DIGEST = "none: this engine keeps no manifest of it"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How an image stands to its target in the project.

    `spec` is `same`, `differs`, or why nothing can be said; `lock` is `same`, `differs`, `missing`, or empty.
    """

    target: str
    spec: str
    lock: str
    changes: tuple[LockChange, ...]


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What is known of an image; `size` in bytes as the engine counts it, `note` says why there is no `lock`."""

    name: str
    identity: str
    digest: str
    tags: tuple[str, ...]
    created: str
    size: int
    labels: Mapping[str, str]
    layers: tuple[LayerFacts, ...]
    lock: Lock | None
    note: str
    standing: Standing


def image_json(facts: ImageFacts) -> dict[str, Any]:
    """Return the facts as JSON types."""
    groups = lock_groups(facts.lock) if facts.lock else {}
    return {
        "name": facts.name,
        "id": facts.identity,
        "digest": facts.digest or None,
        "tags": list(facts.tags),
        "created": facts.created,
        "size": facts.size,
        "labels": dict(sorted(facts.labels.items())),
        "layers": [asdict(layer) for layer in facts.layers],
        "groups": [{"name": group, "packages": [asdict(row) for row in rows]} for group, rows in groups.items()],
        "note": facts.note or None,
        "standing": asdict(facts.standing),
    }


def image_text(facts: ImageFacts) -> str:
    """Return the facts as people read them."""
    return "\n".join([*_head(facts), "", *_layers(facts), "", *_packages(facts), "", *_standing(facts.standing)])


def _head(facts: ImageFacts) -> Iterator[str]:
    yield f"# image {facts.name}"
    yield f"title    {facts.labels.get('org.opencontainers.image.title', '')}"
    yield from (f"{label.removeprefix('rlbox.'):<8} {facts.labels.get(label, '') or 'none'}" for label in _LABELS)
    if forced := facts.labels.get(FORCED_LABEL):
        yield f"forced   its stack contradicts itself: {forced}"
    yield f"digest   {facts.digest or _NO_DIGEST}"
    yield f"id       {facts.identity}"
    yield f"tags     {', '.join(facts.tags) or 'none'}"
    yield f"created  {facts.created}"
    yield f"size     {size_text(facts.size)}"


def _layers(facts: ImageFacts) -> Iterator[str]:
    yield f"# {len(facts.layers)} layers, unpacked, the lowest first"
    for layer in facts.layers:
        yield f"{size_text(layer.size):>9}  {layer.part or layer.command[:_WIDTH]}"


def _packages(facts: ImageFacts) -> Iterator[str]:
    if facts.lock is None:
        yield f"# packages: not known, {facts.note}"
        return
    yield "# packages by group"
    for group, rows in lock_groups(facts.lock).items():
        yield f"{group} ({len(rows)})"
        named = ", ".join(f"{row.name}{_JOINED}{_shown(group, row)}" for row in rows)
        lines = textwrap.wrap(named, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        yield from (line.replace(_JOINED, " ") for line in lines)


def _shown(group: str, row: ImagePart) -> str:
    return row.version[:12] if group == "git" else row.version or row.sha256[:12]


def _standing(standing: Standing) -> Iterator[str]:
    yield f"# beside the target {standing.target} of this project"
    yield f"spec     {standing.spec}"
    if standing.lock:
        yield f"lock     {standing.lock}"
    yield from (f"  {change}" for change in standing.changes)
    if "differs" in (standing.spec, standing.lock):
        yield f"next: rlbox build {standing.target}"
