"""The command that makes a bootstrapped operating system from its locked packages, and what it reads."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlbox.artifacts.apt_lock import debian_architecture_or_processor
from rlbox.artifacts.object_store import ObjectStore
from rlbox.errors import MachineError
from rlbox.i18n import _
from rlbox.system.command import run_command_or_raise
from rlbox.system.files import cache_path
from rlbox.target.lock import Deb, Lock
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
# for a system whose /bin, /lib and /sbin are links from the start
_HOOKS = Path("/usr/share/mmdebstrap/hooks/merged-usr")
_SOURCES_LIST = "# made from locked packages; name an archive here to install more"
# The caller's environment would reach the packages' scripts: with PYTHONDONTWRITEBYTECODE they leave other bytecode.
_PASSED_ENV = ("PATH", "TMPDIR")
BOOTSTRAP_RECIPE = repr((_LEFT_OUT, _REMOVED, _SOURCES_LIST, _PASSED_ENV))


def deb_path_basename(deb: Deb) -> str:
    return deb.path.rpartition("/")[2]


def render_apt_packages_index(debs: Sequence[Deb], control_by_sha256: Mapping[str, str]) -> str:
    return "".join(
        f"{control_by_sha256[deb.sha256].rstrip()}\n"
        f"Filename: ./{deb_path_basename(deb)}\nSize: {deb.size}\nSHA256: {deb.sha256}\n\n"
        for deb in debs
    )


def _render_release_file(suite: str, architecture: str, index_sha256: str, index_bytes: int) -> str:
    """Return the file `Release` of that archive; mmdebstrap tells essential packages by its code name."""
    return (
        f"Codename: {suite}\nSuite: {suite}\nArchitectures: {architecture}\n"
        f"SHA256:\n {index_sha256} {index_bytes} Packages\n"
    )


def _plan_mmdebstrap_command(base: str, debs: Sequence[Deb], epoch: int, archive_dir: str, output_tar: str) -> Command:
    """Return the mmdebstrap command; `archive_dir` has the packages and their index, and none come from elsewhere."""
    __, __, suite = base.partition(":")
    excludes = tuple(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT)
    removals = tuple(f'--customize-hook=rm -rf "$1/{path}"' for path in _REMOVED)
    source = f"--customize-hook=echo '{_SOURCES_LIST}' >\"$1/etc/apt/sources.list\""
    argv = (
        "mmdebstrap",
        "--variant=minbase",
        "--quiet",
        f"--hook-dir={_HOOKS}",
        f"--include={','.join(deb.name for deb in debs)}",
        *excludes,
        *removals,
        source,
        suite,
        output_tar,
        f"deb [trusted=yes] copy:{archive_dir} ./",
    )
    return Command(argv=argv, env={"SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C"}, timeout_s=1800)


def cached_rootfs_archive_path(rootfs_checksum: str) -> Path:
    """Return where the archive of a bootstrapped system lies, or will lie; of its `ImagePlan.rootfs_checksum`."""
    recipe = hashlib.sha256((rootfs_checksum + BOOTSTRAP_RECIPE).encode()).hexdigest()
    return cache_path("bootstrap", recipe[:24] + ".tar")


def ensure_cached_rootfs_archive(lock: Lock, rootfs_checksum: str, epoch: int, store: ObjectStore) -> Path:
    """Return the archive of the system, made now from the store's packages unless it is there already.

    Raises MachineError: mmdebstrap is not installed.
    Raises WorkFailed: it failed; its last lines are quoted. Nothing is left half-written.
    """
    path = cached_rootfs_archive_path(rootfs_checksum)
    if path.exists():
        return path
    require_mmdebstrap()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.stem}.{os.getpid()}.tar")
    try:
        with tempfile.TemporaryDirectory(prefix="rlbox-debs-") as folder:
            Path(folder).chmod(0o755)  # apt reads it as a user of its own
            _write_archive(lock.debs, lock.base, debian_architecture_or_processor(lock.platform), store, Path(folder))
            command = _plan_mmdebstrap_command(lock.base, lock.debs, epoch, folder, str(draft))
            env = {name: os.environ[name] for name in _PASSED_ENV if name in os.environ}
            run_command_or_raise(command, f"mmdebstrap failed for {lock.base}", base_env=env)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def require_mmdebstrap() -> None:
    if shutil.which("mmdebstrap") is None or not _HOOKS.is_dir():
        raise MachineError(
            _("mmdebstrap is not installed, and the target's base is bootstrapped from apt"),
            where="base.bootstrap",
            next_step=_("apt-get install mmdebstrap (or set base.image to an image by digest)"),
        )


def _write_archive(debs: Sequence[Deb], base: str, architecture: str, store: ObjectStore, folder: Path) -> None:
    controls = {}
    for deb in debs:
        path = folder / deb_path_basename(deb)
        store.link_object_replacing_path(deb.sha256, path)
        field = Command(argv=("dpkg-deb", "--field", str(path)))
        controls[deb.sha256] = run_command_or_raise(field, f"{path.name} is no Debian package").stdout
    index = render_apt_packages_index(debs, controls).encode()
    (folder / "Packages").write_bytes(index)
    release = _render_release_file(base.partition(":")[2], architecture, hashlib.sha256(index).hexdigest(), len(index))
    (folder / "Release").write_text(release)
    for path in (folder / "Packages", folder / "Release"):
        path.chmod(0o644)
