"""The labels by which an image explains itself, and the checksums in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlbox.fixes.bake import Baked
    from rlbox.fixes.patches import PatchRow
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target


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
    return _checksum(target.model_dump(mode="json", exclude={"sources", "vast"}))


def rootfs_checksum(lock: Lock, epoch: int) -> str:
    """Return the checksum of what a bootstrapped operating system is made of."""
    return _checksum([lock.base, epoch, sorted(deb.sha256 for deb in lock.debs)])


def _checksum(value: Any) -> str:
    import hashlib
    import json

    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
