"""The image of a target as one value: rendered files, build context, build settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlbox.engine.container import CA_NAMES
from rlbox.engine.limits import ContainerDefaults
from rlbox.engine.reference import image_tag
from rlbox.target.torch import TORCH_WHEELS, TorchGroup, torch_groups
from rlbox.values import FIXES_IN_IMAGE, LOCK_IN_IMAGE

if TYPE_CHECKING:  # pydantic is slow to import, and a cached plan does not need it
    from rlbox.fixes.bake import Baked
    from rlbox.fixes.fix import Fix
    from rlbox.fixes.patches import PatchRow
    from rlbox.image.layers import Layer
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target

# Paths in the build context.
SCRIPTS = (
    "scripts/apply_patches.py",
    "scripts/unified_diff.py",
    "scripts/install.sh",
    "files/opt/rlbox/libexec/apply_patches.py",
    "files/opt/rlbox/libexec/unified_diff.py",
    "files/opt/rlbox/libexec/entrypoint.sh",
    "files/opt/rlbox/libexec/init.sh",
)
FIXES = "fixes"
"""Folder of the context whose files are those of the fixes, as the image has them."""
_BASE = "# Rendered by `rlbox render`: the first stages of every images/*/Dockerfile.\n\n"


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """Everything about an image that follows from its specs alone.

    `rendered` maps committed files to their text, relative to the project folder; `context` maps files of the
    build context to their text. `layers` are the Python layers, each with a file `requirements/<layer>.txt` in the
    context; `lock` says how the lock stands to the spec: `current`, `missing`, or why it is stale. `rootfs` is the
    checksum of what a bootstrapped operating system is made of, empty for a base that is an image.
    """

    target: str
    title: str
    tag: str
    rendered: Mapping[str, str]
    context: Mapping[str, str]
    lock: str
    lock_checksum: str
    spec_checksum: str
    rootfs: str
    layers: tuple[str, ...]
    torch_groups: tuple[TorchGroup, ...]
    python: str
    sources: str
    network: str
    epoch: int
    bake_ca: bool
    container: ContainerDefaults
    env: Mapping[str, str]
    inputs: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON types; `load_image_plan` is the way back."""
        return {**asdict(self), "context": dict(self.context)}


def load_image_plan(data: Mapping[str, Any]) -> ImagePlan:
    """Return the plan that `ImagePlan.as_json` wrote."""
    lists = {key: tuple(data[key]) for key in ("layers", "inputs")}
    groups = tuple(TorchGroup(packages=tuple(g["packages"]), channel=g["channel"]) for g in data["torch_groups"])
    container = ContainerDefaults(**{**data["container"], "cap_add": tuple(data["container"]["cap_add"])})
    return ImagePlan(**{**data, **lists, "torch_groups": groups, "container": container})


