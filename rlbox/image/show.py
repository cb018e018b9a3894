"""An image that explains itself: as text, as JSON."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import decimal_size_text, pad_translated
from rlbox.app import App
from rlbox.artifacts.relock import get_version_or_commit_or_empty, list_lock_changes, map_groups_to_image_entries
from rlbox.engine.connection import connect_engine, find_image
from rlbox.engine.oci import find_manifest_digest_or_empty
from rlbox.errors import EngineError, SpecError
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.i18n import _, translate
from rlbox.image.plan import FORCED_LABEL, LOCK_LABEL, SPEC_LABEL, compute_image_spec_checksum
from rlbox.target.lock import Lock, load_lock, parse_lock
from rlbox.values import LOCK_IN_IMAGE

# What the engine's history says of each `COPY --link --from=STAGE /out/LAYER/ /`.
_NAMED = re.compile(r"COPY /out/([^/ ]+)/ /$")


@dataclass(frozen=True, kw_only=True)
class ImageLayer:
    """One layer; `part` is what it holds, empty when that is not known; `size` in bytes, unpacked."""

    part: str
    size: int
    command: str


def list_image_layers_bottom_up(
    engine_history: Sequence[Mapping[str, Any]], *, has_patch_layer: bool = False
) -> tuple[ImageLayer, ...]:
    """Return the layers, the lowest first; `engine_history` is the engine's, the highest first, empty layers among it.

    `has_patch_layer` says that source files were patched, which have a layer of their own.
    """
    rows = [(str(row["CreatedBy"]).removesuffix(" # buildkit"), row["Size"]) for row in reversed(engine_history)]
    rows = [(command, size) for command, size in rows if size or command.startswith("COPY /out/")]
    unnamed = iter(("runtime", "environment", *(["patches"] if has_patch_layer else []), "fixes", "rlbox"))
    layers, part = [], "os"
    for command, size in rows:
        if part in ("lock", "other"):  # above the lock is what of rlbox decides no image
            part = "other"
        elif named := _NAMED.match(command):
            part = named[1]
        elif command.startswith("COPY /out/"):
            part = next(unnamed, "")
        elif command.startswith("COPY lock/"):
            part = "lock"
        layers.append(ImageLayer(part=part, size=size, command=command))
    return tuple(layers)


_WIDTH = 100
_UNBREAKABLE_SPACE = "\xa0"
_TARGET = "rlbox.target"
_LABELS = {
    _TARGET: _("target"),
    SPEC_LABEL: _("spec"),
    LOCK_LABEL: _("lock"),
    "rlbox.build": _("build"),
    "rlbox.fixes": _("fixes"),
    "rlbox.patches": _("patches"),
}
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


def show_engine_image_or_raise_if_image_like(app: App, reference: str) -> bool:
    """Explain the image that `reference` names (tag, id, digest); return False when it names none and does not look so.

    Raises EngineError: it looks like an image, and the engine has none of that name, or does not answer.
    Raises SpecError: it is an image that rlbox did not make.
    """
    looks_so = bool(set(reference) & set("/:@"))
    if not _REFERENCE.fullmatch(reference):
        return False
    try:
        image = find_image(reference)
    except EngineError:
        if looks_so:
            raise
        return False
    if image is None and looks_so:
        next_step = _("docker pull {image}, or rlbox load FILE").format(image=reference)
        raise EngineError(_("the engine has no image {word}").format(word=reference), next_step=next_step)
    if image is None:
        return False
    described = _describe(app, reference, image)
    text = "\n".join(_format(described))
    described["standing"]["changes"] = [asdict(change) for change in described["standing"]["changes"]]
    app.output({"image": described}, text)
    return True


def _describe(app: App, reference: str, image: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of an image, as JSON types but for changes of the lock; `size` as the engine counts it."""
    labels = (image.get("Config") or {}).get("Labels") or {}
    if not labels.get(_TARGET):
        raise SpecError(
            _("{word} is not an image of rlbox: it has no label {target}").format(word=reference, target=_TARGET),
            next_step=f"docker image inspect {reference}",
        )
    lock, no_lock_reason = _read_lock(image["Id"])
    layers = list_image_layers_bottom_up(
        connect_engine().image_history(image["Id"]), has_patch_layer=bool(labels.get("rlbox.patches"))
    )
    return {
        "name": reference,
        "id": image["Id"],
        "digest": find_manifest_digest_or_empty(image) or None,
        "tags": list(image.get("RepoTags") or ()),
        "created": image.get("Created", ""),
        "size": image.get("Size", 0),
        "labels": dict(sorted(labels.items())),
        "layers": [asdict(layer) for layer in layers],
        "groups": [
            {
                "name": name,
                "packages": [
                    {"name": x.name, "version": get_version_or_commit_or_empty(x), "sha256": x.sha256} for x in rows
                ],
            }
            for name, rows in (map_groups_to_image_entries(lock).items() if lock else ())
            if rows
        ],
        "note": no_lock_reason,
        "standing": _compare_with_target(app, labels, lock),
    }


