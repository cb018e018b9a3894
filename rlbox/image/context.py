"""The build context: what is in it, its digest, and the folder that is handed to the engine."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlbox import __version__
from rlbox.app import list_rlbox_base_requirements
from rlbox.config.project import PACKAGE, SHIPPED, Project
from rlbox.errors import MachineError, SpecError
from rlbox.i18n import _
from rlbox.image.plan import BUILD_LABEL, LOCK_LABEL, SPEC_LABEL, ImagePlan, layer_dir_relative_to_wheels
from rlbox.system.files import compute_file_sha256, hardlink_or_make_readonly_copy, write_atomic
from rlbox.system.network_settings import find_env_or_pip_ca_bundle_or_empty

_FIXED_S = 315_532_800  # 1980-01-01: the earliest that every archive format can hold
_MARK = "wheels/README"
_MARK_TEXT = "What this machine holds already stands here, a folder a layer; a build fetches the rest.\n"
_LINKED = ("debs/", "git/", "http/", "rootfs.tar", "wheels/")
_NOT_SHIPPED = ("__pycache__", "_shipped")
# Where files come from is a matter of the place: of the sources profiles an image has the machine's own settings alone.
_PROFILES, _PROFILE = "artifacts/profiles/", "direct.toml"
_LIB, _OTHER = "files/opt/rlbox/lib/rlbox/", "other/opt/rlbox/lib/"
_OTHER_LIB = f"{_OTHER}rlbox/"
_NAMES = ("__main__.py", "version.py")  # how rlbox is started by hand, and what it calls itself
HASHED_PACKAGES = (
    "i18n", "config", "system", "secrets", "ssh", "engine", "sandbox", "job", "logs", "diagnose", "gate", "hang",
    "record", "doctor", "supervise", "evaluation",
)  # fmt: skip
"""Packages that decide an image: a container runs nothing of the others to carry out, check or explain a run."""
_NOT_INSIDE = ("doctor/gpu_choice.py", "doctor/host.py", "i18n/locale/")
BAKED_CA_PATH = "files/opt/rlbox/share/ca.crt"
COMPLETE_MARKER = "complete"
"""File that says in a layer's folder of wheels that nothing else is needed."""


def list_hashed_context_entries(plan: ImagePlan) -> dict[str, str | Path]:
    """Return what decides the image: path in the build context to its text, or to the file it is copied from.

    The bytes that the lock names are not among them, since their checksums are; nor are those of
    `list_unhashed_rlbox_files`.
    """
    entries: dict[str, str | Path] = dict(plan.context_files)
    entries |= {f"{_LIB}{name}": path for name, path in _own_files(PACKAGE).items() if is_hashed_rlbox_file(name)}
    return entries | ({BAKED_CA_PATH: Path(_ca_bundle())} if plan.bake_ca else {})


def list_unhashed_rlbox_files() -> dict[str, str | Path]:
    """Return the rest of rlbox: it is in every image, for whoever types `rlbox` there, and decides none.

    With it go the targets, jobs and templates of the wheel: on a rented machine a run in place begins with them.
    """
    others: dict[str, str | Path] = {
        f"{_OTHER_LIB}{name}": path for name, path in _own_files(PACKAGE).items() if not is_hashed_rlbox_file(name)
    }
    others[f"{_OTHER}rlbox-{__version__}.dist-info/METADATA"] = _render_metadata()
    shipped = Project(folder=PACKAGE).roots[-1]
    return others | {
        f"{_OTHER_LIB}_shipped/{name}/{path}": shipped / name / path
        for name in SHIPPED
        for path in _files_of(shipped / name)
    }


def _list_rlbox_wheel_files() -> dict[str, Path]:
    shipped = Project(folder=PACKAGE).roots[-1]
    entries = {f"rlbox/{name}": PACKAGE / name for name in _files_of(PACKAGE)}
    return entries | {
        f"rlbox/_shipped/{name}/{path}": shipped / name / path for name in SHIPPED for path in _files_of(shipped / name)
    }


