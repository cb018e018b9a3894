"""The heavy parts of an applied target: the Python environment, apt packages, git trees and files, source patches."""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from uv import find_uv_bin

from rlbox.amounts import decimal_size_text
from rlbox.artifacts.object_store import ObjectStore
from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.provision.desired import DesiredState, PartToInstall
from rlbox.provision.files import convert_disk_errors, move_original_aside_or_remove
from rlbox.provision.layout import Layout
from rlbox.provision.plan import BackupPath, format_venv_fingerprint
from rlbox.provision.probe import FINGERPRINT_FILE, list_installed_apt_packages
from rlbox.system.command import check_command, run_command
from rlbox.system.files import get_free_bytes, write_atomic
from rlbox.values import VENV, Command

_BASE = "zz-rlbox-base.pth"
"""File of an environment that names the folders of an adopted base; the last that Python reads."""
_NVIDIA = "nvidia"
"""Folder in which wheels bring CUDA, where compilers and fixes look for it."""
_SYNC_S = 7200.0
_APT_S = 1800.0
# A shell of an applied machine has these, and they are about later installs, not about this one.
_NO_CONSTRAINTS = {"UV_CONSTRAINT": "", "PIP_CONSTRAINT": "", "VIRTUAL_ENV": "", "PYTHONPATH": "", "PYTHONHOME": ""}


@dataclass(frozen=True, kw_only=True)
class PackageSource:
    """Where Python packages come from.

    `uv_env` are uv's settings, `wheel_dirs` folders with local wheels. `store_files` maps file names to the store's
    objects: all of them when it is `is_offline`, and nothing else is asked then, else those that no index has.
    """

    uv_env: Mapping[str, str] = field(default_factory=dict)
    wheel_dirs: tuple[str, ...] = ()
    store_files: Mapping[str, Path] = field(default_factory=dict)
    is_offline: bool = False


def sync_environment(desired: DesiredState, source: PackageSource, backup_path: BackupPath, *, recreate: bool) -> None:
    """Make the environment of exactly the locked packages, verified by their hashes.

    While that goes on it has no stamp: one that was killed is made anew.

    Raises
    ------
    WorkFailed
        uv cannot make it, or has a package from nowhere; its words are quoted.
    NodeError
        The disk is full.
    """
    layout = desired.layout
    venv, stamp = Path(layout.map_path(VENV)), Path(layout.map_path(VENV), FINGERPRINT_FILE)
    if recreate or not stamp.exists():
        move_original_aside_or_remove(venv, backup_path)
        _make_folder(layout, venv)
    stamp.unlink(missing_ok=True)
    _run_uv(desired, source, venv)
    _stand_on(desired, venv)
    write_atomic(stamp, format_venv_fingerprint(desired))


def _stand_on(desired: DesiredState, venv: Path) -> None:
    """Have the environment find the packages of the machine's interpreter behind its own, and their CUDA where it is.

    The folders are added as `site` does, so that what is installed there as a link is found too.
    """
    site = venv / f"lib/python{desired.python}/site-packages"
    told, nvidia = site / _BASE, site / _NVIDIA
    if nvidia.is_symlink():
        nvidia.unlink()
    if not desired.base:
        told.unlink(missing_ok=True)
        return
    with convert_disk_errors(told):
        write_atomic(told, "".join(f"import site; site.addsitedir({folder!r})\n" for folder in desired.base.site_dirs))
        found = next((path for folder in desired.base.site_dirs if (path := Path(folder, _NVIDIA)).is_dir()), None)
        if found and not nvidia.exists():
            os.symlink(found, nvidia)


def _make_folder(layout: Layout, venv: Path) -> None:
    """Make the environment's folder; where another disk holds it, a link to a new one there."""
    with convert_disk_errors(venv):
        venv.parent.mkdir(parents=True, exist_ok=True)
        if layout.relocated_venv_dir:
            move_original_aside_or_remove(Path(layout.relocated_venv_dir), "")
            Path(layout.relocated_venv_dir).mkdir(parents=True)
            os.symlink(layout.relocated_venv_dir, venv)


def _run_uv(desired: DesiredState, supply: PackageSource, venv: Path) -> None:
    env = {**_NO_CONSTRAINTS, **supply.uv_env, "UV_NO_PROGRESS": "1"}
    if desired.layout.relocated_venv_dir and not os.environ.get("UV_CACHE_DIR"):
        env["UV_CACHE_DIR"] = str(
            Path(desired.layout.relocated_venv_dir).with_name("uv-cache")
        )  # files are links then, not copies
    offline: tuple[str, ...] = ("--offline",) if supply.is_offline else ()
    python = desired.interpreter or desired.python
    make = (find_uv_bin(), "venv", "--quiet", *offline, "--allow-existing", "--python", python, str(venv))
    next_step = (
        f"install Python {desired.python}, or name it with --python FILE; "
        "without --offline uv fetches it from a network"
    )
    room = f"; {decimal_size_text(get_free_bytes(venv))} are free there"
    what = f"uv cannot make an environment with Python {desired.python}"
    check_command(Command(argv=make, env=env, timeout_s=_SYNC_S), what, next_step)
    with _requirements(desired, supply) as (words, folder):
        sync = (find_uv_bin(), "pip", "sync", "--quiet", *offline, "--python", str(venv / "bin/python"))
        command = Command(argv=(*sync, "--require-hashes", *words), env=env, cwd=folder, timeout_s=_SYNC_S)
        check_command(command, f"uv cannot install the locked packages{room}")