def _read_lock(image_id: str) -> tuple[Lock | None, str | None]:
    text = connect_engine().read_image_file(image_id, LOCK_IN_IMAGE)
    if text is None:
        return None, _("{path} is missing in it").format(path=LOCK_IN_IMAGE)
    try:
        return parse_lock(text, LOCK_IN_IMAGE, ""), None
    except SpecError as error:
        return None, error.what


def _compare_with_target(app: App, labels: Mapping[str, str], lock: Lock | None) -> dict[str, Any]:
    """Return how an image stands to its target in the project.

    `spec` is `same`, `differs`, or why nothing can be said; `lock` is `same`, `differs`, `missing`, or empty.
    """
    name = labels[_TARGET]
    status = {"target": name, "spec": _("there is no such target"), "lock": "", "changes": []}
    if name not in app.project.own_pack_and_shipped_target_files():
        return status
    try:
        target = load_target_with_fix_apt_packages(app.project, name).target
        current = load_lock(app.project.own_or_shipped_lock_file(name))
    except SpecError as error:
        what = error.what.splitlines()[0] if "\n" in error.what else error.what
        return {**status, "spec": _("cannot be read: {what}").format(what=what)}
    same_spec = labels.get(SPEC_LABEL) == compute_image_spec_checksum(target)
    same_lock = current is not None and labels.get(LOCK_LABEL) == current.compute_json_sha256()
    return {
        "target": name,
        "spec": _("same") if same_spec else _("differs"),
        "lock": _("missing") if current is None else _("same") if same_lock else _("differs"),
        "changes": list_lock_changes(lock, current) if lock and current and not same_lock else (),
    }


def _format(image: Mapping[str, Any]) -> Iterator[str]:
    labels, standing = image["labels"], image["standing"]
    yield translate(_("# image {name}").format(name=image["name"]))
    yield _row(_("title"), labels.get("org.opencontainers.image.title", ""))
    yield from (_row(word, labels.get(label, "") or _("none")) for label, word in _LABELS.items())
    if forced := labels.get(FORCED_LABEL):
        yield _row(_("forced"), _("its stack contradicts itself: {conflict}").format(conflict=forced))
    yield _row(_("digest"), image["digest"] or _("none: this engine keeps no manifest of it"))
    yield _row("id", image["id"])
    yield _row(_("tags"), ", ".join(image["tags"]) or _("none"))
    yield _row(_("created"), image["created"])
    yield _row(_("size"), decimal_size_text(image["size"]))
    yield ""
    yield translate(_("# {count} layers, unpacked, the lowest first").format(count=len(image["layers"])))
    for layer in image["layers"]:
        yield f"{decimal_size_text(layer['size']):>9}  {layer['part'] or layer['command'][:_WIDTH]}"
    yield ""
    packages = _("# packages: not known, {note}") if image["note"] else _("# packages by group")
    yield translate(packages.format(note=image["note"]))
    for group in image["groups"]:
        yield from _format_group(group)
    yield ""
    yield translate(_("# next to the target {target} of this project").format(target=standing["target"]))
    yield _row(_("spec"), standing["spec"])
    if standing["lock"]:
        yield _row(_("lock"), standing["lock"])
    yield from (f"  {translate(str(change))}" for change in standing["changes"])
    if "differs" in (standing["spec"], standing["lock"]):
        yield translate(_("next: {command}").format(command=f"rlbox build {standing['target']}"))


def _row(label: str, value: str) -> str:
    return f"{pad_translated(label, 8)} {translate(value)}"


def _format_group(group: Mapping[str, Any]) -> Iterator[str]:
    yield f"{group['name']} ({len(group['packages'])})"
    names = []
    for row in group["packages"]:
        version = row["version"][:12] if group["name"] == "git" else row["version"] or row["sha256"][:12]
        names.append(f"{row['name']}{_UNBREAKABLE_SPACE}{version}")
    lines = textwrap.wrap(", ".join(names), _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    yield from (line.replace(_UNBREAKABLE_SPACE, " ") for line in lines)
