"""The image of a target as one value: rendered files, build context, build settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from shlex import quote
from textwrap import wrap
from types import MappingProxyType
from typing import Any

from rlbox.app import list_rlbox_base_requirements
from rlbox.config.project import Project
from rlbox.engine.container import CA_VARIABLES, ContainerDefaults
from rlbox.errors import SpecError, get_main_docs_url
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.fix import Fix
from rlbox.fixes.patches import (
    ResolvedPatch,
    format_grouped_patch_summaries,
    has_patches_to_apply,
    render_patch_manifest_json,
    resolve_patches_with_skipped,
)
from rlbox.fixes.render import RenderedFixes, render_fix_check_manifest_json, render_fixes_or_raise_refusal
from rlbox.i18n import _
from rlbox.image.forms import render_compose_by_path_empty_if_no_docker, render_onstart_files_or_empty
from rlbox.image.names import project_image_tag
from rlbox.image.templates import quote_dockerfile, render_template
from rlbox.job.job import load_target_ports_by_job_dot_port
from rlbox.target.artifact import TORCH_WHEEL_INDEX_URL, TorchWheelGroup, list_pytorch_index_groups
from rlbox.target.lock import (
    Lock,
    Package,
    choose_lock_or_compile_command,
    explain_lock_fault,
    format_requirements,
    load_lock,
)
from rlbox.target.target import Target
from rlbox.values import FIXES_IN_IMAGE, LOCK_IN_IMAGE, PATCHES_IN_CONTEXT

BUILD_LABEL, SPEC_LABEL, LOCK_LABEL = "rlbox.build", "rlbox.spec", "rlbox.lock"
FORCED_LABEL = "rlbox.forced"
"""The contradiction of its stack that a build was forced to override; an image whose stack fits has no such label."""

# Paths in the build context.
_SCRIPTS = (
    "scripts/apply_patches.py",
    "scripts/unified_diff.py",
    "scripts/install.sh",
    "files/opt/rlbox/libexec/apply_patches.py",
    "files/opt/rlbox/libexec/unified_diff.py",
    "files/opt/rlbox/libexec/entrypoint.sh",
    "files/opt/rlbox/libexec/init.sh",
)
_FIXES, _PROGRAMS = "fixes", "programs"
"""Folders of the context with the files of the fixes, as the image has them; what can be executed lies apart."""
_BASE_HEAD = "# Rendered by `rlbox render`: the first stages of every images/*/Dockerfile.\n\n"
_PARTS_STAGE = "rlbox.parts"
"""Name of the build stage that lays git trees and single files."""
_MOUNT = "--mount=type=bind,from={0},source=/out,target=/in/{0}"
_WIDTH = 150  # of a line, where it can be broken


# Engines refuse an image of more than 127 layers (source: moby layer.MaxLayerDepth, 125 without the base); the base
# image, rlbox and the target's own files need the rest.
MAX_LAYERS = 90


@dataclass(frozen=True, kw_only=True)
class PythonLayer:
    """One Python layer; `packages` is empty without a lock."""

    name: str
    group: str
    packages: tuple[Package, ...]


@dataclass(frozen=True, kw_only=True)
class BuildStage:
    """A stage of the build: layers of a group that are installed together, each one large wheel or none of them."""

    name: str
    group: str
    layers: tuple[PythonLayer, ...]
    torch_channel: str = ""

    @property
    def has_large_wheels(self) -> bool:
        return self.name != self.group


def plan_python_layers(target: Target, lock: Lock | None) -> tuple[PythonLayer, ...]:
    """Return the image's Python layers, the least often changed group first.

    A wheel of `build.own_layer_mib` or more is a layer of its own, so that a change of its neighbours does not move it;
    when there are too many, only the largest are.
    """
    packages = {group.name: group.packages for group in (lock.groups if lock else ())}
    large = [p for group in packages.values() for p in group if p.size >= target.build.own_layer_mib << 20]
    most = max(0, MAX_LAYERS - len(target.stack))
    alone = {p.sha256 for p in sorted(large, key=lambda p: (-p.size, p.name))[:most]}
    layers = []
    for spec in target.stack:
        group = packages.get(spec.name, ())
        own = [package for package in group if package.sha256 in alone]
        layers += [PythonLayer(name=f"{spec.name}.{p.name.lower()}", group=spec.name, packages=(p,)) for p in own]
        rest = tuple(package for package in group if package.sha256 not in alone)
        if rest or not own:
            layers.append(PythonLayer(name=spec.name, group=spec.name, packages=rest))
    return tuple(layers)


def group_adjacent_layers_by_stage(layers: Iterable[PythonLayer]) -> tuple[BuildStage, ...]:
    stages = []
    for name, found in groupby(layers, key=lambda layer: stage_name_of_layer(layer.name)):
        together = tuple(found)
        group, packages = together[0].group, [package for layer in together for package in layer.packages]
        stages.append(
            BuildStage(name=name, group=group, layers=together, torch_channel=_find_torch_channel(group, packages))
        )
    return tuple(stages)


def stage_name_of_layer(layer_name: str) -> str:
    group, __, wheel = layer_name.partition(".")
    return f"{group}.large" if wheel else group


def layer_dir_relative_to_wheels(layer_name: str) -> str:
    return f"{stage_name_of_layer(layer_name)}/{layer_name}"


def map_git_http_names_to_context_paths(lock: Lock) -> dict[str, str]:
    """Return where the build context has the git trees and files of a lock, by name.

    The checksum is part of the path: objects of the store have one time stamp, and BuildKit takes a file of the same
    path, size and time stamp for the one that it has (source: tonistiigi/fsutil diff_containerd.go, `sameFile`).
    """
    trees = {tree.name: f"git/{tree.name}-{tree.sha256[:12]}.tar" for tree in lock.git}
    return trees | {file.name: f"http/{file.name}-{file.sha256[:12]}" for file in lock.http}


def _lock_dir_in_context(lock: Lock) -> str:
    """Return the folder of the build context that holds the lock as the image has it.

    It is copied as it stands, with a fixed time stamp, so that a changed lock runs no step. Its name is the lock's:
    BuildKit takes files of one path, size and time stamp for the same.
    """
    return f"lock/{lock.compute_json_sha256()[:12]}"


def _find_torch_channel(group: str, packages: Iterable[Package]) -> str:
    channels = sorted({p.source.partition("/")[2] for p in packages if p.source.startswith("torch-wheels/")})
    if len(channels) > 1:
        raise SpecError(
            _("stack.{group}: packages of two channels of the torch wheel index: {channels}").format(
                group=group, channels=", ".join(channels)
            )
        )
    return "".join(channels)


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """Everything about an image that follows from its specs alone.

    `rendered_files` maps committed files, relative to the project, to their text; `context_files` those of the build
    context. `layers` are the Python layers, each with a folder of its stage's below `wheels/` in the context;
    `lock_fault` is `missing`, or says why the lock is stale or incomplete; None for one that fits its spec.
    `tag` is its name in an engine, on which no image depends: `load_image_plan` gives it.
    `rootfs_checksum` is empty for a base that is an image.
    """

    target: str
    tag: str
    rendered_files: Mapping[str, str]
    context_files: Mapping[str, str]
    lock: Lock | None
    lock_fault: str | None
    lock_checksum: str
    spec_checksum: str
    rootfs_checksum: str
    layers: tuple[str, ...]
    torch_groups: tuple[TorchWheelGroup, ...]
    python: str
    sources_profile: str
    network: str
    epoch: int
    bake_ca: bool
    container: ContainerDefaults
    env: Mapping[str, str]

    def require_current_lock(self) -> Lock:
        if self.lock is None or self.lock_fault:
            raise SpecError(
                _("the lock of target {target} is {lock}").format(target=self.target, lock=self.lock_fault),
                where=f"images/{self.target}/lock.json",
                next_step=choose_lock_or_compile_command(self.target, self.lock_fault or ""),
            )
        return self.lock


def plan_image_without_tag(
    target: Target,
    lock: Lock | None,
    rlbox_requirements: tuple[str, ...],
    template_dirs: Sequence[Path],
    patch_texts: Mapping[str, str] = MappingProxyType({}),
    fixes: Sequence[Fix] = (),
    number_by_job_port: Mapping[str, int] = MappingProxyType({}),
) -> ImagePlan:
    """Return the plan of the target's image.

    `rlbox_requirements`: rlbox's own requirements, part of what the lock was made from.
    `template_dirs`: Folders of templates, the first wins.
    `patch_texts`, `fixes`, `number_by_job_port`: The target's patches, file name to text; the catalogue; `JOB.PORT`
      of its shipped jobs to number, for `doctor`.
    """

    def text(name: str, **values: Any) -> str:
        return render_template(template_dirs, name, values)

    stages = group_adjacent_layers_by_stage(plan_python_layers(target, lock))
    versions = map_packages_to_version_or_empty(target, lock)
    baked = render_fixes_or_raise_refusal(fixes, target, versions)
    container = build_container_defaults(target, baked)
    patches = resolve_patches_with_skipped(baked.fixes, target, versions, patch_texts)
    dockerfile = text("Dockerfile.j2", **build_dockerfile_values(target, lock, stages, baked, patches))
    files = {path: text(f"scripts/{path.rpartition('/')[2]}") for path in _SCRIPTS}
    files |= {f"{_PROGRAMS if file.mode == '0755' else _FIXES}{file.path}": file.text for file in baked.files}
    files[f"{_FIXES}{FIXES_IN_IMAGE}"] = render_fix_check_manifest_json(
        baked.fixes, target, versions, hardware_python_ports_json(target, number_by_job_port)
    )
    if has_patches_to_apply(patches):
        layer_paths = _list_stage_layer_paths(target, stages)
        files[PATCHES_IN_CONTEXT] = render_patch_manifest_json(target.name, patches, layer_paths)
    return ImagePlan(
        target=target.name,
        torch_groups=list_pytorch_index_groups(target),
        python=target.python.version,
        sources_profile=target.sources,
        network=target.build.network,
        epoch=target.build.epoch,
        bake_ca=target.build.bake_ca,
        env=dict(target.env),
        tag="",
        rendered_files={
            f"images/{target.name}/Dockerfile": dockerfile,
            **render_compose_by_path_empty_if_no_docker(target, container, template_dirs),
            **render_onstart_files_or_empty(target, template_dirs),
            "Dockerfile.base": _BASE_HEAD + text("base.j2", interpreter="/usr/bin/python3"),
        },
        context_files={"Dockerfile": dockerfile, **files, **(_list_lock_files(lock, stages) if lock else {})},
        lock=lock,
        lock_fault=explain_lock_fault(target, lock, rlbox_requirements, patch_texts),
        lock_checksum=lock.compute_json_sha256() if lock else "",
        spec_checksum=compute_image_spec_checksum(target),
        rootfs_checksum=hash_rootfs_inputs(lock, target.build.epoch) if lock and target.base.bootstrap else "",
        layers=tuple(layer.name for stage in stages for layer in stage.layers),
        container=container,
    )


def _list_lock_files(lock: Lock, stages: Sequence[BuildStage]) -> dict[str, str]:
    files = {
        f"wheels/{layer_dir_relative_to_wheels(layer.name)}/requirements.txt": format_requirements(layer.packages)
        for stage in stages
        for layer in stage.layers
    }
    files["wheels/runtime/requirements.txt"] = format_requirements(lock.runtime.packages)
    files["wheels/build.txt"] = format_requirements(lock.build.packages)
    files[f"{_lock_dir_in_context(lock)}{LOCK_IN_IMAGE}"] = lock.to_json_text()
    return files


def build_dockerfile_values(
    target: Target,
    lock: Lock | None,
    stages: Sequence[BuildStage],
    rendered_fixes: RenderedFixes,
    patches: tuple[ResolvedPatch, ...],
) -> dict[str, Any]:
    parts, patched = _list_parts(target), has_patches_to_apply(patches)
    below = [*(stage.name for stage in stages), *([_PARTS_STAGE] if parts else [])]
    paths = [path.split("/") for path in _list_stage_layer_paths(target, stages)]
    own_env = [f"{name}={quote_dockerfile(value)}" for name, value in sorted(target.env.items())]
    return {
        "target": target,
        "interpreter": target.python.interpreter,
        "stages": [_describe_stage(target, stage, stages[:number]) for number, stage in enumerate(stages)],
        "layers": [{"stage": stage, "name": name} for stage, name in paths],
        "patched": _wrap(" ".join(_MOUNT.format(name) for name in below)) if patched else [],
        "patch_notes": format_grouped_patch_summaries(patches),
        "carried": {**dict.fromkeys(parts, "unlocked"), **(map_git_http_names_to_context_paths(lock) if lock else {})},
        "ca_names": CA_VARIABLES,
        "envs": [
            {
                "title": f"{block.id}: {block.title}",
                "line": _format_env_instruction(
                    [
                        *(f"{name}={quote_dockerfile(value)}" for name, value in sorted(block.env.items())),
                        # a search path: our folders, then what it holds already
                        *(
                            f"{name}={quote_dockerfile(':'.join(folders))}${{{name}:+:${name}}}"
                            for name, folders in sorted(block.path.items())
                        ),
                    ]
                ),
            }
            for block in rendered_fixes.env_blocks
        ],
        "own_env": _format_env_instruction(own_env),
        "limits": format_rlbox_limits_env_value(build_container_defaults(target, rendered_fixes)),
        "programs": any(file.mode == "0755" for file in rendered_fixes.files),
        "links": [*_link_commands(rendered_fixes.link_target_by_path), "sh /opt/tools/install.sh settle"],
        "lock": _lock_dir_in_context(lock) if lock else "",
        "labels": build_image_labels(target, lock, rendered_fixes, patches),
    }


def _list_stage_layer_paths(target: Target, stages: Iterable[BuildStage]) -> list[str]:
    stack = [f"{stage.name}/{layer.name}" for stage in stages for layer in stage.layers]
    return [*stack, *(f"{_PARTS_STAGE}/{part}" for part in _list_parts(target))]


def _list_parts(target: Target) -> list[str]:
    return [tree.name for tree in target.git] + [file.name for file in target.http]


def _format_env_instruction(assignments: Sequence[str]) -> str:
    line = " ".join(["ENV", *assignments])
    return line if len(line) <= _WIDTH else "ENV " + " \\\n    ".join(assignments)


def _wrap(text: str) -> list[str]:
    return wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _link_commands(links: Mapping[str, str]) -> list[str]:
    if not links:
        return []
    found = {f"/out{path}": to for path, to in sorted(links.items())}
    folders = sorted({quote(path.rpartition("/")[0]) for path in found})
    return [f"mkdir -p {' '.join(folders)}", *(f"ln -sfn {quote(to)} {quote(path)}" for path, to in found.items())]


def _describe_stage(target: Target, stage: BuildStage, before: Sequence[BuildStage]) -> dict[str, Any]:
    """Return a stage as the template writes it; its `index` is a channel of torch's wheels, or empty."""
    begins = not before or before[-1].group != stage.group
    title = []
    if begins:
        roots = next(group.packages for group in target.stack if group.name == stage.group)
        title += _wrap(f"{stage.group}: {', '.join(roots)}")
    if stage.has_large_wheels:
        wheels = [f"{package.name}=={package.version}" for layer in stage.layers for package in layer.packages]
        title += _wrap(f"large: {', '.join(wheels)}")
    return {
        "name": stage.name,
        "large": stage.has_large_wheels,
        "begins": begins,
        "title": title,
        "index": f"{TORCH_WHEEL_INDEX_URL}/{stage.torch_channel}" if stage.torch_channel else "",
    }