def _render_metadata(*fields: str) -> str:
    needs = [f"Requires-Dist: {line}" for line in list_rlbox_base_requirements()]
    return "\n".join(["Metadata-Version: 2.1", "Name: rlbox", f"Version: {__version__}", *fields, *needs, ""])


def is_hashed_rlbox_file(path_in_package: str) -> bool:
    package, below, __ = path_in_package.partition("/")
    if below:
        return package in HASHED_PACKAGES and not path_in_package.startswith(_NOT_INSIDE)
    return package.endswith(".py") and package not in _NAMES


def _ca_bundle() -> str:
    if path := find_env_or_pip_ca_bundle_or_empty():
        return path
    raise MachineError(
        _("the target keeps the site's CA bundle in its image, and this machine names none"),
        where="build.bake_ca",
        next_step=_("name it with RLBOX_CA_BUNDLE"),
    )


def list_locked_context_entries(
    plan: ImagePlan,
    rootfs: Path | None,
    file_by_path_below_wheels: Mapping[str, Path],
    file_by_context_path: Mapping[str, Path],
    *,
    mark_wheels_complete: bool,
) -> dict[str, str | Path]:
    """Return the rest of the context: bytes that the lock names, as far as this machine holds them.

    `rootfs`: The bootstrapped operating system; None for a base that is an image.
    `file_by_path_below_wheels`: Path below `wheels/` to the file.
    `file_by_context_path`: Git trees and single files: path in the context to the file.
    `mark_wheels_complete`: Whether `file_by_path_below_wheels` are all that the image needs, so that no step looks
      elsewhere.
    """
    entries: dict[str, str | Path] = {_MARK: _MARK_TEXT}
    for folder in ("uv", "runtime", *map(layer_dir_relative_to_wheels, plan.layers)):
        entries[f"wheels/{folder}/{COMPLETE_MARKER if mark_wheels_complete else 'README'}"] = _MARK_TEXT
    entries |= {f"wheels/{name}": path for name, path in file_by_path_below_wheels.items()}
    if not plan.rootfs_checksum:
        entries["debs/README"] = _MARK_TEXT
    return {**entries, **file_by_context_path, **({"rootfs.tar": rootfs} if rootfs else {})}


@functools.cache
def _own_files(package: Path) -> Mapping[str, Path]:
    return {
        name: package / name
        for name in _files_of(package)
        if not name.startswith(_PROFILES) or name == _PROFILES + _PROFILE
    }


def _files_of(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _NOT_SHIPPED)
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(".pyc"):  # an editor's own files begin with a dot
                yield Path(folder, name).relative_to(root).as_posix()