@contextmanager
def _requirements(desired: DesiredState, supply: PackageSource) -> Iterator[tuple[list[str], str]]:
    """Write what uv is told, and show the store's files by their names, as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="rlbox-apply-") as folder, convert_disk_errors(Path(folder)):
        Path(folder, "requirements.txt").write_text(desired.requirements, "utf-8")
        words = ["--no-index"] if supply.is_offline else []
        if desired.build_constraints:
            Path(folder, "build.txt").write_text(desired.build_constraints, "utf-8")
            words += ["--build-constraint", "build.txt"]
        for name, path in supply.store_files.items():
            os.symlink(path, Path(folder, name))
        for place in [*([folder] if supply.store_files else []), *supply.wheel_dirs]:
            words += ["--find-links", place]
        yield [*words, "requirements.txt"], folder


AptErrorText = str
"""Why apt failed; empty when it did not."""


class AptResult(NamedTuple):
    new_packages: tuple[str, ...]
    error: AptErrorText


def download_apt_packages(names: Sequence[str]) -> AptErrorText:
    """Bring apt packages here from the machine's own sources, changing nothing else."""
    failed = ""
    for verb in (("--download-only", "install", *names), ("update",), ("--download-only", "install", *names)):
        failed = _apt(*verb)
        if not failed and "install" in verb:
            break
    return failed


def install_apt_packages(names: Sequence[str]) -> AptResult:
    """Install apt packages that are here; return what is new."""
    before = list_installed_apt_packages()
    failed = _apt("install", *names)
    return AptResult(tuple(sorted(list_installed_apt_packages() - before)), failed)


def remove_apt_packages(names: Sequence[str]) -> AptErrorText:
    """Remove apt packages that were installed for a target."""
    present = sorted(set(names) & list_installed_apt_packages(names))
    return _apt("remove", *present) if present else ""


def _apt(*words: str) -> AptErrorText:
    """Run apt-get without a question; return its last words when it fails, else nothing."""
    options = ("-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=1")
    argv = ("apt-get", "--quiet", "--yes", "--no-install-recommends", *options, *words)
    done = run_command(Command(argv=argv, env={"DEBIAN_FRONTEND": "noninteractive"}, timeout_s=_APT_S))
    return "" if done.ok else next((x for x in reversed(done.stderr.splitlines()) if x.strip()), "apt-get failed")


def install_git_or_http_part(part: PartToInstall, store: ObjectStore, backup_path: BackupPath) -> None:
    """Put a git tree or a file from the store in its place, beside it first."""
    path, source = Path(part.install_path), store.path(part.sha256)
    draft = path.with_name(f".{path.name}.rlbox")
    with convert_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        move_original_aside_or_remove(draft, "")
        if part.kind == "git":
            draft.mkdir()
            _unpack(source, draft)
        else:
            write_atomic(draft, source.read_bytes(), int(part.octal_file_mode, 8))
        move_original_aside_or_remove(path, backup_path)
        os.rename(draft, path)


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        if sys.version_info >= (3, 12) or hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="tar")
        else:  # rlbox's own archive, by its sha256
            tar.extractall(folder)  # noqa: S202


def apply_patches(desired: DesiredState, patcher_source_by_file_name: Mapping[str, str]) -> None:
    """Change the sources that the target's patches are about, by content.

    Parameters
    ----------
    patcher_source_by_file_name
        Text of the programs that an image is patched with, by file name.

    Raises
    ------
    WorkFailed
        A patch does not fit; nothing was written then.
    """
    with tempfile.TemporaryDirectory(prefix="rlbox-apply-") as folder, convert_disk_errors(Path(folder)):
        for name, text in {**patcher_source_by_file_name, "manifest.json": desired.patch_manifest}.items():
            Path(folder, name).write_text(text, "utf-8")
        words = (sys.executable, f"{folder}/apply_patches.py", f"{folder}/manifest.json")
        root = ("--root", desired.layout.prefix or "/")
        check_command(Command(argv=(*words, *root), timeout_s=600), "a source patch does not fit")


def require_disk_space(desired: DesiredState, venv_dir: Path) -> None:
    """Refuse a disk that has no room for the environment; what the wheels unpack to is known roughly."""
    free, need = get_free_bytes(venv_dir), desired.download_bytes * 2
    if free < need:
        raise NodeError(
            _("the disk is too full for the environment: {free} free, about {need} needed").format(
                free=decimal_size_text(free), need=decimal_size_text(need)
            ),
            where=str(venv_dir),
            next_step=_("free space, or name a folder of another disk with --prefix DIR"),
        )
