"""The end of a build: the checks of all fixes, in a container of the new image."""

from __future__ import annotations

import json
import os
import subprocess

from rlbox.act.engine_api import engine_address
from rlbox.errors import WorkFailed
from rlbox.plan.container import TARGET_LABEL
from rlbox.plan.image import ImagePlan
from rlbox.spec.finding import Finding, load_finding

_LIMIT_S = 120.0
_CHECK = ("/opt/rlbox/bin/python", "-m", "rlbox.cli.check_fixes", "build")


def check_image(plan: ImagePlan) -> None:
    """Check the fixes of the image of `plan`; one that is absent takes the tag off, so that nobody uses the image.

    Raises
    ------
    WorkFailed
        A check failed; every one is named with what it saw.
    """
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
        return
    _untag(plan, env)
    if not found:
        raise WorkFailed(f"the checks of {plan.tag} could not be run: {done.stderr.strip()[-500:]}")
    raise WorkFailed(
        f"{len(found)} of the fixes baked into {plan.tag} do not hold, so it lost its tag\n"
        + "\n".join(f"  {_line(finding)}" for finding in found),
        next_step=f"rlbox fixes show {found[0].id}",
    )


def _line(finding: Finding) -> str:
    return f"{finding.id}: {finding.seen or finding.title}"


def _untag(plan: ImagePlan, env: dict[str, str]) -> None:
    subprocess.run(["docker", "rmi", "--no-prune", plan.tag], capture_output=True, env=env, check=False)
