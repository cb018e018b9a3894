"""What a run in place is started with: what a shell says of the machine and of its user, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypedDict

from rlbox.engine.container import CA_VARIABLES

_OF_THE_USER = ("HOME", "LOGNAME", "NO_COLOR", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_OF_THE_MACHINE = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "HOSTNAME", "NETRC", "PUBLIC_IPADDR")
_PROXIES = ("all_proxy", "http_proxy", "https_proxy", "no_proxy")
_KINDS = ("AutoDL", "NVIDIA_", "RLBOX_", "VAST_", "XDG_")
"""Beginnings of names: what a platform tells of an instance, a runtime of its GPUs, and settings of rlbox."""
_SYSTEM = ("/usr/", "/bin", "/sbin")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def filter_environment(shell: Mapping[str, str], driver_dirs: Collection[str] = ()) -> dict[str, str]:
    """Return what a run in place keeps of a shell's environment, as a container has nothing of it.

    Folders of PATH stay where they are the system's own: those of conda, or of another virtual environment, would
    bring their compilers and programs.

    `driver_dirs`: Folders of LD_LIBRARY_PATH that hold the GPU driver's library; all others are left out.
    """
    kept = {name: text for name, text in shell.items() if _is_inherited(name)}
    folders = [folder for folder in shell.get("PATH", "").split(":") if folder.startswith(_SYSTEM)]
    found = [folder for folder in shell.get("LD_LIBRARY_PATH", "").split(":") if folder and folder in driver_dirs]
    libraries = {"LD_LIBRARY_PATH": ":".join(found)} if found else {}
    path = ":".join(dict.fromkeys([*folders, *SYSTEM_PATH.split(":")]))
    return {**kept, "PATH": path, **libraries}


class InheritedEnvironment(TypedDict):
    """Names of variables, beginnings of names (`kinds`), and the PATH that a program of a node gets."""

    names: list[str]
    kinds: list[str]
    path: str


def get_inherited_names_prefixes_path() -> InheritedEnvironment:
    """Return what `filter_environment` keeps, for a node, whose own program has none of this."""
    proxies = [name for low in _PROXIES for name in (low, low.upper())]
    names = [*_OF_THE_USER, *_OF_THE_MACHINE, *CA_VARIABLES, *proxies]
    return {"names": names, "kinds": list(_KINDS), "path": SYSTEM_PATH}


def _is_inherited(name: str) -> bool:
    named = name in (*_OF_THE_USER, *_OF_THE_MACHINE, *CA_VARIABLES) or name.lower() in _PROXIES
    return named or name.startswith(_KINDS)
