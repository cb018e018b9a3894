"""The labels by which an image states what it was made from."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from rlbox.fixes.patches import ResolvedPatch
from rlbox.fixes.render import RenderedFixes
from rlbox.target.lock import Lock
from rlbox.target.target import Target

BUILD_LABEL, SPEC_LABEL, LOCK_LABEL = "rlbox.build", "rlbox.spec", "rlbox.lock"
FORCED_LABEL = "rlbox.forced"
"""The contradiction of its stack that a build was forced to override; an image whose stack fits has no such label."""


def build_image_labels(
    target: Target,
    lock: Lock | None,
    rendered_fixes: RenderedFixes | None = None,
    patches: tuple[ResolvedPatch, ...] = (),
) -> dict[str, str]:
    ids = sorted(fix.id for fix in rendered_fixes.fixes if fix.has_bake_entries) if rendered_fixes else []
    return {
        "org.opencontainers.image.title": target.title,
        "rlbox.fixes": " ".join(ids),
        "rlbox.patches": " ".join(row.name for row in patches if not row.skip),
        LOCK_LABEL: lock.checksum() if lock else "",
        SPEC_LABEL: compute_image_spec_checksum(target),
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