def build_image_labels(
    target: Target,
    lock: Lock | None,
    rendered_fixes: RenderedFixes | None = None,
    patches: tuple[ResolvedPatch, ...] = (),
) -> dict[str, str]:
    ids = sorted(fix.id for fix in rendered_fixes.fixes if fix.has_bake_entries) if rendered_fixes else []
    return {
        **_build_oci_labels(target, lock),
        "rlbox.fixes": " ".join(ids),
        "rlbox.patches": " ".join(row.name for row in patches if not row.skip_reason),
        LOCK_LABEL: lock.compute_json_sha256() if lock else "",
        SPEC_LABEL: compute_image_spec_checksum(target),
        "rlbox.target": target.name,
    }


def _build_oci_labels(target: Target, lock: Lock | None) -> dict[str, str]:
    """Return labels of the OCI image specification that spec and lock file alone decide.

    Without `revision`, `source` and `licenses`: they depend on the checkout, or nobody knows them of the content.
    """
    created = datetime.fromtimestamp(target.build.epoch, timezone.utc)
    labels = {
        "title": target.title,
        "description": f"Image of the rlbox target {target.name}, built from a lock file",
        "documentation": get_main_docs_url("images"),
        "version": lock.compute_json_sha256()[:12] if lock else "",
        "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if target.base.image:
        name, __, digest = target.base.image.partition("@")
        labels |= {"base.name": name, "base.digest": digest}
    return {f"org.opencontainers.image.{key}": value for key, value in labels.items()}


def compute_image_spec_checksum(target: Target) -> str:
    """Return the checksum of the completed spec, but for where files come from and how a machine is rented."""
    fields = target.model_dump(
        mode="json", exclude={"sources": True, "hub": True, "vast": True, "cluster": True, "disk": {"archive"}}
    )
    for group in fields["stack"]:  # a key that came later: what says nothing by it is the spec it was
        if not group["compile"]:
            del group["compile"]
    return _checksum(fields)


def hash_rootfs_inputs(lock: Lock, epoch: int) -> str:
    return _checksum([lock.base, epoch, sorted(deb.sha256 for deb in lock.debs)])


def _checksum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def format_rlbox_limits_env_value(container: ContainerDefaults) -> str:
    """Return limits and data disk of containers as JSON, the value of RLBOX_LIMITS.

    They are in the image's environment, and in no file: so that changing one moves no layer.
    """
    return json.dumps(container_limits_and_disk_json(container), sort_keys=True, separators=(",", ":"))


def container_limits_and_disk_json(container: ContainerDefaults) -> dict[str, Any]:
    limits = ("network", "shm_gib", "memory_gib", "cpus", "pids", "ulimits", "user")
    return {
        "run": {name: getattr(container, name) for name in limits},
        "disk": {"mount": container.disk_mount, "need_gib": container.needed_disk_gib},
    }


def hardware_python_ports_json(target: Target, ports: Mapping[str, int]) -> dict[str, Any]:
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
    disk: dict[str, Any] = {"disk_mount": target.disk.mount, "disk_host_dir": target.disk.host}
    disk |= {"creates_disk_dir": target.disk.create, "needed_disk_gib": target.disk.need_gib}
    return ContainerDefaults(**{**run.model_dump(exclude={"open"}), **disk, **floors})


def load_image_plan(project: Project, target_name: str) -> ImagePlan:
    """Return the plan of a target's image with its name in an engine; errors are those of `load_target`."""
    plan = ImagePlanInputs.load(project, target_name).build_plan_without_tag()
    return replace(plan, tag=project_image_tag(project, target_name))


@dataclass(frozen=True, kw_only=True)
class ImagePlanInputs:
    """What the plan of an image is made of.

    `patch_texts` are the target's own, file name to text; `job_ports` those of rlbox's own jobs on the target,
    `JOB.PORT` to number: the user's own jobs would tie the image to them.
    """

    target: Target
    lock: Lock | None
    fixes: tuple[Fix, ...]
    patch_texts: Mapping[str, str]
    job_ports: Mapping[str, int]
    template_dirs: tuple[Path, ...]

    @classmethod
    def load(cls, project: Project, target_name: str) -> ImagePlanInputs:
        loaded = load_target_with_fix_apt_packages(project, target_name)
        patches = project.require_patch_files(target_name, loaded.target.patches_folder_file_names)
        return cls(
            target=loaded.target,
            lock=load_lock(project.own_or_shipped_lock_file(target_name)),
            fixes=loaded.all_fixes,
            patch_texts={path.name: path.read_text("utf-8") for path in patches},
            job_ports=load_target_ports_by_job_dot_port(Project(folder=project.roots[-1]), target_name),
            template_dirs=tuple(project.list_existing_template_dirs_except_packs()),
        )

    def build_plan_without_tag(self) -> ImagePlan:
        return plan_image_without_tag(
            self.target,
            self.lock,
            list_rlbox_base_requirements(),
            self.template_dirs,
            patch_texts=self.patch_texts,
            fixes=self.fixes,
            number_by_job_port=self.job_ports,
        )
