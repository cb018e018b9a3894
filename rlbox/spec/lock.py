"""The lock of a target: every Python package of the image with its version and sha256, by layer group."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlbox.errors import SpecError
from rlbox.spec.target import Target

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Package:
    """One distribution; `sha256` lists every file of that version that may be installed, sorted."""

    name: str
    version: str
    sha256: tuple[str, ...]
    marker: str = ""

    def requirement(self) -> str:
        """Return the line of a requirements file that pins it."""
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in self.sha256)
        return f"{self.name}=={self.version}{f' ; {self.marker}' if self.marker else ''}{hashes}\n"


@dataclass(frozen=True, kw_only=True)
class LockedGroup:
    """The packages that one layer adds to those below it, sorted by name."""

    name: str
    packages: tuple[Package, ...]

    def requirements(self) -> str:
        """Return the group as a requirements file."""
        return "".join(package.requirement() for package in self.packages)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A target's lock; `spec` is the checksum of what it was made from, `runtime` is rlbox's own environment."""

    target: str
    spec: str
    runtime: LockedGroup
    groups: tuple[LockedGroup, ...]

    def text(self) -> str:
        """Return the lock file: stable order, one package a line, so that a diff reads well."""
        head = {"schema": SCHEMA, "target": self.target, "spec": self.spec}
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        blocks = [
            f'    {{"name": {json.dumps(group.name)}, "packages": [\n{_rows(group)}\n    ]}}' for group in self.groups
        ]
        lines.append('  "runtime": [\n' + _rows(self.runtime) + "\n  ]")
        lines.append('  "groups": [\n' + ",\n".join(blocks) + "\n  ]")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _rows(group: LockedGroup) -> str:
    return ",\n".join(
        "      " + json.dumps({key: value for key, value in asdict(package).items() if value or key != "marker"})
        for package in group.packages
    )


def lock_checksum(target: Target, runtime: tuple[str, ...]) -> str:
    """Return the checksum of everything a lock is made from: interpreter, groups, and rlbox's own requirements."""
    made_from = {
        "python": target.python.model_dump(mode="json"),
        "stack": [group.model_dump(mode="json") for group in target.stack],
        "runtime": sorted(runtime),
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def load_lock(path: Path) -> Lock | None:
    """Return the lock in `path`, or None when there is none.

    Raises
    ------
    SpecError
        The file is torn, or of another schema.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise SpecError(
                f"{path}: schema {data['schema']}, this rlbox reads {SCHEMA}",
                next_step=f"rlbox lock {path.parent.name}",
            )
        return Lock(
            target=data["target"],
            spec=data["spec"],
            runtime=LockedGroup(name="runtime", packages=_packages(data["runtime"])),
            groups=tuple(LockedGroup(name=g["name"], packages=_packages(g["packages"])) for g in data["groups"]),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"{path}: not a lock file: {type(error).__name__}: {error}", next_step=f"rlbox lock {path.parent.name}"
        ) from error


def _packages(rows: list[Mapping[str, Any]]) -> tuple[Package, ...]:
    return tuple(Package(**{**row, "sha256": tuple(row["sha256"])}) for row in rows)
