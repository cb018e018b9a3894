"""An image that explains itself: as text, as JSON."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import size_text
from rlbox.app import App
from rlbox.engine.connection import connect_engine, find_image
from rlbox.engine.oci import find_manifest_digest
from rlbox.errors import EngineError, SpecError
from rlbox.fixes.catalogue import load_target_with_fixes
from rlbox.i18n import _
from rlbox.image.image_info import (
    ImageComponent,
    ImageLayer,
    LockChange,
    group_lock_components,
    list_image_layers,
    list_lock_changes,
)
from rlbox.image.labels import FORCED_LABEL, compute_image_spec_checksum
from rlbox.target.lock import Lock, load_lock, parse_lock
from rlbox.values import LOCK_IN_IMAGE

_WIDTH = 100
_JOINED = "\xa0"  # a space that no line is broken at
_LABELS = ("rlbox.target", "rlbox.spec", "rlbox.lock", "rlbox.build", "rlbox.fixes", "rlbox.patches")
_NO_DIGEST = "none: this engine keeps no manifest of it"


@dataclass(frozen=True, kw_only=True)
class TargetStatus:
    """How an image stands to its target in the project.

    `spec` is `same`, `differs`, or why nothing can be said; `lock` is `same`, `differs`, `missing`, or empty.
    """

    target: str
    spec: str
    lock: str
    changes: tuple[LockChange, ...]


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """What is known of an image; `size` in bytes as the engine counts it; `no_lock_reason` where `lock` is None."""

    reference: str
    image_id: str
    digest: str
    tags: tuple[str, ...]
    created: str
    size: int
    labels: Mapping[str, str]
    layers: tuple[ImageLayer, ...]
    lock: Lock | None
    no_lock_reason: str
    target_status: TargetStatus


def image_info_json(info: ImageInfo) -> dict[str, Any]:
    groups = group_lock_components(info.lock) if info.lock else {}
    return {
        "name": info.reference,
        "id": info.image_id,
        "digest": info.digest or None,
        "tags": list(info.tags),
        "created": info.created,
        "size": info.size,
        "labels": dict(sorted(info.labels.items())),
        "layers": [asdict(layer) for layer in info.layers],
        "groups": [{"name": group, "packages": [asdict(row) for row in rows]} for group, rows in groups.items()],
        "note": info.no_lock_reason or None,
        "standing": asdict(info.target_status),
    }


def format_image_info(info: ImageInfo) -> str:
    return "\n".join([*_head(info), "", *_layers(info), "", *_packages(info), "", *_standing(info.target_status)])


def _head(facts: ImageInfo) -> Iterator[str]:
    yield f"# image {facts.reference}"
    yield f"title    {facts.labels.get('org.opencontainers.image.title', '')}"
    yield from (f"{label.removeprefix('rlbox.'):<8} {facts.labels.get(label, '') or 'none'}" for label in _LABELS)
    if forced := facts.labels.get(FORCED_LABEL):
        yield f"forced   its stack contradicts itself: {forced}"
    yield f"digest   {facts.digest or _NO_DIGEST}"
    yield f"id       {facts.image_id}"
    yield f"tags     {', '.join(facts.tags) or 'none'}"
    yield f"created  {facts.created}"
    yield f"size     {size_text(facts.size)}"


def _layers(facts: ImageInfo) -> Iterator[str]:
    yield f"# {len(facts.layers)} layers, unpacked, the lowest first"
    for layer in facts.layers:
        yield f"{size_text(layer.size):>9}  {layer.part or layer.command[:_WIDTH]}"


def _packages(facts: ImageInfo) -> Iterator[str]:
    if facts.lock is None:
        yield f"# packages: not known, {facts.no_lock_reason}"
        return
    yield "# packages by group"
    for group, rows in group_lock_components(facts.lock).items():
        yield f"{group} ({len(rows)})"
        named = ", ".join(f"{row.name}{_JOINED}{_shown(group, row)}" for row in rows)
        lines = textwrap.wrap(named, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        yield from (line.replace(_JOINED, " ") for line in lines)


def _shown(group: str, row: ImageComponent) -> str:
    return row.version[:12] if group == "git" else row.version or row.sha256[:12]


def _standing(standing: TargetStatus) -> Iterator[str]:
    yield f"# beside the target {standing.target} of this project"
    yield f"spec     {standing.spec}"
    if standing.lock:
        yield f"lock     {standing.lock}"
    yield from (f"  {change}" for change in standing.changes)
    if "differs" in (standing.spec, standing.lock):
        yield f"next: rlbox build {standing.target}"


_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_TARGET, _SPEC, _LOCK = "rlbox.target", "rlbox.spec", "rlbox.lock"


def show_image_if_known(app: App, reference: str) -> bool:
    """Explain the image that `reference` names (tag, id, digest); return False when it names none and does not look so.

    Raises
    ------
    EngineError
        It looks like an image, and the engine has none of that name, or does not answer.
    SpecError
        It is an image that rlbox did not make.
    """
    looks_so = bool(set(reference) & set("/:@"))
    if not _WORD.fullmatch(reference):
        return False
    try:
        image = find_image(reference)
    except EngineError:
        if looks_so:
            raise
        return False
    if image is None:
        if looks_so:
            next_step = f"docker pull {reference}, or rlbox load FILE"
            raise EngineError(_("the engine has no image {word}").format(word=reference), next_step=next_step)
        return False
    facts = _facts(app, reference, image)
    app.result({"image": image_info_json(facts)}, format_image_info(facts))
    return True


def _facts(app: App, word: str, image: dict[str, Any]) -> ImageInfo:
    labels = (image.get("Config") or {}).get("Labels") or {}
    if not labels.get(_TARGET):
        raise SpecError(
            _("{word} is no image of rlbox: it has no label {target}").format(word=word, target=_TARGET),
            next_step=f"docker image inspect {word}",
        )
    lock, note = _lock_in(image["Id"])
    return ImageInfo(
        reference=word,
        image_id=image["Id"],
        digest=find_manifest_digest(image),
        tags=tuple(image.get("RepoTags") or ()),
        created=image.get("Created", ""),
        size=image.get("Size", 0),
        labels=labels,
        layers=list_image_layers(
            connect_engine().image_history(image["Id"]), patched=bool(labels.get("rlbox.patches"))
        ),
        lock=lock,
        no_lock_reason=note,
        target_status=_build_status(app, labels, lock),
    )


def _lock_in(image: str) -> tuple[Lock | None, str]:
    """Return the lock that an image holds, or None and why it cannot be read."""
    text = connect_engine().read_image_file(image, LOCK_IN_IMAGE)
    if text is None:
        return None, f"{LOCK_IN_IMAGE} is missing in it"
    try:
        return parse_lock(text, LOCK_IN_IMAGE, ""), ""
    except SpecError as error:
        return None, error.what


def _build_status(app: App, labels: dict[str, str], lock: Lock | None) -> TargetStatus:
    name = labels[_TARGET]
    if name not in app.project.targets():
        return TargetStatus(target=name, spec="there is no such target", lock="", changes=())
    try:
        target = load_target_with_fixes(app.project, name).target
        now = load_lock(app.project.lock_file(name))
    except SpecError as error:
        return TargetStatus(target=name, spec=f"cannot be read: {error.what.splitlines()[0]}", lock="", changes=())
    same = now is not None and labels.get(_LOCK) == now.checksum()
    return TargetStatus(
        target=name,
        spec="same" if labels.get(_SPEC) == compute_image_spec_checksum(target) else "differs",
        lock="missing" if now is None else "same" if same else "differs",
        changes=list_lock_changes(lock, now) if lock and now and not same else (),
    )