def sync_build_context(entries: Mapping[str, str | Path], directory: Path) -> None:
    """Make `directory` hold exactly `entries`; files that are right already keep their time stamps.

    Files of `wheels/` and the operating system are hard links where the file system allows it; they are never written
    to. Modes of the others do not depend on the umask.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _remove_others(directory, set(entries))
    for name in sorted(entries):
        source, path = entries[name], directory / name
        _make_folders(directory, path.parent)
        if isinstance(source, Path):
            _bring(source, path, linked=name.startswith(_LINKED))
        elif not path.is_file() or path.read_bytes() != source.encode():
            write_atomic(path, source)
        else:
            path.chmod(0o644)
    for path in sorted((directory / "lock").rglob("*"), reverse=True):  # copied into the image as they stand
        os.utime(path, (_FIXED_S, _FIXED_S))


def require_replaceable_context_dir(directory: Path) -> None:
    """Refuse a folder that `sync_build_context` would empty of something that it did not write.

    Raises SpecError: `directory` is not a directory, or holds something and is no build context.
    """
    if not directory.exists() or (directory / _MARK).is_file():
        return
    if not directory.is_dir() or any(directory.iterdir()):
        raise SpecError(
            _("rlbox did not write this build context, and writing one would remove its files"),
            where=str(directory),
            next_step=_("name an empty or a new folder"),
        )


def _make_folders(folder: Path, path: Path) -> None:
    if path != folder and not path.is_dir():
        _make_folders(folder, path.parent)
        path.mkdir()
        path.chmod(0o755)


def _bring(source: Path, path: Path, *, linked: bool) -> None:
    facts = source.stat()
    mode = 0o755 if facts.st_mode & 0o100 else 0o644
    if path.exists():
        there = path.stat()
        if os.path.samestat(there, facts):
            return
        # Files of the store have one time stamp: of those only the inode tells one from another.
        if not linked and (there.st_size, there.st_mtime_ns) == (facts.st_size, facts.st_mtime_ns):
            path.chmod(mode)
            return
        path.unlink()
    if linked:
        hardlink_or_make_readonly_copy(source, path)
        return
    shutil.copyfile(source, path)
    path.chmod(mode)
    os.utime(path, ns=(facts.st_mtime_ns, facts.st_mtime_ns))


def _remove_others(folder: Path, wanted: set[str]) -> None:
    for here, folders, names in os.walk(folder, topdown=False):
        for path in (Path(here, name) for name in (*names, *folders)):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.is_symlink() or path.relative_to(folder).as_posix() not in wanted:
                path.unlink()


def compute_build_digest(text_or_file_by_name: Mapping[str, str | Path], epoch: int) -> str:
    total = hashlib.sha256(f"epoch={epoch}\n".encode())
    for name in sorted(text_or_file_by_name):
        source = text_or_file_by_name[name]
        digest = (
            compute_file_sha256(source) if isinstance(source, Path) else hashlib.sha256(source.encode()).hexdigest()
        )
        mark = " executable" if isinstance(source, Path) and source.stat().st_mode & 0o100 else ""
        total.update(f"{name}\0{digest}{mark}\n".encode())
    return total.hexdigest()


def find_image_outdated_reason(plan: ImagePlan, engine_image: Mapping[str, Any]) -> str | None:
    """Return why the engine's image is not what the plan and this machine hold now; None while it is."""
    config = engine_image.get("Config")
    labels = (config.get("Labels") or {}) if isinstance(config, dict) else {}
    if labels.get(BUILD_LABEL) == compute_build_digest(list_hashed_context_entries(plan), plan.epoch):
        return None
    if labels.get(SPEC_LABEL) != plan.spec_checksum:
        return _("its spec has changed")
    same_lock = labels.get(LOCK_LABEL) == plan.lock_checksum
    return _("rlbox or its fixes have changed") if same_lock else _("its lock has changed")


_INFO = f"rlbox-{__version__}.dist-info"
_PYTHON = ">=3.10"
_TIME = (1980, 1, 1, 0, 0, 0)  # the same files give the same bytes


def write_rlbox_wheel(directory: Path) -> Path:
    """Write the wheel into `directory` and return its path; a checkout and an installed package give the same file."""
    path = directory / f"rlbox-{__version__}-py3-none-any.whl"
    files = {
        name: (source.read_bytes(), source.stat().st_mode & 0o100) for name, source in _list_rlbox_wheel_files().items()
    }
    info = {
        "METADATA": _render_metadata(f"Requires-Python: {_PYTHON}"),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: rlbox\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "[console_scripts]\nrlbox = rlbox.cli:main\n",
    }
    files |= {f"{_INFO}/{name}": (text.encode(), 0) for name, text in info.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, executable) in sorted(files.items()):
            archive.writestr(_member(name, executable), data)
        record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, (data, __) in sorted(files.items()))
        archive.writestr(_member(f"{_INFO}/RECORD", 0), f"{record}{_INFO}/RECORD,,\n")
    return path


def _member(name: str, executable: int) -> zipfile.ZipInfo:
    row = zipfile.ZipInfo(name, _TIME)
    row.compress_type = zipfile.ZIP_DEFLATED
    row.external_attr = (0o100755 if executable else 0o100644) << 16
    return row


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
