"""The image of a target as one value: rendered files, build context, build settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlbox.app import own_requirements
from rlbox.config.project import Project
from rlbox.engine.container import ContainerDefaults
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.image.labels import compute_image_spec_checksum, compute_rootfs_checksum
from rlbox.image.layers import lock_dir_in_context
from rlbox.image.machine import build_container_defaults
from rlbox.image.names import project_image_tag
from rlbox.target.artifact import TorchGroup, list_torch_wheel_groups
from rlbox.values import FIXES_IN_IMAGE, LOCK_IN_IMAGE, PATCHES_IN_CONTEXT

if TYPE_CHECKING:
    from rlbox.fixes.fix import Fix
    from rlbox.fixes.patches import ResolvedPatch
    from rlbox.fixes.render import RenderedFixes
    from rlbox.image.layers import BuildStage
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
FIXES, PROGRAMS = "fixes", "programs"
"""Folders of the context with the files of the fixes, as the image has them; what can be executed lies apart."""
_BASE = "Dockerfile.base"
_USUAL = "/usr/bin/python3"
_BASE_HEAD = "# Rendered by `rlbox render`: the first stages of every images/*/Dockerfile.\n\n"
REQUIREMENTS_FILE = "requirements.txt"
"""File of a layer's folder of wheels that names what it holds."""


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
    title: str
    tag: str
    rendered_files: Mapping[str, str]
    context_files: Mapping[str, str]
    lock_fault: str | None
    lock_checksum: str
    spec_checksum: str
    rootfs_checksum: str
    layers: tuple[str, ...]
    torch_groups: tuple[TorchGroup, ...]
    python: str
    sources_profile: str
    network: str
    epoch: int
    bake_ca: bool
    container: ContainerDefaults
    env: Mapping[str, str]

    def require_current_lock(self) -> None:
        """Raise `SpecError` unless the lock fits its spec."""
        if self.lock_fault:
            from rlbox.target.lock import choose_lock_or_compile_command

            raise SpecError(
                _("the lock of target {target} is {lock}").format(target=self.target, lock=self.lock_fault),
                where=f"images/{self.target}/lock.json",
                next_step=choose_lock_or_compile_command(self.target, self.lock_fault),
            )


def plan_image(
    target: Target,
    lock: Lock | None,
    rlbox_requirements: tuple[str, ...],
    template_dirs: Sequence[Path],
    patch_texts: Mapping[str, str] = MappingProxyType({}),
    fixes: Sequence[Fix] = (),
    job_ports: Mapping[str, int] = MappingProxyType({}),
) -> ImagePlan:
    """Return the plan of the target's image.

    Parameters
    ----------
    rlbox_requirements
        rlbox's own requirements, part of what the lock was made from.
    template_dirs
        Folders of templates, the first wins.
    patch_texts, fixes, job_ports
        The target's patches, file name to text; the catalogue; `JOB.PORT` of its shipped jobs to number, for `doctor`.
    """
    from rlbox.fixes.conditions import list_stack_versions
    from rlbox.fixes.patches import resolve_patches_with_skipped
    from rlbox.fixes.render import select_and_render_fixes
    from rlbox.image.dockerfile import build_dockerfile_values
    from rlbox.image.layers import group_layers_into_stages, plan_python_layers
    from rlbox.image.templates import render_template
    from rlbox.target.lock import find_lock_fault

    def text(name: str, **values: Any) -> str:
        return render_template(template_dirs, name, values)

    stages, versions = group_layers_into_stages(plan_python_layers(target, lock)), list_stack_versions(target, lock)
    baked = select_and_render_fixes(fixes, target, versions)
    container = build_container_defaults(target, baked)
    patching = resolve_patches_with_skipped(baked.fixes, target, versions, patch_texts)
    dockerfile = text("Dockerfile.j2", **build_dockerfile_values(target, lock, stages, baked, patching))
    files = {path: text(f"scripts/{path.rpartition('/')[2]}") for path in SCRIPTS}
    files |= _patch_files(target, stages, patching) | _fix_files(baked, target, versions, job_ports)
    return ImagePlan(
        target=target.name,
        title=target.title,
        torch_groups=list_torch_wheel_groups(target),
        python=target.python.version,
        sources_profile=target.sources,
        network=target.build.network,
        epoch=target.build.epoch,
        bake_ca=target.build.bake_ca,
        env=dict(target.env),
        tag="",
        rendered_files=_forms(target, dockerfile, container, template_dirs)
        | {_BASE: _BASE_HEAD + text("base.j2", interpreter=_USUAL)},
        context_files={"Dockerfile": dockerfile, **files, **(_locked_files(lock, stages) if lock else {})},
        lock_fault=find_lock_fault(target, lock, rlbox_requirements, patch_texts),
        lock_checksum=lock.checksum() if lock else "",
        spec_checksum=compute_image_spec_checksum(target),
        rootfs_checksum=compute_rootfs_checksum(lock, target.build.epoch) if lock and target.base.bootstrap else "",
        layers=tuple(layer.name for stage in stages for layer in stage.layers),
        container=container,
    )


