"""Who this process is among all others, also after a restart of the machine: host, boot, user."""

from __future__ import annotations

import os
import pwd
import socket
from dataclasses import dataclass
from pathlib import Path

from rlbox.system.process_table import probe_process
from rlbox.values import LOCK_IN_IMAGE

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FIRST = 1


@dataclass(frozen=True, kw_only=True)
class BootIdentity:
    """What tells two lives of a machine apart.

    `boot_id` changes when the kernel starts; `init_start_ticks` (clock ticks since boot when process 1 started) also
    when only the container is started anew that rlbox runs in.
    """

    host: str
    boot_id: str
    init_start_ticks: int


def read_boot_identity() -> BootIdentity:
    first = probe_process(_FIRST)
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return BootIdentity(host=socket.gethostname(), boot_id=boot, init_start_ticks=first.start_ticks if first else 0)


def get_user_name_or_uid() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def is_in_rlbox_image() -> bool:
    return Path(LOCK_IN_IMAGE).is_file()


def format_uid_gid() -> str:
    return f"{os.getuid()}:{os.getgid()}"
