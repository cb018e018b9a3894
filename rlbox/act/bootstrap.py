"""Make the operating system layer from apt alone, with mmdebstrap: the same packages give the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from rlbox.act.folders import cache_folder
from rlbox.errors import NodeError, SpecError
from rlbox.values import Command

# What no container needs: three quarters of the files, a third of the bytes.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")
# State that names a moment or a machine: without these the archive differs between two runs.
_REMOVED = (
    "var/log/apt",
    "var/log/dpkg.log",
    "var/log/alternatives.log",
    "var/cache/ldconfig/aux-cache",
    "etc/machine-id",
    "etc/hostname",  # the host's; the engine gives a container its own
    "etc/resolv.conf",
)


def rootfs_path(bootstrap: str, packages: tuple[str, ...], epoch: int) -> Path:
    """Return where the archive of this package set lies, or will lie."""
    made_from = json.dumps([bootstrap, packages, epoch, _LEFT_OUT, _REMOVED])
    return cache_folder("bootstrap", hashlib.sha256(made_from.encode()).hexdigest()[:24] + ".tar")


def plan_bootstrap(bootstrap: str, packages: tuple[str, ...], epoch: int, out: Path) -> Command:
    """Return the mmdebstrap command; it names no mirror, so that the machine's or its own default is taken."""
    _, _, suite = bootstrap.partition(":")
    excludes = tuple(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT)
    removals = tuple(f'--customize-hook=rm -rf "$1/{path}"' for path in _REMOVED)
    include = (f"--include={','.join(packages)}",) if packages else ()
    argv = ("mmdebstrap", "--variant=minbase", "--quiet", *include, *excludes, *removals, suite, str(out))
    return Command(argv=argv, env={"SOURCE_DATE_EPOCH": str(epoch)}, timeout_s=1800)


def make_rootfs(bootstrap: str, packages: tuple[str, ...], epoch: int) -> Path:
    """Return the archive of the package set, made now unless it is there already.

    Raises
    ------
    NodeError
        mmdebstrap is not installed.
    WorkFailed
        It failed; its last lines are quoted. Nothing is left half-written.
    """
    distribution, _, suite = bootstrap.partition(":")
    if (distribution, suite) != ("debian", "bookworm"):
        raise SpecError(f"base.bootstrap: {bootstrap!r} cannot be bootstrapped", next_step="use debian:bookworm")
    path = rootfs_path(bootstrap, packages, epoch)
    if path.exists():
        return path
    import shutil

    from rlbox.act.command import check_command

    if shutil.which("mmdebstrap") is None:
        raise NodeError(
            "mmdebstrap is not installed, and the target's base is bootstrapped from apt",
            where="base.bootstrap",
            next_step="apt-get install mmdebstrap (or set base.image to an image by digest)",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.stem}.{os.getpid()}.tar")
    try:
        check_command(plan_bootstrap(bootstrap, packages, epoch, draft), f"mmdebstrap failed for {bootstrap}")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path
