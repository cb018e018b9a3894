"""Remember an image's plan, so that an unchanged target needs neither its checker nor its templates.

The memory is keyed by what the plan was made from: rlbox's version and the size, time stamp and inode of every input.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from rlbox import __version__
from rlbox.act.folders import cache_folder, write_atomic
from rlbox.plan.image import ImagePlan, load_image_plan
from rlbox.spec.project import Project


def load_cached_plan(project: Project, name: str) -> ImagePlan | None:
    """Return the remembered plan of a target, or None when an input changed since or nothing is remembered."""
    try:
        data = json.loads(_memory(project, name).read_bytes())
        if data["stamp"] != _stamp(data["plan"]["inputs"]):
            return None
        return load_image_plan(data["plan"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember_plan(project: Project, plan: ImagePlan) -> None:
    """Remember `plan`, made from its `inputs`; a full or read-only cache folder is no error."""
    text = json.dumps({"stamp": _stamp(plan.inputs), "plan": plan.as_json()})
    try:
        write_atomic(_memory(project, plan.target), text)
    except OSError:
        return


def _memory(project: Project, name: str) -> Path:
    key = hashlib.sha256("\0".join((*map(str, project.roots), name)).encode()).hexdigest()[:20]
    return cache_folder("plans", f"{key}.json")


def _stamp(inputs: Iterable[str]) -> list[str]:
    return [__version__, *(f"{path} {file_key(path)}" for path in inputs)]


def file_key(path: str) -> str:
    """Return what tells one state of a file from another without reading it; empty when it is missing."""
    try:
        facts = os.stat(path)
    except OSError:
        return ""
    return f"{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_mode}"
