"""Probe what applying a target needs to know: files, the environment, apt packages, what was laid before."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name

from rlbox.errors import MachineError, RlboxError, SpecError
from rlbox.i18n import _
from rlbox.provision.desired import DesiredState
from rlbox.provision.layout import Layout
from rlbox.provision.plan import MISSING, InstallRecord, MachineState, PathState
from rlbox.system.command import run_command
from rlbox.system.files import write_atomic
from rlbox.system.process_table import read_text_or_empty
from rlbox.values import VENV, Command

FINGERPRINT_FILE = "rlbox-lock.txt"
"""File in the environment's folder that says what it was synced to; there is none while a sync goes on."""
_TEXT_BYTES = 1 << 16
_ELF = b"\x7fELF"


def probe_machine(desired: DesiredState, apt_unavailable_reason: str) -> MachineState:
    layout = desired.layout
    record = read_install_record(layout)
    venv = Path(layout.add_prefix(VENV))
    stamp = read_text_or_empty(venv / FINGERPRINT_FILE)
    known = [*(record.laid if record else ()), *(part.install_path for part in desired.parts)]
    texts = {row.path for row in desired.files if row.rlbox_lines}
    paths = dict.fromkeys([*(row.path for row in desired.files), *known])
    ours = bool(stamp or (record and record.environment))
    return MachineState(
        paths={path: probe_path(Path(path), include_text=path in texts) for path in paths},
        record=record,
        venv_fingerprint=stamp,
        venv_packages=_list_venv_packages(venv, desired.python),
        is_incomplete_venv=ours and not stamp and os.path.lexists(venv),
        is_foreign_venv=not ours and os.path.lexists(venv) and not (venv.is_dir() and not any(venv.iterdir())),
        installed_apt_packages=list_installed_apt_packages_or_empty(desired.apt_packages),
        apt_unavailable_reason=_why_no_apt(layout) or apt_unavailable_reason,
    )


def probe_path(path: Path, *, include_text: bool = False) -> PathState:
    """Return what is at a path, never following a link."""
    try:
        facts = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    uid, gid = facts.st_uid, facts.st_gid
    if stat.S_ISLNK(facts.st_mode):
        return PathState(kind="link", to=os.readlink(path), uid=uid, gid=gid, program=_is_program(path))
    if stat.S_ISDIR(facts.st_mode):
        return PathState(kind="folder", uid=uid, gid=gid)
    if not stat.S_ISREG(facts.st_mode):
        return PathState(kind="other", uid=uid, gid=gid)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MachineError(_("cannot be read: {strerror}").format(strerror=error.strerror), where=str(path)) from error
    return PathState(
        kind="file",
        sha256=hashlib.sha256(data).hexdigest(),
        mode=f"{stat.S_IMODE(facts.st_mode):04o}",
        text=data.decode("utf-8", "surrogateescape") if include_text and len(data) <= _TEXT_BYTES else None,
        uid=uid,
        gid=gid,
        program=data.startswith(_ELF),
    )


def _is_program(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False


def _list_venv_packages(venv: Path, python: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in venv.glob(f"lib/python{python}/site-packages/*.dist-info"):
        name, __, version = path.name.removesuffix(".dist-info").rpartition("-")
        found[canonicalize_name(name)] = version
    return found


def read_install_record(layout: Layout) -> InstallRecord | None:
    """Return what was laid here before; `MachineError` where that cannot be read: nothing can be laid back then."""
    path = Path(layout.record_path)
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise MachineError(
            _("cannot read the installed files: {strerror}").format(strerror=error.strerror), where=str(path)
        ) from error
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(InstallRecord).validate_json(data)
    except ValidationError as error:
        raise MachineError(
            _("the record of the installed files is corrupt, or from another rlbox version"),
            where=str(path),
            next_step=_("move it away, and apply again: your files are in the folder backup next to it"),
        ) from error


def write_install_record(layout: Layout, record: InstallRecord) -> None:
    write_atomic(Path(layout.record_path), json.dumps(dataclasses.asdict(record), indent=1, ensure_ascii=True) + "\n")


def find_nearest_existing_dir(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def require_writable_prefix_and_not_in_image(layout: Layout) -> None:
    folder = find_nearest_existing_dir(Path(layout.rlbox_dir))
    if not os.access(folder, os.W_OK):
        if not layout.prefix:
            raise SpecError(
                _("only root can lay a target at its own paths"),
                next_step=_("name a folder of yours with --prefix DIR, or run it as root"),
            )
        raise MachineError(
            _("the place cannot be written"), where=str(folder), next_step=_("name another with --prefix DIR")
        )
    if (
        not Path(layout.record_path).exists()
        and Path(layout.rlbox_dir, "share/lock.json").exists()
        and not layout.prefix
    ):
        raise MachineError(
            _("this machine is a container of an image that rlbox made: it is at its lock"),
            where=layout.rlbox_dir,
            next_step="rlbox doctor",
        )


def list_installed_apt_packages_or_empty(only_names: Iterable[str] = ()) -> frozenset[str]:
    """Return which of the apt packages are installed, all that are when none is named; none without dpkg."""
    words = ("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\\n", *only_names)
    try:
        lines = run_command(Command(argv=words, timeout_s=60)).stdout.splitlines()
    except RlboxError:
        return frozenset()
    return frozenset(line.partition(" ")[2] for line in lines if line.startswith("installed "))


def _why_no_apt(layout: Layout) -> str:
    """Return why apt packages cannot be installed; empty when they can."""
    if layout.prefix:
        return "they are part of the operating system, which --prefix leaves alone"
    if os.geteuid() != 0:
        return "only root can install them"
    return "" if shutil.which("apt-get") else "this operating system has no apt-get"