def plan_image(
    target: Target,
    lock: Lock | None,
    runtime: tuple[str, ...],
    templates: Sequence[Path],
    bytecode: Path | None,
    patches: Mapping[str, str] = MappingProxyType({}),
    fixes: Sequence[Fix] = (),
    ports: Mapping[str, int] = MappingProxyType({}),
) -> ImagePlan:
    """Return the plan of the target's image.

    Parameters
    ----------
    runtime
        rlbox's own requirements, part of what the lock was made from.
    templates, bytecode
        Folders of templates, the first wins; folder for compiled ones, or None.
    patches, fixes, ports
        The target's patches, file name to text; the catalogue; `JOB.PORT` of its shipped jobs to number, for `doctor`.
    """
    from rlbox.fixes.applies import stack_versions
    from rlbox.fixes.bake import bake_fixes
    from rlbox.fixes.patches import patch_rows
    from rlbox.image.layers import plan_layers
    from rlbox.image.templates import render
    from rlbox.target.lock import lock_state

    def text(name: str, **values: Any) -> str:
        return render(templates, name, values, bytecode)

    layers, versions = plan_layers(target, lock), stack_versions(target, lock)
    baked = bake_fixes(fixes, target, versions)
    container = container_defaults(target, baked)
    patching = patch_rows(baked.fixes, target, versions, patches)
    dockerfile = text("Dockerfile.j2", **_dockerfile_values(target, lock, layers, baked, patching))
    files = {path: text(f"scripts/{path.rpartition('/')[2]}") for path in SCRIPTS}
    files |= _patch_files(target, patching) | _fix_files(baked, target, versions, ports)
    return ImagePlan(
        target=target.name,
        title=target.title,
        tag=image_tag(target.name),
        rendered={
            **_forms(target, dockerfile, container, templates, bytecode),
            "Dockerfile.base": _BASE + text("base.j2"),
        },
        context={"Dockerfile": dockerfile, **files, **(_locked_files(lock, layers) if lock else {})},
        lock=lock_state(target, lock, runtime, patches),
        lock_checksum=lock.checksum() if lock else "",
        spec_checksum=spec_checksum(target),
        rootfs=rootfs_checksum(lock, target.build.epoch) if lock and target.base.bootstrap else "",
        layers=tuple(layer.name for layer in layers),
        torch_groups=torch_groups(target),
        python=target.python.version,
        sources=target.sources,
        network=target.build.network,
        epoch=target.build.epoch,
        bake_ca=target.build.bake_ca,
        env=dict(target.env),
        container=container,
    )


def _forms(
    target: Target, dockerfile: str, container: ContainerDefaults, templates: Sequence[Path], bytecode: Path | None
) -> dict[str, str]:
    """Return what is rendered of a target: its Dockerfile, and the other forms that its machines take."""
    from rlbox.image.forms.compose import committed_compose
    from rlbox.image.forms.onstart import committed_onstart

    found = {f"images/{target.name}/Dockerfile": dockerfile}
    found |= committed_compose(target, container, templates, bytecode)
    return found | committed_onstart(target, templates, bytecode)


def _patch_files(target: Target, patching: tuple[PatchRow, ...]) -> dict[str, str]:
    from rlbox.fixes.patches import MANIFEST, needs_patching, patch_manifest

    return {MANIFEST: patch_manifest(target.name, patching)} if needs_patching(patching) else {}


def _fix_files(baked: Baked, target: Target, versions: Mapping[str, str], ports: Mapping[str, int]) -> dict[str, str]:
    from rlbox.fixes.manifest import fix_manifest
    from rlbox.image.machine import machine_facts

    files = {f"{FIXES}{file.path}": file.text for file in baked.files}
    return files | {
        f"{FIXES}{FIXES_IN_IMAGE}": fix_manifest(baked.fixes, target, versions, machine_facts(target, ports))
    }


def container_defaults(target: Target, baked: Baked) -> ContainerDefaults:
    """Return how containers of a target are started: what its spec says, never below what its fixes need."""
    run = target.run
    limits = {**baked.ulimits, **run.ulimits}
    floors = {
        "shm_gib": max(run.shm_gib, baked.shm_gib),
        "pids": max(run.pids, baked.pids) if run.pids else 0,  # no limit of its own is above every floor
        "ulimits": {name: limit for name, limit in sorted(limits.items()) if limit},
        "cap_add": tuple(sorted({*baked.cap_add, *run.cap_add})),
        "gpus": target.hardware.gpus or (-1 if target.hardware.gpu else 0),
        **{name: getattr(target.hardware, name) for name in ("gpu", "arch", "grade")},
    }
    return ContainerDefaults(**{**run.model_dump(), **target.disk.model_dump(), **floors})


