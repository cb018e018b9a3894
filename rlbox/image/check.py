"""The end of a build: the checks of all fixes, in a container of the new image, and its SBOM."""

from __future__ import annotations

import hashlib
import json
import os
import re

from rlbox.amounts import exact_duration_text
from rlbox.app import App
from rlbox.engine.connection import connect_engine, find_image
from rlbox.engine.container import TARGET_LABEL, ContainerPlan
from rlbox.engine.oci import find_manifest_digest
from rlbox.errors import EngineError, TimedOut, WorkFailed
from rlbox.findings import Finding, load_finding
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.image.plan import ImagePlan
from rlbox.image.sbom import SBOM_FILE, render_spdx_sbom
from rlbox.system.files import cache_path, write_atomic
from rlbox.target.lock import parse_lock
from rlbox.values import LOCK_IN_IMAGE, PATCHES_IN_CONTEXT

_LIMIT_S = 600.0  # a stack of ten gigabytes is read from a cold disk, on a machine that just built it
_CHECK = ("/opt/rlbox/bin/python", "-m", "rlbox.doctor", "build")
_SHORT = 24
_SEEN = ("fixes/", "programs/", "wheels/")  # folders of the build context


def check_fixes_or_untag_image(plan: ImagePlan, *, ignore_cached_pass: bool) -> None:
    """Check the fixes of the image of `plan`; one that is absent takes the tag off, so that nobody uses the image.

    What checks can see is remembered once all have passed: a build that changes nothing of it (rlbox itself, a label,
    a patch of the target's own) does not wait for them.

    Parameters
    ----------
    ignore_cached_pass
        Check in any case.

    Raises
    ------
    WorkFailed
        A check failed; every one is named with what it saw.
    """
    memory = cache_path("checks", plan.target, hash_check_inputs(plan)[:_SHORT])
    if not ignore_cached_pass and memory.is_file():
        return
    try:
        done = connect_engine().run_container(_container(plan), _LIMIT_S)
    except (TimedOut, EngineError) as error:
        connect_engine().try_untag_image(plan.tag)
        late = _("did not end within {limit_s}").format(limit_s=exact_duration_text(_LIMIT_S))
        why = late if isinstance(error, TimedOut) else _("could not be run: {what}").format(what=error.what)
        raise WorkFailed(_("the checks of {tag} {why}").format(tag=plan.tag, why=why)) from error
    found = [load_finding(parse_json(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.ok:
        write_atomic(memory, "")
        return
    connect_engine().try_untag_image(plan.tag)
    if not found:
        raise WorkFailed(
            _("the checks of {tag} could not be run: {stderr}").format(tag=plan.tag, stderr=done.stderr.strip()[-500:])
        )
    raise WorkFailed(
        _("{count} of the fixes baked into {tag} do not hold, so it lost its tag\n{found}").format(
            count=len(found), tag=plan.tag, found="\n".join(f"  {_line(finding)}" for finding in found)
        ),
        next_step=f"rlbox fixes show {found[0].id}",
    )


def _container(plan: ImagePlan) -> ContainerPlan:
    return ContainerPlan(
        image=plan.tag,
        name=f"rlbox-checks-{plan.target}-{os.getpid()}",
        argv=_CHECK,
        labels={TARGET_LABEL: plan.target},
        network="none",
    )


def hash_check_inputs(plan: ImagePlan) -> str:
    """Return the checksum of what checks of fixes can see: base, stack, fixes, environment, patches of fixes."""
    patches = parse_json(plan.context_files.get(PATCHES_IN_CONTEXT, '{"patches": []}'))["patches"]
    seen = {
        "base": plan.rootfs_checksum or re.findall(r"^FROM .*$", plan.context_files["Dockerfile"], re.M)[0],
        "env": re.findall(r"^ENV (?:.*\\\n)*.*$", plan.context_files["Dockerfile"], re.M),
        "files": {name: text for name, text in plan.context_files.items() if name.startswith(_SEEN)},
        "patches": [row for row in patches if row["fix"]],
    }
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


def _line(finding: Finding) -> str:
    return f"{finding.id}: {finding.seen or finding.title}"


def cache_image_sbom(app: App, plan: ImagePlan) -> None:
    """Write the SBOM of the image that was just built; a file that cannot be written is told, and fails no build.

    It lies in a folder of the image's own, whatever its name: the same image of another project has the same.
    """
    if (image := find_image(plan.tag)) is None:
        return
    # an engine without manifests has the digest of the image's configuration
    digest = find_manifest_digest(image) or str(image["Id"])
    lock = parse_lock(plan.context_files[f"lock/{plan.lock_checksum[:12]}{LOCK_IN_IMAGE}"], plan.tag)
    path = cache_path("images", plan.target, digest.rpartition(":")[2][:_SHORT]) / SBOM_FILE
    try:
        write_atomic(path, render_spdx_sbom(lock, plan.tag.rpartition(":")[0], digest, plan.epoch))
    except OSError as error:
        app.print_status(f"note: the image has no SBOM: {path} cannot be written: {error.strerror}")
