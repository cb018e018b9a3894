"""The end of a build: the checks of all fixes, in a container of the new image."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

from rlbox.act.engine_api import engine_address
from rlbox.act.folders import cache_folder, write_atomic
from rlbox.errors import WorkFailed
from rlbox.plan.container import TARGET_LABEL
from rlbox.plan.image import ImagePlan
from rlbox.plan.patches import MANIFEST as PATCHES
from rlbox.spec.finding import Finding, load_finding

_LIMIT_S = 120.0
_CHECK = ("/opt/rlbox/bin/python", "-m", "rlbox.cli.check_fixes", "build")


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
    words = ["docker", "run", "--rm", "--pull=never", "--network=none", f"--label={TARGET_LABEL}={plan.target}"]
    env = {**os.environ, "DOCKER_HOST": engine_address()}
    try:
        done = subprocess.run(
            [*words, plan.tag, *_CHECK], capture_output=True, text=True, env=env, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        _untag(plan, env)
        raise WorkFailed(f"the checks of {plan.tag} did not end within {_LIMIT_S:g} s") from error
    found = [load_finding(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0:
        write_atomic(memory, key)
        return
    _untag(plan, env)
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


def _untag(plan: ImagePlan, env: dict[str, str]) -> None:
    subprocess.run(["docker", "rmi", "--no-prune", plan.tag], capture_output=True, env=env, check=False)
