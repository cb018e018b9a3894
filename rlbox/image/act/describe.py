"""What a build leaves beside its image: an SBOM and the provenance."""

from __future__ import annotations

from typing import Any

from rlbox.app import App
from rlbox.engine.act.api import engine, find_image
from rlbox.engine.oci import stored_digest
from rlbox.files.act.folders import cache_folder, write_atomic
from rlbox.image.describe import PROVENANCE_FILE, SBOM_FILE, Built, BuiltBy, plan_provenance, plan_sbom
from rlbox.image.plan import ImagePlan
from rlbox.target.lock import parse_lock
from rlbox.values import LOCK_IN_IMAGE


def describe_image(app: App, plan: ImagePlan, *, hermetic: bool) -> None:
    """Write what explains the image that was just built; a file that cannot be written is told, and fails no build.

    What explained the image before goes first: a file that is there speaks of the image that has the tag.
    """
    image = find_image(plan.tag)
    folder = cache_folder("images", plan.target)
    try:
        for name in (SBOM_FILE, PROVENANCE_FILE):
            (folder / name).unlink(missing_ok=True)
        for name, text in _files(plan, image, hermetic).items() if image else ():
            write_atomic(folder / name, text)
    except OSError as error:
        app.say(f"note: the image has no SBOM and provenance: {folder} cannot be written: {error.strerror}")


def _files(plan: ImagePlan, image: dict[str, Any], hermetic: bool) -> dict[str, str]:
    digest = stored_digest(image)
    name = plan.tag.rpartition(":")[0]
    built = Built(name=name, digest=digest or str(image["Id"]), has_manifest=bool(digest), epoch=plan.epoch)
    labels = image["Config"].get("Labels") or {}
    by = BuiltBy(
        spec=labels.get("rlbox.spec", ""),
        mode="hermetic" if hermetic else "online",
        versions={"engine": engine().version()},
    )
    text = plan.context[f"lock/{plan.lock_checksum[:12]}{LOCK_IN_IMAGE}"]
    lock = parse_lock(text, plan.tag, f"rlbox lock {plan.target}")
    return {SBOM_FILE: plan_sbom(lock, built), PROVENANCE_FILE: plan_provenance(lock, built, by)}
