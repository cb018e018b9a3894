"""What a run in place is started with: what a shell says of the machine and of its user, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from rlbox.engine.container import CA_VARIABLES

# Of the user and the machine; what a platform tells of an instance, a runtime of its GPUs, and settings of rlbox.
INHERITED_NAME = re.compile(
    r"(?:HOME|LOGNAME|NO_COLOR|SHELL|TERM|TMPDIR|TZ|USER|CUDA_DEVICE_ORDER|CUDA_VISIBLE_DEVICES|HOSTNAME|NETRC"
    rf"|PUBLIC_IPADDR|{'|'.join(CA_VARIABLES)}|(?i:all|http|https|no)_(?i:proxy))$|AutoDL|NVIDIA_|RLBOX_|VAST_|XDG_"
)
_SYSTEM = ("/usr/", "/bin", "/sbin")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def keep_allowed_variables_and_system_path(
    shell_env: Mapping[str, str], driver_dirs: Collection[str] = ()
) -> dict[str, str]:
    """Return what a run in place keeps of a shell's environment, as a container has nothing of it.

    Folders of PATH stay where they are the system's own: those of conda, or of another virtual environment, would
    bring their compilers and programs.

    `driver_dirs`: Folders of LD_LIBRARY_PATH that hold the GPU driver's library; all others are left out.
    """
    kept = {name: text for name, text in shell_env.items() if INHERITED_NAME.match(name)}
    folders = [folder for folder in shell_env.get("PATH", "").split(":") if folder.startswith(_SYSTEM)]
    found = [folder for folder in shell_env.get("LD_LIBRARY_PATH", "").split(":") if folder and folder in driver_dirs]
    libraries = {"LD_LIBRARY_PATH": ":".join(found)} if found else {}
    path = ":".join(dict.fromkeys([*folders, *SYSTEM_PATH.split(":")]))
    return {**kept, "PATH": path, **libraries}
