"""Where on this machine a target was, or would be, brought to its lock."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlbox.app import App
from rlbox.engine.data_disk import resolve_data_dir_outside_system_dirs
from rlbox.image.plan import ImagePlan
from rlbox.provision.layout import Layout, require_shell_safe_dir_or_empty
from rlbox.provision.probe import read_install_record
from rlbox.system.file_lock import hold_lock
from rlbox.system.files import cache_path, write_atomic
from rlbox.system.json_files import read_json_object_or_empty
from rlbox.values import LOCK_IN_IMAGE


def choose_apply_layout_from_options(image: ImagePlan, prefix_option: str | None, data_option: str | None) -> Layout:
    """Return where a target is to be applied: below `prefix_option`; None: the machine itself, where this is root."""
    disk = resolve_data_dir_outside_system_dirs(image.container.disk_host_dir, data_option)
    folder = require_shell_safe_dir_or_empty(str(disk), "--data")
    if prefix_option is None:
        prefix_option = "" if os.geteuid() == 0 else _get_default_prefix(image.target)
    return Layout(prefix=require_shell_safe_dir_or_empty(prefix_option.rstrip("/")), data_dir=folder)


def find_applied_or_default_layout(target: str, data_dir: Path) -> Layout:
    """Return where a target is, or would be, on this machine: as applied, as its own image, or in the cache."""
    data = require_shell_safe_dir_or_empty(str(data_dir), "--data")
    applied = read_json_object_or_empty(_pointer_file(target), follow_links=True).get("prefix")
    for prefix in (str(applied or _get_default_prefix(target)), ""):
        layout = Layout(prefix=prefix, data_dir=data)
        if (record := read_install_record(layout)) and record.target == target:
            return layout
    if read_install_record(Layout(data_dir=data)) is None and Path(LOCK_IN_IMAGE).exists():
        return Layout(data_dir=data)
    return Layout(prefix=_get_default_prefix(target), data_dir=data)


def _get_default_prefix(target: str) -> str:
    return require_shell_safe_dir_or_empty(str(cache_path("places", target)))


def save_layout_prefix_if_any(target: str, layout: Layout) -> None:
    if layout.prefix:
        write_atomic(_pointer_file(target), json.dumps({"prefix": layout.prefix}) + "\n")


def forget_layout_prefix_if_saved(target: str, layout: Layout) -> None:
    if read_json_object_or_empty(_pointer_file(target), follow_links=True).get("prefix") == layout.prefix:
        _pointer_file(target).unlink(missing_ok=True)


@contextmanager
def wait_and_hold_layout_lock_unless_dry_run(app: App, layout: Layout) -> Iterator[None]:
    if app.dry_run:  # it changes nothing, and waits for nobody
        yield
        return
    name = hashlib.sha256(layout.rlbox_dir.encode()).hexdigest()[:12]
    with hold_lock(cache_path("locks", f"place-{name}.lock"), f"place {layout.rlbox_dir}", on_wait=app.print_status):
        yield


def _pointer_file(target: str) -> Path:
    return cache_path("places", f"{target}.json")