def _forms(target: Target, dockerfile: str, container: ContainerDefaults, templates: Sequence[Path]) -> dict[str, str]:
    """Return what is rendered of a target: its Dockerfile, and the other forms that its machines take."""
    from rlbox.image.forms.compose import render_compose_files
    from rlbox.image.forms.onstart import render_onstart_files

    found = {f"images/{target.name}/Dockerfile": dockerfile}
    found |= render_compose_files(target, container, templates)
    return found | render_onstart_files(target, templates)


def _patch_files(target: Target, stages: Sequence[BuildStage], patching: tuple[ResolvedPatch, ...]) -> dict[str, str]:
    from rlbox.fixes.patches import has_patches_to_apply, render_patch_manifest_json
    from rlbox.image.dockerfile import list_stage_layer_paths

    if not has_patches_to_apply(patching):
        return {}
    return {
        PATCHES_IN_CONTEXT: render_patch_manifest_json(target.name, patching, list_stage_layer_paths(target, stages))
    }


def _fix_files(
    baked: RenderedFixes, target: Target, versions: Mapping[str, str], ports: Mapping[str, int]
) -> dict[str, str]:
    from rlbox.fixes.render import render_fix_manifest_json
    from rlbox.image.machine import hardware_python_ports_json

    files = {f"{PROGRAMS if file.mode == '0755' else FIXES}{file.path}": file.text for file in baked.files}
    return files | {
        f"{FIXES}{FIXES_IN_IMAGE}": render_fix_manifest_json(
            baked.fixes, target, versions, hardware_python_ports_json(target, ports)
        )
    }


def _locked_files(lock: Lock, stages: Sequence[BuildStage]) -> dict[str, str]:
    from rlbox.image.layers import layer_dir_relative_to_wheels
    from rlbox.target.lock import format_requirements

    layers = [layer for stage in stages for layer in stage.layers]
    files = {
        f"wheels/{layer_dir_relative_to_wheels(layer.name)}/{REQUIREMENTS_FILE}": format_requirements(layer.packages)
        for layer in layers
    }
    files[f"wheels/runtime/{REQUIREMENTS_FILE}"] = format_requirements(lock.runtime.packages)
    files["wheels/build.txt"] = format_requirements(lock.build.packages)
    files[f"{lock_dir_in_context(lock)}{LOCK_IN_IMAGE}"] = lock.to_json_text()
    return files


def load_image_plan(project: Project, target_name: str) -> ImagePlan:
    """Return the plan of a target's image with its name in an engine; errors are those of `load_target`."""
    return dataclasses.replace(
        ImageSources.load(project, target_name).build_plan(), tag=project_image_tag(project, target_name)
    )


@dataclass(frozen=True, kw_only=True)
class ImageSources:
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
    def load(cls, project: Project, target_name: str) -> ImageSources:
        """Return the recipe of target `target_name`; errors are those of `load_target`."""
        from rlbox.fixes.catalogue import load_target_with_fix_packages
        from rlbox.job.load import load_target_ports_by_job_port
        from rlbox.target.lock import load_lock

        loaded = load_target_with_fix_packages(project, target_name)
        patches = project.require_patch_files(target_name, loaded.target.own_patches)
        return cls(
            target=loaded.target,
            lock=load_lock(project.own_or_shipped_lock_file(target_name)),
            fixes=loaded.all_fixes,
            patch_texts={path.name: path.read_text("utf-8") for path in patches},
            job_ports=load_target_ports_by_job_port(Project(folder=project.roots[-1]), target_name),
            template_dirs=tuple(project.template_dirs()),
        )

    def build_plan(self) -> ImagePlan:
        """Return the plan, without its name in an engine."""
        return plan_image(
            self.target,
            self.lock,
            own_requirements(),
            self.template_dirs,
            patch_texts=self.patch_texts,
            fixes=self.fixes,
            job_ports=self.job_ports,
        )
