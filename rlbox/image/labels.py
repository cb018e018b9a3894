"""What decides an image, piece by piece, as a label of it: so that an outdated one says which spec changed, and how."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rlbox.config.toml_files import iter_dotted_keys
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.secrets.masks import looks_like_secret

if TYPE_CHECKING:
    from rlbox.fixes.patches import ResolvedPatch
    from rlbox.fixes.render import RenderedFixes
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target


KEYS_LABEL = "rlbox.keys"
LOCK, FIX, PATCH = "lock:", "fix:", "patch:"
"""What a key begins with that is none of the spec."""
_LONGEST = 100
_DIGITS = 12
_SUM = "sha256:"
_OF_THE_MACHINE = ("disk.host",)
_SHOWN = 6


def summarize_image_inputs(
    target: Target,
    lock: Lock | None,
    rendered_fixes: RenderedFixes,
    patches: tuple[ResolvedPatch, ...],
    set_keys: Iterable[str],
) -> dict[str, str]:
    """Return what decides an image: the keys of the spec that its files name, lock, fixes and patches.

    Each has its value as JSON; what is long, secret, an address or of a machine has the beginning of its sha256.

    Parameters
    ----------
    set_keys
        Keys that a file of the target sets: the others are defaults, which no file can say.
    """
    spec = dict(
        iter_dotted_keys(target.model_dump(mode="json", exclude={"sources": True, "vast": True, "disk": {"archive"}}))
    )
    keys = {key: _shown(key, spec[key]) for key in sorted(set_keys) if key in spec}
    baking = [fix for fix in rendered_fixes.fixes if fix.bakes]
    keys |= {f"{FIX}{fix.id}": _sum(fix.model_dump(mode="json", include={"bake", "check"})) for fix in baking}
    keys |= {f"{PATCH}{row.name}": _sum([row.diff, row.skip]) for row in patches if not row.fix}
    if lock:  # what it was made for, and patches, are pieces of their own
        keys[LOCK] = _sum({**parse_json(lock.to_json_text()), "target": "", "spec": "", "patches": []})
    return keys


def format_keys_label(input_values: Mapping[str, str]) -> str:
    return json.dumps(input_values, ensure_ascii=True, separators=(",", ":"), sort_keys=True)


def parse_keys_label(label: str) -> dict[str, str]:
    """Return the keys of a label; none where it has none, or is not ours."""
    try:
        found = parse_json(label)
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def describe_changed_inputs(
    old_values: Mapping[str, str], new_values: Mapping[str, str], key_files: Mapping[str, str], target: str
) -> list[str]:
    """Return a sentence for each piece that differs, specs first; a value is told where the label has it.

    Parameters
    ----------
    key_files
        Key to the file that sets it now.
    """
    own = f"images/{target}/target.toml"
    changed = [
        key
        for key in (*new_values, *(key for key in old_values if key not in new_values))
        if old_values.get(key) != new_values.get(key)
    ]
    spec = [key for key in changed if not key.startswith((LOCK, FIX, PATCH))]
    told = [_of_spec(key_files.get(key, own), key, old_values.get(key), new_values.get(key)) for key in spec]
    told += [_other(key, key in old_values, key in new_values, target) for key in changed if key not in spec]
    return told[:_SHOWN] + ([f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else [])


def _of_spec(file: str, key: str, before: str | None, now: str | None) -> str:
    secret = any(value is not None and value.startswith(_SUM) for value in (before, now))
    if before is None:
        return f"{file}: {key} is new" if secret else f"{file}: {key} is new: {now}"
    if now is None:
        return f"{file}: {key} is gone" if secret else f"{file}: {key} is gone, it was {before}"
    return f"{file}: {key} has changed" if secret else f"{file}: {key} was {before}, is {now}"


def _other(key: str, before: bool, now: bool, target: str) -> str:
    kind, __, name = key.partition(":")
    if key == LOCK:
        return f"images/{target}/lock.json pins other files"
    if kind == "fix":
        both = f"templates/fixes/{name}.toml bakes something else"
        return both if before and now else f"fix {name} applies now" if now else f"fix {name} does not apply any more"
    both = f"images/{target}/patches/{name} has changed"
    return both if before and now else f"patch {name} is new" if now else f"patch {name} is gone"


def _shown(key: str, value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    plain = len(text) <= _LONGEST and "://" not in text and key not in _OF_THE_MACHINE
    return text if plain and not looks_like_secret(key.rpartition(".")[2], str(value)) else _sum(value)


def _sum(value: Any) -> str:
    return _SUM + hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_DIGITS]


BUILD_LABEL, PARTS_LABEL = "rlbox.build", "rlbox.parts"
FORCED_LABEL = "rlbox.forced"
"""The contradiction of its stack that a build was forced to override; an image whose stack fits has no such label."""
_REASONS = {
    "spec": _("its spec has changed"),
    "lock": _("its lock has changed"),
    "fixes": _("what its fixes or patches bake has changed"),
    "rlbox": _("what rlbox lays into it has changed"),
    "form": _("it is rendered otherwise"),
}
"""Part to what its change means; a change of one shows in those behind it too, so that the first is the cause."""
_FOLDERS = {
    **dict.fromkeys(("fixes", "programs", "patches"), "fixes"),
    **dict.fromkeys(("Dockerfile", "lock", "wheels"), "form"),
}
_SHORT = 12


def build_image_labels(
    target: Target,
    lock: Lock | None,
    rendered_fixes: RenderedFixes | None = None,
    patches: tuple[ResolvedPatch, ...] = (),
) -> dict[str, str]:
    """Return the labels by which an image explains itself; none of them names a machine, a mirror or a moment."""
    ids = sorted(fix.id for fix in rendered_fixes.fixes if fix.bakes) if rendered_fixes else []
    return {
        "org.opencontainers.image.title": target.title,
        "rlbox.fixes": " ".join(ids),
        "rlbox.patches": " ".join(row.name for row in patches if not row.skip),
        "rlbox.lock": lock.checksum() if lock else "",
        "rlbox.spec": compute_image_spec_checksum(target),
        "rlbox.target": target.name,
    }


def compute_image_spec_checksum(target: Target) -> str:
    """Return the checksum of the completed spec, but for where files come from and how a machine is rented."""
    fields = target.model_dump(
        mode="json", exclude={"sources": True, "vast": True, "cluster": True, "disk": {"archive"}}
    )
    for group in fields["stack"]:  # a key that came later: what says nothing by it is the spec it was
        if not group["compile"]:
            del group["compile"]
    return _checksum(fields)


def compute_rootfs_checksum(lock: Lock, epoch: int) -> str:
    return _checksum([lock.base, epoch, sorted(deb.sha256 for deb in lock.debs)])


def _checksum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def classify_context_path(context_path: str) -> str:
    return _FOLDERS.get(context_path.partition("/")[0], "rlbox")


def format_parts_label(part_digests: Mapping[str, str]) -> str:
    """Return the label that names the parts: `NAME:DIGEST` in words, the digests cut to twelve digits."""
    return " ".join(f"{name}:{part_digests[name][:_SHORT]}" for name in _REASONS if part_digests.get(name))


def explain_outdated_image(
    image_labels: Mapping[str, str], current_labels: Mapping[str, str], target: str, key_files: Mapping[str, str]
) -> str:
    """Return in words all that has changed since an image was built, the specs first; empty when nothing has.

    Parameters
    ----------
    image_labels
        Those of the image.
    current_labels
        Those that a build would give it now.
    key_files
        Dotted key of the target's spec to the file that sets it.
    """
    if image_labels.get(BUILD_LABEL) == current_labels[BUILD_LABEL]:
        return ""
    if PARTS_LABEL not in image_labels:
        return _("it was built by an rlbox that counted every line of its own code as part of the image")
    before = set(image_labels[PARTS_LABEL].split())
    changed = {word.partition(":")[0] for word in current_labels[PARTS_LABEL].split() if word not in before}
    told = describe_changed_inputs(
        parse_keys_label(image_labels.get(KEYS_LABEL, "")),
        parse_keys_label(current_labels[KEYS_LABEL]),
        key_files,
        target,
    )
    if KEYS_LABEL in image_labels and told:
        return "; ".join([*told, *([_REASONS["rlbox"]] if "rlbox" in changed else [])])
    return next((why for name, why in _REASONS.items() if name in changed), _REASONS["form"])
