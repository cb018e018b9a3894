"""Which stack is here: that of the image or applied place around this process, or of an interpreter that is named."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.doctor.fix_checks import INSTALL_DIR_VARIABLE
from rlbox.doctor.requirements import Requirements, override_gpus, parse_requirements
from rlbox.engine.gpu_access import GPUS_VARIABLE
from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.system.json_files import read_json_object
from rlbox.values import OWN, VENV


@dataclass(frozen=True, kw_only=True)
class StackLocation:
    """The interpreter with the stack's packages, what its target requirements, and its lock (None: it has none)."""

    python: str
    requirements: Requirements
    lock: Path | None = None


def get_install_dir(environ: Mapping[str, str]) -> str:
    """Return the folder of what rlbox has for itself in an image, or laid in the place of this environment."""
    return environ.get(INSTALL_DIR_VARIABLE, OWN)


def get_venv_dir(own: str) -> str:
    """Return the stack's environment beside that folder."""
    return f"{own.removesuffix(OWN)}{VENV}"


def find_local_stack() -> StackLocation | None:
    """Return the stack of the image, or applied place, that this process is in; None when it is in none."""
    own = get_install_dir(os.environ)
    lock = Path(own, "share/lock.json")
    if not lock.is_file():
        return None
    requirements = override_gpus(
        parse_requirements(
            read_json_object(Path(own, "share/fixes.json"), follow_links=True),
            read_json_object(lock, follow_links=True),
        ),
        os.environ.get(GPUS_VARIABLE, ""),
    )
    return StackLocation(python=f"{get_venv_dir(own)}/bin/python", requirements=requirements, lock=lock)


def find_stack(python: str, next_step: str) -> StackLocation:
    """Return the stack of an interpreter that is named, or the one here.

    Raises
    ------
    NodeError
        No interpreter is named, and no stack is here; or the named one cannot be run.
    """
    if python:
        found = shutil.which(python)
        if found is None:
            raise NodeError(
                _("the interpreter cannot be run"), where=python, next_step=_("name another with --python FILE")
            )
        return StackLocation(python=os.path.abspath(found), requirements=Requirements())
    if here := find_local_stack():
        return here
    raise NodeError(
        _("no stack is here: neither an image of rlbox nor a machine it was applied to"), next_step=next_step
    )


def make_bytecode_directory(environ: Mapping[str, str], mount: str, lock: Path) -> str:
    """Return a folder of the data disk for what Python compiles, named after the lock; empty when there is none.

    The image holds no bytecode, and compiling takes longer than all else that the stack's programs do here.
    """
    if environ.get("PYTHONPYCACHEPREFIX"):
        return ""
    cache = Path(mount, "cache", "doctor")
    try:
        own = cache / hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
        own.mkdir(parents=True, exist_ok=True)
        for other in cache.iterdir():
            if other != own:
                shutil.rmtree(other, ignore_errors=True)
    except OSError:
        return ""
    return str(own)
