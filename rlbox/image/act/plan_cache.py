"""Remember an image's plan, so that an unchanged target needs neither its checker nor its templates.

The memory is keyed by what the plan was made from: rlbox's version and the size, time stamp and inode of every input.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from rlbox import __version__
from rlbox.files.act.folders import cache_folder, write_atomic
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.spec.project import Project


class _Later(Mapping[str, str]):
    """Texts that are taken out of their JSON when somebody asks: a context is large, and most verbs need none of it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def _texts(self) -> dict[str, str]:
        texts: dict[str, str] = json.loads(self._data)
        return texts

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def load_cached_plan(project: Project, name: str) -> ImagePlan | None:
    """Return the remembered plan of a target, or None when an input changed since or nothing is remembered."""
    try:
        head, _, context = _memory(project, name).read_bytes().partition(b"\n")
        data = json.loads(head)
        stamp = _stamp(project, name, data["plan"]["inputs"])
        if data["stamp"] != stamp or data["context_crc32"] != zlib.crc32(context):
            return None
        return load_image_plan({**data["plan"], "context": _Later(context)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember_plan(project: Project, plan: ImagePlan) -> None:
    """Remember `plan`, made from its `inputs`; a full or read-only cache folder is no error.

    The file is one line of JSON for the plan without its context, and one for the context.
    """
    data = plan.as_json()
    context = json.dumps(data.pop("context")).encode()
    stamp = _stamp(project, plan.target, plan.inputs)
    head = json.dumps({"stamp": stamp, "context_crc32": zlib.crc32(context), "plan": data}).encode()
    try:
        write_atomic(_memory(project, plan.target), head + b"\n" + context)
    except OSError:
        return


def _memory(project: Project, name: str) -> Path:
    """Return the file of a plan; the stamp in it tells two plans apart that have the same."""
    return cache_folder("plans", f"{zlib.crc32(os.fsencode(_owner(project, name))):08x}.json")


def _owner(project: Project, name: str) -> str:
    return "\0".join((*map(str, project.roots), name))


def _stamp(project: Project, name: str, inputs: Iterable[str]) -> list[str]:
    return [__version__, _owner(project, name), *(f"{path} {file_key(path)}" for path in inputs)]


def file_key(path: str) -> str:
    """Return what tells one state of a file from another without reading it; empty when it is missing."""
    try:
        facts = os.stat(path)
    except OSError:
        return ""
    return f"{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_mode}"
