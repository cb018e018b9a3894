"""Files of the stack: the lock says which versions there must be, each RECORD which files."""

from __future__ import annotations

import csv
import hashlib
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from packaging.utils import canonicalize_name

from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding, listed
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.values import LOCK_IN_IMAGE

STACK_PROGRAM_FINDINGS = ("torch-*", "ray-*", "extension-*", "jit-*", "gpu-*")
# Checks of fixes that look at the packages themselves.
_FIX_CHECKS = (
    "numpy2-abi", "cuda-*", "flashinfer-*", "hf-old-switches", "libnuma-missing", "vllm-*", "path-in-every-shell",
)  # fmt: skip
_MAX_PINS = 4  # how many packages a remedy puts back
# Files that the build writes with the image's own time stamp.
_STAMPED = ("/opt/rlbox/libexec/entrypoint.sh", LOCK_IN_IMAGE)
_HASHED_BYTES = 64 << 20  # a changed file of more is called changed by its time stamp alone


@dataclass(frozen=True, kw_only=True)
class FileDamage:
    """A file that is not what it was; `description` says how, with numbers."""

    path: str
    kind: Literal["missing", "truncated", "changed"]
    description: str


def check_packages(venv: str, requirements: Requirements) -> Iterator[Finding]:
    site = f"{venv}/lib/python{requirements.python or '3'}/site-packages"
    rebuild = _("start a new container; if it is in the image: rlbox build --rebuild {target}").format(
        target=requirements.target or "TARGET"
    )
    if not os.path.isdir(site):
        yield Finding(
            id="stack-missing", title=_("the stack's environment is not there"),
            seen=_("{site} is missing").format(site=site), where=site, remedy=rebuild, breaks=("*",),
        )  # fmt: skip
        return
    stamped = (*_STAMPED, f"{venv}/pyvenv.cfg")
    image_times = {int(os.stat(path).st_mtime) for path in stamped if os.path.exists(path)}
    installed: dict[str, list[str]] = {}
    for directory in sorted(name for name in os.listdir(site) if name.endswith(".dist-info")):
        written_name, __, version = directory.removesuffix(".dist-info").rpartition("-")
        name = canonicalize_name(written_name)
        installed.setdefault(name, []).append(version)
        damages = list(_find_damages(site, directory, image_times))
        truncated = [damage for damage in damages if damage.kind == "truncated"]
        if shown := truncated or damages:
            yield Finding(
                id=f"file-{shown[0].kind}", title=_("files of {package} are damaged").format(package=name),
                seen=listed([f"{damage.path} {damage.description}" for damage in shown]), where=damages[0].path,
                remedy=rebuild, breaks=(*STACK_PROGRAM_FINDINGS, *_FIX_CHECKS),
            )  # fmt: skip
    yield from _check_versions(installed, requirements, site)


def _check_versions(installed: dict[str, list[str]], requirements: Requirements, site: str) -> Iterator[Finding]:
    locked = sorted(requirements.packages.items())
    wrong = [(name, version) for name, version in locked if installed.get(name) != [version]]
    if not wrong:
        return
    texts = [
        _("{name} {there} (locked: {version})").format(
            name=name, there=" and ".join(sorted(installed.get(name, ()))) or _("is gone"), version=version
        )
        for name, version in wrong
    ]
    pins = " ".join(f"{name}=={version}" for name, version in wrong[:_MAX_PINS])
    yield Finding(
        id="package-overwritten" if any(name in installed for name, __ in wrong) else "package-missing",
        title=_("packages of the stack do not match the lock"), seen=listed(texts), where=site,
        remedy=_("start a new container, or put back: uv pip install --no-deps {pins}").format(pins=pins),
        breaks=(*STACK_PROGRAM_FINDINGS, *_FIX_CHECKS, "file-*"), covers=("numpy2-abi", "python-constraints"),
    )  # fmt: skip


def _find_damages(site: str, directory: str, image_times: set[int]) -> Iterator[FileDamage]:
    """Yield the files of a distribution that are not as its RECORD has them; bytes are read of few."""
    try:
        with open(f"{site}/{directory}/RECORD", newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if len(row) == 3]
    except OSError:
        return
    for name, digest, size_text in rows:
        if (size := whole_number(size_text)) is not None:
            yield from _compare_file(os.path.normpath(f"{site}/{name}"), digest, size, image_times)


def _compare_file(path: str, digest: str, size: int, image_times: set[int]) -> Iterator[FileDamage]:
    try:
        status = os.stat(path)
    except OSError:
        yield FileDamage(path=path, kind="missing", description=_("is missing"))
        return
    is_library = path.endswith(".so") or ".so." in path
    if is_library and status.st_size != size:
        kind: Literal["truncated", "changed"] = "truncated" if status.st_size < size else "changed"
        description = _("has {st_size} bytes of {size}").format(st_size=status.st_size, size=size)
        yield FileDamage(path=path, kind=kind, description=description)
        return
    # What has the image's own time was written by the build, a patch too.
    is_hashed = int(status.st_mtime) not in image_times and size <= _HASHED_BYTES and digest.startswith("sha256=")
    if is_hashed and _hash_file(path) != digest.removeprefix("sha256="):
        yield FileDamage(path=path, kind="changed", description=_("was changed after the image was built"))


def _hash_file(path: str) -> str:
    with open(path, "rb") as file:
        return urlsafe_b64encode(hashlib.sha256(file.read()).digest()).rstrip(b"=").decode()
