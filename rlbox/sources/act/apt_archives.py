"""The apt archives that this machine itself uses."""

from __future__ import annotations

import re
import shutil

from rlbox.machine.act.command import run_command
from rlbox.values import Command


def machine_archives() -> dict[str, str]:
    """Return the archives of this machine's apt sources: the last part of their address to the address.

    A machine without apt, or with another distribution's sources, has none of Debian's: then mmdebstrap is asked for
    its own default. Empty when nobody knows.
    """
    found = _own_archives()
    return found if "debian" in found else {**_mmdebstrap_archives(), **found}


def _own_archives() -> dict[str, str]:
    if shutil.which("apt-get") is None:
        return {}
    told = run_command(Command(argv=("apt-get", "indextargets", "--format", "$(REPO_URI)"), timeout_s=60))
    urls = [line.strip().rstrip("/") for line in told.stdout.splitlines() if line.strip()]
    return {url.rpartition("/")[2]: url for url in reversed(urls)}


def _mmdebstrap_archives() -> dict[str, str]:
    """Return the archives of the source list that mmdebstrap would write; its first hook ends it after that."""
    if shutil.which("mmdebstrap") is None:
        return {}
    show = '--setup-hook=cat "$1/etc/apt/sources.list"; exit 1'
    asked = Command(argv=("mmdebstrap", "--quiet", "--variant=custom", show, "bookworm", "/dev/null"), timeout_s=60)
    told = run_command(asked)  # 1.3 lets a hook write to stdout, 0.8 (Ubuntu 22.04) to stderr
    urls = re.findall(r"^deb (?:\[[^\]]*\] )?(\S+) ", told.stdout + told.stderr, re.MULTILINE)
    return {url.rstrip("/").rpartition("/")[2]: url.rstrip("/") for url in reversed(urls)}
