"""What a machine is judged by: the facts of a target as its image carries them, or as the spec says them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.utils import canonicalize_name

from rlbox.foreign import parse_digits, parse_untrusted_json

_PARTS = {
    "run": ("network", "shm_gib", "memory_gib", "pids"),
    "hardware": ("pid_limit", "nodes", "gpu", "gpus", "arch", "grade"),
}
"""Where the facts of an image's manifest have what a target needs."""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a target needs of a machine; 0 and empty say that nothing is known, and floors of doctor's own hold.

    `packages` maps canonical names of the locked stack to versions; `ports` names of jobs' ports to numbers. `env` is
    what the target bakes: a name that sounds like a token and has an empty value is one that the user must give.
    """

    target: str = ""
    network: str = ""
    shm_gib: float = 0.0
    memory_gib: float = 0.0
    pids: int = 0
    pid_limit: int = 0
    data_mount: str = "/data"
    disk_gib: float = 1.0
    nodes: int = 1
    gpu: str = ""
    gpus: int = 0
    arch: str = ""
    grade: str = ""
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    def has_any_package(self, *names: str) -> bool:
        return any(name in self.packages for name in names)

    @property
    def wants_gpu(self) -> bool:
        return bool(self.gpu) or self.gpus > 0


def override_limits_if_valid_json(manifest: Mapping[str, Any], limits_json: str) -> Mapping[str, Any]:
    """Return the manifest with the limits that the image's environment names (JSON; torn or empty: none)."""
    try:
        limits = _table(parse_untrusted_json(limits_json))
    except ValueError:
        return manifest
    return {**manifest, "facts": {**_table(manifest.get("facts")), **limits}}


def override_gpus_unless_all(requirements: Requirements, count_all_or_none: str) -> Requirements:
    """Return the requirements with the GPUs of a container: a number, `all` or `none`; empty changes nothing."""
    if count_all_or_none == "none":
        return replace(requirements, gpu="", gpus=0)
    number = parse_digits(count_all_or_none)
    return requirements if number is None else replace(requirements, gpus=number)


def parse_or_default(manifest: Mapping[str, Any], lock: Mapping[str, Any]) -> Requirements:
    """Return the requirements that an image's manifest and lock state; both may lack any part, or be empty."""
    facts = _table(manifest.get("facts"))
    disk = _table(facts.get("disk"))
    stated = {"data_mount": disk.get("mount"), "disk_gib": disk.get("need_gib")}
    stated |= {name: _table(facts.get(part)).get(name) for part, names in _PARTS.items() for name in names}
    groups = lock.get("groups")
    rows = [row for group in groups if isinstance(group, dict) for row in group["packages"]] if groups else []
    return Requirements(
        target=str(manifest.get("target") or lock.get("target") or ""),
        **{name: value for name, value in stated.items() if value is not None},
        python=str(lock.get("python") or facts.get("python") or ""),
        env={str(name): str(value) for name, value in _table(facts.get("env")).items()},
        ports={str(name): int(number) for name, number in _table(facts.get("ports")).items()},
        packages={canonicalize_name(str(row["name"])): str(row["version"]) for row in rows},
    )


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
