"""Drive uv: resolve a target's packages into a lock, and make a virtual environment from one."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rlbox.act.command import check_command
from rlbox.act.folders import write_atomic
from rlbox.plan.image import ImagePlan
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


def sync_environment(folder: Path, plan: ImagePlan, python: str, sources: SourcePlan, ca_bundle: str) -> Path:
    """Make `folder` a virtual environment with exactly the target's locked packages; return its interpreter.

    An environment that is right already costs one comparison. Used where a run takes place without a container.
    """
    text = "".join(plan.context[f"requirements/{name}.txt"] for name in plan.groups)
    stamp = folder / "rlbox-lock.txt"
    interpreter = folder / "bin/python"
    if interpreter.exists() and stamp.exists() and stamp.read_text() == text:
        return interpreter
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "requirements.txt"
    wanted.write_text(text)
    env = {**sources.env, **({"SSL_CERT_FILE": ca_bundle} if ca_bundle else {})}
    folders = sorted({wheel.rsplit("/", 1)[0] for wheel in sources.wheels})
    local = [word for where in folders for word in ("--find-links", where)]
    venv = (find_uv(), "venv", "--quiet", "--allow-existing", "--python", python, str(folder))
    sync = (find_uv(), "pip", "sync", "--quiet", "--python", str(interpreter), "--require-hashes", *local, str(wanted))
    check_command(Command(argv=venv), f"uv cannot make an environment with Python {python}")
    check_command(Command(argv=sync, env=env, timeout_s=3600), "uv cannot install the locked packages")
    write_atomic(stamp, text)
    return interpreter
