"""The image of a target as one value: rendered files, build context, build settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.plan.sources import TORCH_WHEELS, TorchGroup

if TYPE_CHECKING:  # pydantic is slow to import, and a cached plan does not need it
    from rlbox.spec.lock import Lock
    from rlbox.spec.target import Target

SCRIPTS = ("entrypoint.sh", "install.sh")


@dataclass(frozen=True, kw_only=True)
class ContainerDefaults:
    """Limits and data disk of containers started from the image; GiB, 0 means no limit."""

    network: str
    shm_gib: float
    memory_gib: float
    cpus: float
    pids: int
    user: str
    mount: str
    host: str
    create: bool
    need_gib: float


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """Everything about an image that follows from its specs alone.

    `rendered` maps committed files to their text, relative to the project folder; `context` maps files of the
    build context to their text. `groups` are the layers of the stack, each with a file `requirements/<group>.txt` in
    the context; `lock` says how the lock stands to the spec: `current`, `stale` or `missing`.
    """

    target: str
    title: str
    tag: str
    rendered: Mapping[str, str]
    context: Mapping[str, str]
    lock: str
    bootstrap: str
    packages: tuple[str, ...]
    groups: tuple[str, ...]
    torch_groups: tuple[TorchGroup, ...]
    python: str
    network: str
    epoch: int
    container: ContainerDefaults
    env: Mapping[str, str]
    inputs: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON types; `load_image_plan` is the way back."""
        return {**asdict(self), "context": dict(self.context)}


def load_image_plan(data: Mapping[str, Any]) -> ImagePlan:
    """Return the plan that `ImagePlan.as_json` wrote."""
    lists = {key: tuple(data[key]) for key in ("packages", "groups", "inputs")}
    groups = tuple(TorchGroup(packages=tuple(g["packages"]), channel=g["channel"]) for g in data["torch_groups"])
    container = ContainerDefaults(**data["container"])
    return ImagePlan(**{**data, **lists, "torch_groups": groups, "container": container})


def plan_image(
    target: Target, lock: Lock | None, runtime: tuple[str, ...], templates: Sequence[Path], bytecode: Path | None
) -> ImagePlan:
    """Return the plan of the target's image.

    Parameters
    ----------
    runtime
        rlbox's own requirements, part of what the lock was made from.
    templates
        Folders of templates, the first wins.
    bytecode
        Folder for compiled templates, or None.
    """
    from rlbox.plan.render import render
    from rlbox.spec.lock import lock_checksum

    def text(name: str, **values: Any) -> str:
        return render(templates, name, values, bytecode)

    dockerfile = text("Dockerfile.j2", target=target, torch_wheels=TORCH_WHEELS, spec_checksum=spec_checksum(target))
    base = "# Rendered by `rlbox render`: the first stage of every images/*/Dockerfile.\n\n" + text("base.j2")
    scripts = {f"scripts/{name}": text(f"scripts/{name}") for name in SCRIPTS}
    state = "missing" if lock is None else "current" if lock.spec == lock_checksum(target, runtime) else "stale"
    run, disk = target.run, target.disk
    return ImagePlan(
        target=target.name,
        title=target.title,
        tag=f"rlbox/{target.name}:latest",
        rendered={f"images/{target.name}/Dockerfile": dockerfile, "Dockerfile.base": base},
        context={"Dockerfile": dockerfile, **scripts, **(_requirements(lock) if lock else {})},
        lock=state,
        bootstrap=target.base.bootstrap,
        packages=tuple(sorted(target.base.packages)),
        groups=tuple(group.name for group in target.stack),
        torch_groups=torch_groups(target),
        python=target.python.version,
        network=target.build.network,
        epoch=target.build.epoch,
        env=dict(target.env),
        container=ContainerDefaults(**run.model_dump(), **disk.model_dump()),
    )


def torch_groups(target: Target) -> tuple[TorchGroup, ...]:
    """Return the groups of the target that come from the torch wheel index."""
    found = (group for group in target.stack if group.source == "torch-wheels")
    return tuple(TorchGroup(packages=group.packages, channel=group.channel) for group in found)


def spec_checksum(target: Target) -> str:
    """Return the checksum of the completed spec."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(target.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def _requirements(lock: Lock) -> dict[str, str]:
    files = {f"requirements/{group.name}.txt": group.requirements() for group in lock.groups}
    files["requirements/runtime.txt"] = lock.runtime.requirements()
    files["requirements/uv.txt"] = "".join(p.requirement() for p in lock.runtime.packages if p.name == "uv")
    return files
