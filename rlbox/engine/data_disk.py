"""Check the data disk and the devices of a target before a container starts."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

from rlbox.amounts import GIB, decimal_and_gib_size_text, decimal_size_text
from rlbox.app import App
from rlbox.engine.address import is_engine_on_unix_socket
from rlbox.engine.container import ContainerDefaults
from rlbox.errors import MachineError
from rlbox.i18n import _
from rlbox.system.files import free_bytes_or_0
from rlbox.system.identity import is_in_rlbox_image

_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr")
"""Folders of the root that are the system's, with all that is below them."""
_LENT = ("/dev/shm/", "/run/media/", "/run/user/", "/usr/local/")  # noqa: S108  (nothing is written there)
"""What below them is somebody's own: memory that is a disk, media of a desktop, what no package brought."""
_SHARED = ("/", "/home", "/var")
"""What holds folders of others, and is nobody's own."""


def resolve_data_dir_outside_system_dirs(default_unless_env: str, data_option: str | None) -> Path:
    """Return the data disk's directory on this host, without links: `--data`, `RLBOX_DATA`, or `default_unless_env`."""
    text = (os.environ.get("RLBOX_DATA") or default_unless_env) if data_option is None else data_option
    if not text:
        raise MachineError(
            _("no data disk is named"),
            where="disk.host",
            next_step=_("give --data DIR, or set RLBOX_DATA or disk.host"),
        )
    directory = _resolve_path(text)
    path, parts = str(directory), directory.parts
    if path in _SHARED or (len(parts) > 1 and parts[1] in _SYSTEM and not path.startswith(_LENT)):
        raise MachineError(
            _("this folder is the system's own, and no data disk"),
            where=path,
            next_step=_("name your own folder with --data DIR"),
        )
    return directory


def _resolve_path(path: str) -> Path:
    return Path(os.path.realpath(os.path.expanduser(path)))


def ensure_usable_data_dir_creating_default(
    app: App, directory: Path, defaults: ContainerDefaults, required_free_gib: float | None = None
) -> None:
    """Create a target's own data disk if it is missing, and refuse one that is not usable.

    One that somebody named is not made: it may be a slip, and the disk that was meant another.

    `required_free_gib`: None: what the target asks for.
    """
    with app.collecting_refusals_if_dry_run("data disk"):
        if would_create_default_data_dir(directory, defaults):
            _make(app, directory)
        elif not os.path.lexists(directory):
            step = _("mkdir -p {folder} (or mount it there), or name another with --data DIR")
            raise _refuse(directory, _("there is no such data disk"), step.format(folder=shlex.quote(str(directory))))
        elif not os.path.isdir(directory):
            raise _refuse(directory, _("the data disk is not a directory"), _("name another with --data DIR"))
        else:
            try:
                _require_writable(directory)
            except OSError as error:
                raise _refuse(
                    directory,
                    _("the data disk cannot be written: {strerror}").format(strerror=error.strerror),
                    _("remount it writable, free space, or name another with --data DIR"),
                ) from error
        need_gib = defaults.needed_disk_gib if required_free_gib is None else required_free_gib
        free_bytes = free_bytes_or_0(directory)
        if free_bytes < need_gib * GIB:
            what = _("the data disk is too full: {size} free, {asked_text} needed").format(
                size=decimal_size_text(free_bytes), asked_text=decimal_and_gib_size_text(need_gib)
            )
            raise _refuse(directory, what, _("free space, or name another with --data DIR"))


def would_create_default_data_dir(directory: Path, defaults: ContainerDefaults) -> bool:
    is_default = bool(defaults.disk_host_dir) and directory == _resolve_path(defaults.disk_host_dir)
    return defaults.creates_disk_dir and is_default and not os.path.lexists(directory)


def _make(app: App, directory: Path) -> None:
    try:
        if app.dry_run:
            _require_writable(next(parent for parent in directory.parents if parent.exists()))
            app.dry.steps_before.append(_("the data disk {folder} is made").format(folder=directory))
            return
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refuse(
            directory,
            _("the data disk cannot be made: {strerror}").format(strerror=error.strerror),
            _("make it, or name another with --data DIR"),
        ) from error


def _refuse(directory: Path, what: str, step: str) -> MachineError:
    return MachineError(what, where=str(directory), next_step=step)


def _require_writable(directory: Path) -> None:
    """Raise the `OSError` of a write into a folder, as far as that is known without one."""
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
    if not os.access(directory, os.W_OK | os.X_OK):
        code = errno.EROFS if os.statvfs(directory).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(code, os.strerror(code), str(directory))


def report_and_require_local_devices(app: App, defaults: ContainerDefaults) -> None:
    """Say which devices a container gets, and refuse one that this machine lacks; elsewhere the engine does."""
    if not defaults.devices:
        return
    here = is_engine_on_unix_socket() and not is_in_rlbox_image()
    if here and (missing := [path for path in defaults.devices if not os.path.exists(path)]):
        raise MachineError(
            _("this machine has no {missing}, which the target hands to its containers").format(missing=missing[0]),
            where=missing[0],
            next_step=_("load its driver, or take it out of [run.devices] of the target"),
        )
    app.print_status(_("devices: {devices}").format(devices=", ".join(sorted(defaults.devices))))
