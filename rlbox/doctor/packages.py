"""Files of the stack: the lock says which versions there must be, each RECORD which files."""

from __future__ import annotations

import csv
import hashlib
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Literal, NamedTuple

from packaging.utils import canonicalize_name

from rlbox.doctor.catalogue import make_finding
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding, listed
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.values import LOCK_IN_IMAGE

_MAX_PINS = 4  # how many packages a remedy puts back
# Files that the build writes with the image's own time stamp.
_STAMPED = ("/opt/rlbox/libexec/entrypoint.sh", LOCK_IN_IMAGE)
_HASHED_BYTES = 64 << 20  # a changed file of more is called changed by its time stamp alone


class FileDamage(NamedTuple):
    """A file that is not what it was; `description` says how, with numbers."""

    path: str
    kind: Literal["missing", "truncated", "changed"]
    description: str


def check_packages(venv: str, requirements: Requirements) -> Iterator[Finding]:
    site = f"{venv}/lib/python{requirements.python or '3'}/site-packages"
    target = requirements.target or "TARGET"
    if not os.path.isdir(site):
        yield make_finding("stack-missing", site=site, target=target)
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
            seen = listed([f"{damage.path} {damage.description}" for damage in shown])
            finding_id, where = f"file-{shown[0].kind}", damages[0].path
            yield make_finding("files-damaged", id=finding_id, seen=seen, where=where, package=name, target=target)
    wrong = {name: version for name, version in requirements.packages.items() if installed.get(name) != [version]}
    if wrong:
        texts = [
            _("{name} {there} (locked: {version})").format(
                name=name, there=" and ".join(sorted(installed.get(name, ()))) or _("is gone"), version=version
            )
            for name, version in sorted(wrong.items())
        ]
        pins = " ".join(f"{name}=={version}" for name, version in sorted(wrong.items())[:_MAX_PINS])
        finding_id = "package-overwritten" if wrong.keys() & installed.keys() else "package-missing"
        yield make_finding("packages-differ", id=finding_id, seen=listed(texts), where=site, pins=pins)


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
        yield FileDamage(path, "missing", _("is missing"))
        return
    is_library = path.endswith(".so") or ".so." in path
    if is_library and status.st_size != size:
        kind: Literal["truncated", "changed"] = "truncated" if status.st_size < size else "changed"
        description = _("has {st_size} bytes of {size}").format(st_size=status.st_size, size=size)
        yield FileDamage(path, kind, description)
        return
    # What has the image's own time was written by the build, a patch too.
    is_hashed = int(status.st_mtime) not in image_times and size <= _HASHED_BYTES and digest.startswith("sha256=")
    if is_hashed and _hash_file(path) != digest.removeprefix("sha256="):
        yield FileDamage(path, "changed", _("was changed after the image was built"))


def _hash_file(path: str) -> str:
    with open(path, "rb") as file:
        return urlsafe_b64encode(hashlib.sha256(file.read()).digest()).rstrip(b"=").decode()
