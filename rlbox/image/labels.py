"""The labels by which an image explains itself, and why one is outdated by those of its parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlbox.i18n import _
from rlbox.image.keys import KEYS_LABEL, changed_keys, read_keys

if TYPE_CHECKING:
    from rlbox.fixes.patches import PatchRow
    from rlbox.fixes.render import Baked
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target

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


def image_labels(
    target: Target, lock: Lock | None, baked: Baked | None = None, patching: tuple[PatchRow, ...] = ()
) -> dict[str, str]:
    """Return the labels by which an image explains itself; none of them names a machine, a mirror or a moment."""
    ids = sorted(fix.id for fix in baked.fixes if fix.bakes) if baked else []
    return {
        "org.opencontainers.image.title": target.title,
        "rlbox.fixes": " ".join(ids),
        "rlbox.patches": " ".join(row.name for row in patching if not row.skip),
        "rlbox.lock": lock.checksum() if lock else "",
        "rlbox.spec": spec_checksum(target),
        "rlbox.target": target.name,
    }


def spec_checksum(target: Target) -> str:
    """Return the checksum of the completed spec, but for where files come from and how a machine is rented."""
    fields = target.model_dump(
        mode="json", exclude={"sources": True, "vast": True, "cluster": True, "disk": {"archive"}}
    )
    for group in fields["stack"]:  # a key that came later: what says nothing by it is the spec it was
        if not group["compile"]:
            del group["compile"]
    return _checksum(fields)


def rootfs_checksum(lock: Lock, epoch: int) -> str:
    """Return the checksum of what a bootstrapped operating system is made of."""
    return _checksum([lock.base, epoch, sorted(deb.sha256 for deb in lock.debs)])


def _checksum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def part_of(name: str) -> str:
    """Return the part that a file of the build context belongs to."""
    return _FOLDERS.get(name.partition("/")[0], "rlbox")


def parts_text(parts: Mapping[str, str]) -> str:
    """Return the label that names the parts: `NAME:DIGEST` in words, the digests cut to twelve digits."""
    return " ".join(f"{name}:{parts[name][:_SHORT]}" for name in _REASONS if parts.get(name))


def why_outdated(labels: Mapping[str, str], now: Mapping[str, str], target: str, origins: Mapping[str, str]) -> str:
    """Return in words all that has changed since an image was built, the specs first; empty when nothing has.

    Parameters
    ----------
    labels
        Those of the image.
    now
        Those that a build would give it now.
    origins
        Dotted key of the target's spec to the file that sets it.
    """
    if labels.get(BUILD_LABEL) == now[BUILD_LABEL]:
        return ""
    if PARTS_LABEL not in labels:
        return _("it was built by an rlbox that counted every line of its own code as part of the image")
    before = set(labels[PARTS_LABEL].split())
    changed = {word.partition(":")[0] for word in now[PARTS_LABEL].split() if word not in before}
    told = changed_keys(read_keys(labels.get(KEYS_LABEL, "")), read_keys(now[KEYS_LABEL]), origins, target)
    if KEYS_LABEL in labels and told:
        return "; ".join([*told, *([_REASONS["rlbox"]] if "rlbox" in changed else [])])
    return next((why for name, why in _REASONS.items() if name in changed), _REASONS["form"])
