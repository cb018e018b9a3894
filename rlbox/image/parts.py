"""What an image's digest is made of, part by part, so that an outdated image can be told why it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlbox.image.plan import ImagePlan

BUILD_LABEL, PARTS_LABEL = "rlbox.build", "rlbox.parts"
_REASONS = {
    "spec": "its spec has changed",
    "lock": "its lock has changed",
    "fixes": "what its fixes or patches bake has changed",
    "rlbox": "what rlbox lays into it has changed",
    "form": "it is rendered otherwise",
}
"""Part to what its change means; a change of one shows in those behind it too, so that the first is the cause."""
_FOLDERS = {"fixes": "fixes", "patches": "fixes", "Dockerfile": "form", "lock": "form", "requirements": "form"}
_SHORT = 12


def part_of(name: str) -> str:
    """Return the part that a file of the build context belongs to."""
    return _FOLDERS.get(name.partition("/")[0], "rlbox")


def parts_text(plan: ImagePlan, digests: Mapping[str, str]) -> str:
    """Return the label that names the parts: `NAME:DIGEST` in words, the digests cut to twelve digits."""
    parts = {**digests, "spec": plan.spec_checksum, "lock": plan.lock_checksum}
    return " ".join(f"{name}:{parts[name][:_SHORT]}" for name in _REASONS if parts.get(name))


def why_outdated(labels: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return in words what has changed since an image was built; empty when nothing has.

    Parameters
    ----------
    labels
        Those of the image.
    now
        Those that a build would give it now.
    """
    if labels.get(BUILD_LABEL) == now[BUILD_LABEL]:
        return ""
    if PARTS_LABEL not in labels:
        return "it was built by an rlbox that counted every line of its own code as part of the image"
    before = set(labels[PARTS_LABEL].split())
    changed = {word.partition(":")[0] for word in now[PARTS_LABEL].split() if word not in before}
    return next((why for name, why in _REASONS.items() if name in changed), _REASONS["form"])
