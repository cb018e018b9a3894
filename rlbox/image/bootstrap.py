"""Make the operating system layer from locked apt packages, with mmdebstrap: the same packages give the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlbox.artifacts.apt_lock import architecture_of
from rlbox.artifacts.object_store import Store
from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.image.bootstrap_command import RECIPE, deb_file, plan_bootstrap, plan_package_list, plan_release
from rlbox.system.command import check_command
from rlbox.system.files import cache_path
from rlbox.target.lock import Deb, Lock
from rlbox.values import Command

_HOOKS = Path("/usr/share/mmdebstrap/hooks/merged-usr")


def rootfs_path(checksum: str) -> Path:
    """Return where the archive of a bootstrapped system lies, or will lie; `checksum` as in `ImagePlan.rootfs`."""
    recipe = hashlib.sha256((checksum + RECIPE).encode()).hexdigest()
    return cache_path("bootstrap", recipe[:24] + ".tar")


def make_rootfs(lock: Lock, checksum: str, epoch: int, store: Store) -> Path:
    """Return the archive of the system, made now from the store's packages unless it is there already.

    Raises
    ------
    NodeError
        mmdebstrap is not installed.
    WorkFailed
        It failed; its last lines are quoted. Nothing is left half-written.
    """
    path = rootfs_path(checksum)
    if path.exists():
        return path
    require_mmdebstrap()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.stem}.{os.getpid()}.tar")
    try:
        with tempfile.TemporaryDirectory(prefix="rlbox-debs-") as folder:
            Path(folder).chmod(0o755)  # apt reads it as a user of its own
            _write_archive(lock.debs, lock.base, architecture_of(lock.platform), store, Path(folder))
            command = plan_bootstrap(lock.base, lock.debs, epoch, folder, str(_HOOKS), str(draft))
            check_command(command, f"mmdebstrap failed for {lock.base}")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def require_mmdebstrap() -> None:
    """Raise `NodeError` where mmdebstrap is not installed."""
    if shutil.which("mmdebstrap") is None or not _HOOKS.is_dir():
        raise NodeError(
            _("mmdebstrap is not installed, and the target's base is bootstrapped from apt"),
            where="base.bootstrap",
            next_step=_("apt-get install mmdebstrap (or set base.image to an image by digest)"),
        )


def _write_archive(debs: Sequence[Deb], base: str, architecture: str, store: Store, folder: Path) -> None:
    """Lay the packages into `folder` with an index of exactly these."""
    controls = {}
    for deb in debs:
        path = folder / deb_file(deb)
        store.link(deb.sha256, path)
        field = Command(argv=("dpkg-deb", "--field", str(path)))
        controls[deb.sha256] = check_command(field, f"{path.name} is no Debian package").stdout
    index = plan_package_list(debs, controls).encode()
    (folder / "Packages").write_bytes(index)
    release = plan_release(base.partition(":")[2], architecture, hashlib.sha256(index).hexdigest(), len(index))
    (folder / "Release").write_text(release)
    for path in (folder / "Packages", folder / "Release"):
        path.chmod(0o644)
