"""The end of a build: the checks of all fixes, in a container of the new image."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from rlbox.engine.act.address import engine_address
from rlbox.engine.container import TARGET_LABEL
from rlbox.errors import TimedOut, WorkFailed
from rlbox.files.act.folders import cache_folder, write_atomic
from rlbox.findings import Finding, load_finding
from rlbox.fixes.patches import MANIFEST as PATCHES
from rlbox.image.act.builder import untag
from rlbox.image.plan import ImagePlan
from rlbox.machine.act.command import run_command
from rlbox.values import Command

_LIMIT_S = 600.0  # a stack of ten gigabytes is read from a cold disk, on a machine that just built it
_CHECK = ("/opt/rlbox/bin/python", "-m", "rlbox.doctor", "build")


def check_image(plan: ImagePlan, *, again: bool) -> None:
    """Check the fixes of the image of `plan`; one that is absent takes the tag off, so that nobody uses the image.

    What checks can see is remembered once all have passed: a build that changes nothing of it (rlbox itself, a label,
    a patch of the target's own) does not wait for them.

    Parameters
    ----------
    again
        Check in any case.

    Raises
    ------
    WorkFailed
        A check failed; every one is named with what it saw.
    """
    key, memory = checked_key(plan), cache_folder("checked", plan.target)
    if not again and _remembered(memory) == key:
        return
    words = ("docker", "run", "--rm", "--pull=never", "--network=none", f"--label={TARGET_LABEL}={plan.target}")
    env = {"DOCKER_HOST": engine_address()}
    try:
        done = run_command(Command(argv=(*words, plan.tag, *_CHECK), env=env, timeout_s=_LIMIT_S))
    except TimedOut as error:
        untag(plan.tag)
        raise WorkFailed(f"the checks of {plan.tag} did not end within {_LIMIT_S:g} s") from error
    found = [load_finding(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.ok:
        write_atomic(memory, key)
        return
    untag(plan.tag)
    if not found:
        raise WorkFailed(f"the checks of {plan.tag} could not be run: {done.stderr.strip()[-500:]}")
    raise WorkFailed(
        f"{len(found)} of the fixes baked into {plan.tag} do not hold, so it lost its tag\n"
        + "\n".join(f"  {_line(finding)}" for finding in found),
        next_step=f"rlbox fixes show {found[0].id}",
    )


def checked_key(plan: ImagePlan) -> str:
    """Return the checksum of what checks of fixes can see: base, stack, fixes, environment, patches of fixes."""
    patches = json.loads(plan.context.get(PATCHES, '{"patches": []}'))["patches"]
    seen = {
        "base": plan.rootfs or re.findall(r"^FROM .*$", plan.context["Dockerfile"], re.M)[0],
        "env": re.findall(r"^ENV (?:.*\\\n)*.*$", plan.context["Dockerfile"], re.M),
        "files": {name: text for name, text in plan.context.items() if name.startswith(("fixes/", "requirements/"))},
        "patches": [row for row in patches if row["fix"]],
    }
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


def _remembered(memory: Path) -> str:
    try:
        return memory.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _line(finding: Finding) -> str:
    return f"{finding.id}: {finding.seen or finding.title}"
