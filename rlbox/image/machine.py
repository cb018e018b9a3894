"""What a target expects of the machine that its containers run on, for `rlbox doctor` to compare with what is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlbox.engine.container import ContainerDefaults
from rlbox.fixes.render import RenderedFixes
from rlbox.target.target import Target


def format_rlbox_limits_env_value(container: ContainerDefaults) -> str:
    """Return limits and data disk of containers as JSON, the value of RLBOX_LIMITS.

    They are in the image's environment, and in no file: so that changing one moves no layer.
    """
    return json.dumps(container_limits_and_disk_json(container), sort_keys=True, separators=(",", ":"))


def container_limits_and_disk_json(container: ContainerDefaults) -> dict[str, Any]:
    limits = ("network", "shm_gib", "memory_gib", "cpus", "pids", "ulimits", "user")
    return {
        "run": {name: getattr(container, name) for name in limits},
        "disk": {"mount": container.mount, "need_gib": container.need_gib},
    }


def hardware_python_ports_json(target: Target, ports: Mapping[str, int]) -> dict[str, Any]:
    """Return what the image's manifest of fixes says of the machine, as JSON types."""
    return {
        "hardware": target.hardware.model_dump(mode="json"),
        "python": target.python.version,
        "ports": dict(sorted(ports.items())),
    }


def doctor_requirements_json(target: Target, container: ContainerDefaults, ports: Mapping[str, int]) -> dict[str, Any]:
    return {
        **hardware_python_ports_json(target, ports),
        **container_limits_and_disk_json(container),
        "env": dict(target.env),
    }


def build_container_defaults(target: Target, rendered_fixes: RenderedFixes) -> ContainerDefaults:
    """Return how containers of a target are started: what its spec says, never below what its fixes need."""
    run = target.run
    limits = {**rendered_fixes.ulimits, **run.ulimits}
    floors = {
        "shm_gib": max(run.shm_gib, rendered_fixes.shm_gib),
        "ulimits": {name: limit for name, limit in sorted(limits.items()) if limit},
        "cap_add": tuple(sorted(run.cap_add)),
        "devices": {path: use for path, use in sorted(run.devices.items()) if use},
        "gpus": target.hardware.gpus or (-1 if target.hardware.gpu else 0),
        "gpu": target.hardware.gpu,
        "arch": target.hardware.arch,
        "gpu_grade": target.hardware.grade,
        "allow_outside_access": run.open,
    }
    disk = target.disk.model_dump(exclude={"archive"})  # no container sees it
    return ContainerDefaults(**{**run.model_dump(exclude={"open"}), **disk, **floors})
