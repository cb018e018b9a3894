"""Drive uv: resolve a target's packages into a lock, and make a virtual environment from one."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rlbox.act.command import check_command
from rlbox.plan.lock import plan_compile, plan_inputs, plan_lock
from rlbox.plan.sources import SourcePlan
from rlbox.spec.lock import Lock
from rlbox.spec.target import Target
from rlbox.values import Command


def find_uv() -> str:
    """Return the path of the uv that was installed with rlbox."""
    import uv

    return uv.find_uv_bin()


def resolve_lock(target: Target, runtime: tuple[str, ...], sources: SourcePlan, ca_bundle: str) -> Lock:
    """Resolve the target's packages with uv and return the lock; `WorkFailed` quotes uv when it finds no solution."""
    stack, own = plan_inputs(target, runtime)
    env = {"SSL_CERT_FILE": ca_bundle} if ca_bundle else {}
    texts = []
    for files in (stack, own):
        with tempfile.TemporaryDirectory(prefix="rlbox-lock-") as folder:
            for name, text in files.items():
                Path(folder, name).write_text(text)
            command = plan_compile(target, files, find_uv(), sources, folder)
            command = Command(argv=command.argv, env={**command.env, **env}, cwd=folder, timeout_s=command.timeout_s)
            texts.append(check_command(command, f"uv finds no set of packages for target {target.name}").stdout)
    return plan_lock(target, runtime, texts[0], texts[1])