def _dockerfile_values(
    target: Target, lock: Lock | None, layers: Sequence[Layer], baked: Baked, patching: tuple[PatchRow, ...]
) -> dict[str, Any]:
    from rlbox.fixes.patches import needs_patching, patch_notes
    from rlbox.image.machine import container_limits

    parts = [tree.name for tree in target.git] + [file.name for file in target.http]
    return {
        "target": target,
        "layers": [
            {
                "name": layer.name,
                "channel": layer.channel,
                "alone": layer.name != layer.group,
                "title": _title(target, layer),
            }
            for layer in layers
        ],
        "patched": [*(layer.name for layer in layers), *parts] if needs_patching(patching) else [],
        "patch_notes": patch_notes(patching),
        "further": [*parts, *(["rlbox.patches"] if needs_patching(patching) else [])],
        "carried": {**dict.fromkeys(parts, "unlocked"), **(part_files(lock) if lock else {})},
        "torch_wheels": TORCH_WHEELS,
        "ca_names": CA_NAMES,
        "baked": baked,
        "limits": _compact(container_limits(container_defaults(target, baked))),
        "programs": sorted(file.path for file in baked.files if file.mode == "0755"),
        "lock": lock_folder(lock) if lock else "",
        "labels": image_labels(target, lock, baked, patching),
    }


def part_files(lock: Lock) -> dict[str, str]:
    """Return where the build context has the git trees and files of a lock, by name.

    The checksum is part of the path: objects of the store have one time stamp, and BuildKit takes a file of the same
    path, size and time stamp for the one that it has (source: tonistiigi/fsutil diff_containerd.go, `sameFile`).
    """
    trees = {tree.name: f"git/{tree.name}-{tree.sha256[:12]}.tar" for tree in lock.git}
    return trees | {file.name: f"http/{file.name}-{file.sha256[:12]}" for file in lock.http}


def lock_folder(lock: Lock) -> str:
    """Return the folder of the build context that holds the lock as the image has it.

    It is copied as it stands, with a fixed time stamp, so that a changed lock runs no step. Its name is the lock's:
    BuildKit takes files of one path, size and time stamp for the same.
    """
    return f"lock/{lock.checksum()[:12]}"


def image_labels(
    target: Target, lock: Lock | None, baked: Baked | None = None, patching: tuple[PatchRow, ...] = ()
) -> dict[str, str]:
    """Return the labels by which an image explains itself; none of them names a machine, a mirror or a moment."""
    ids = sorted(fix.id for fix in baked.fixes if fix.bakes) if baked else []
    return {
        "org.opencontainers.image.title": target.title,
        "rlbox.fixes": " ".join(ids),
        "rlbox.patches": " ".join(row.name for row in patching if not row.skip),
        "rlbox.lock": lock.checksum() if lock else "",
        "rlbox.spec": spec_checksum(target),
        "rlbox.target": target.name,
    }


def spec_checksum(target: Target) -> str:
    """Return the checksum of the completed spec, but for where files come from and how a machine is rented."""
    return _checksum(target.model_dump(mode="json", exclude={"sources", "vast"}))


def rootfs_checksum(lock: Lock, epoch: int) -> str:
    """Return the checksum of what a bootstrapped operating system is made of."""
    return _checksum([lock.base, epoch, sorted(deb.sha256 for deb in lock.debs)])


def _compact(value: Any) -> str:
    import json

    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _checksum(value: Any) -> str:
    import hashlib
    import json

    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _title(target: Target, layer: Layer) -> str:
    if layer.name == layer.group:
        roots = next(group.packages for group in target.stack if group.name == layer.group)
        return f"{layer.group}: {', '.join(roots)}"
    return f"{layer.group}: {', '.join(f'{package.name} {package.version}' for package in layer.packages)}"


def _locked_files(lock: Lock, layers: Sequence[Layer]) -> dict[str, str]:
    from rlbox.target.lock import requirements

    files = {f"requirements/{layer.name}.txt": requirements(layer.packages) for layer in layers}
    files["requirements/runtime.txt"] = lock.runtime.requirements()
    files["requirements/build.txt"] = lock.build.requirements()
    files[f"{lock_folder(lock)}{LOCK_IN_IMAGE}"] = lock.text()
    return files
