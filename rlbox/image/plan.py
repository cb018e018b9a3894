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
from rlbox.image.labels import rootfs_checksum, spec_checksum
from rlbox.image.layers import lock_folder
from rlbox.image.machine import container_defaults
from rlbox.image.names import target_tag
from rlbox.target.artifact import TorchGroup, list_torch_groups
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
REQUIREMENTS = "requirements.txt"
"""File of a layer's folder of wheels that names what it holds."""


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """Everything about an image that follows from its specs alone.

    `rendered` maps committed files to their text, relative to the project folder; `context` maps files of the
    build context to their text. `layers` are the Python layers, each with a folder of its stage's below `wheels/` in
    the context; `lock` says how the lock stands to the spec: `current`, `missing`, or why it is stale or incomplete.
    `tag` is its name in an engine, on which no image depends: `load_image_plan` gives it.
    `keys` are the pieces that decide it (`compute_image_keys`), `origins` says which file sets one.
    `rootfs` is the checksum of what a bootstrapped operating system is made of, empty for a base that is an image.
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
    keys: Mapping[str, str]
    origins: Mapping[str, str]

    def require_lock(self) -> None:
        """Raise `SpecError` unless the lock fits its spec."""
        if self.lock != "current":
            from rlbox.target.lock import suggest_lock_command

            raise SpecError(
                _("the lock of target {target} is {lock}").format(target=self.target, lock=self.lock),
                where=f"images/{self.target}/lock.json",
                next_step=suggest_lock_command(self.target, self.lock),
            )


def plan_image(
    target: Target,
    lock: Lock | None,
    runtime: tuple[str, ...],
    templates: Sequence[Path],
    patches: Mapping[str, str] = MappingProxyType({}),
    fixes: Sequence[Fix] = (),
    ports: Mapping[str, int] = MappingProxyType({}),
    origins: Mapping[str, str] = MappingProxyType({}),
) -> ImagePlan:
    """Return the plan of the target's image.

    Parameters
    ----------
    runtime
        rlbox's own requirements, part of what the lock was made from.
    templates
        Folders of templates, the first wins.
    patches, fixes, ports, origins
        The target's patches, file name to text; the catalogue; `JOB.PORT` of its shipped jobs to number, for `doctor`;
        dotted key of the spec to the file that sets it.
    """
    from rlbox.fixes.conditions import collect_stack_versions
    from rlbox.fixes.patches import resolve_patches
    from rlbox.fixes.render import render_fixes
    from rlbox.image.dockerfile import dockerfile_values
    from rlbox.image.labels import compute_image_keys
    from rlbox.image.layers import plan_layers, plan_stages
    from rlbox.image.templates import render
    from rlbox.target.lock import describe_lock_state

    def text(name: str, **values: Any) -> str:
        return render(templates, name, values)

    stages, versions = plan_stages(plan_layers(target, lock)), collect_stack_versions(target, lock)
    baked = render_fixes(fixes, target, versions)
    container = container_defaults(target, baked)
    patching = resolve_patches(baked.fixes, target, versions, patches)
    dockerfile = text("Dockerfile.j2", **dockerfile_values(target, lock, stages, baked, patching))
    files = {path: text(f"scripts/{path.rpartition('/')[2]}") for path in SCRIPTS}
    files |= _patch_files(target, stages, patching) | _fix_files(baked, target, versions, ports)
    return ImagePlan(
        **_as_it_says(target),
        tag="",
        rendered=_forms(target, dockerfile, container, templates)
        | {_BASE: _BASE_HEAD + text("base.j2", interpreter=_USUAL)},
        context={"Dockerfile": dockerfile, **files, **(_locked_files(lock, stages) if lock else {})},
        lock=describe_lock_state(target, lock, runtime, patches),
        lock_checksum=lock.checksum() if lock else "",
        spec_checksum=spec_checksum(target),
        rootfs=rootfs_checksum(lock, target.build.epoch) if lock and target.base.bootstrap else "",
        layers=tuple(layer.name for stage in stages for layer in stage.layers),
        keys=compute_image_keys(target, lock, baked, patching, origins),
        origins=dict(origins),
        container=container,
    )


def _as_it_says(target: Target) -> dict[str, Any]:
    return {
        "target": target.name,
        "title": target.title,
        "torch_groups": list_torch_groups(target),
        "python": target.python.version,
        "sources": target.sources,
        "network": target.build.network,
        "epoch": target.build.epoch,
        "bake_ca": target.build.bake_ca,
        "env": dict(target.env),
    }


def _forms(target: Target, dockerfile: str, container: ContainerDefaults, templates: Sequence[Path]) -> dict[str, str]:
    """Return what is rendered of a target: its Dockerfile, and the other forms that its machines take."""
    from rlbox.image.forms.compose import committed_compose
    from rlbox.image.forms.onstart import committed_onstart

    found = {f"images/{target.name}/Dockerfile": dockerfile}
    found |= committed_compose(target, container, templates)
    return found | committed_onstart(target, templates)


def _patch_files(target: Target, stages: Sequence[BuildStage], patching: tuple[ResolvedPatch, ...]) -> dict[str, str]:
    from rlbox.fixes.patches import has_patches_to_apply, render_patch_manifest
    from rlbox.image.dockerfile import layer_paths

    if not has_patches_to_apply(patching):
        return {}
    return {PATCHES_IN_CONTEXT: render_patch_manifest(target.name, patching, layer_paths(target, stages))}


def _fix_files(
    baked: RenderedFixes, target: Target, versions: Mapping[str, str], ports: Mapping[str, int]
) -> dict[str, str]:
    from rlbox.fixes.render import render_fix_manifest
    from rlbox.image.machine import machine_requirements

    files = {f"{PROGRAMS if file.mode == '0755' else FIXES}{file.path}": file.text for file in baked.files}
    return files | {
        f"{FIXES}{FIXES_IN_IMAGE}": render_fix_manifest(
            baked.fixes, target, versions, machine_requirements(target, ports)
        )
    }


def _locked_files(lock: Lock, stages: Sequence[BuildStage]) -> dict[str, str]:
    from rlbox.image.layers import layer_folder
    from rlbox.target.lock import format_requirements

    layers = [layer for stage in stages for layer in stage.layers]
    files = {
        f"wheels/{layer_folder(layer.name)}/{REQUIREMENTS}": format_requirements(layer.packages) for layer in layers
    }
    files[f"wheels/runtime/{REQUIREMENTS}"] = format_requirements(lock.runtime.packages)
    files["wheels/build.txt"] = format_requirements(lock.build.packages)
    files[f"{lock_folder(lock)}{LOCK_IN_IMAGE}"] = lock.text()
    return files


def load_image_plan(project: Project, name: str) -> ImagePlan:
    """Return the plan of the image of target `name` with its name in an engine; errors are those of `load_target`."""
    return dataclasses.replace(ImageSources.load(project, name).plan(), tag=target_tag(project, name))


@dataclass(frozen=True, kw_only=True)
class ImageSources:
    """What the plan of an image is made of, and which file sets a key (`origins`).

    `patches` are the target's own, file name to text; `ports` those of rlbox's own jobs on the target, `JOB.PORT` to
    number: the user's own jobs would tie the image to them.
    """

    target: Target
    lock: Lock | None
    fixes: tuple[Fix, ...]
    patches: Mapping[str, str]
    ports: Mapping[str, int]
    templates: tuple[Path, ...]
    origins: Mapping[str, str]

    @classmethod
    def load(cls, project: Project, name: str) -> ImageSources:
        """Return the recipe of target `name`; errors are those of `load_target`."""
        from rlbox.fixes.catalogue import load_target_with_fixes
        from rlbox.job.load import load_ports
        from rlbox.target.lock import load_lock

        loaded = load_target_with_fixes(project, name)
        patches = project.patches(name, loaded.target.own_patches)
        return cls(
            target=loaded.target,
            lock=load_lock(project.lock_file(name)),
            fixes=loaded.fixes,
            patches={path.name: path.read_text("utf-8") for path in patches},
            ports=load_ports(Project(folder=project.roots[-1]), name),
            templates=tuple(project.template_dirs()),
            origins=loaded.origins,
        )

    def plan(self) -> ImagePlan:
        """Return the plan, without its name in an engine."""
        return plan_image(
            self.target,
            self.lock,
            own_requirements(),
            self.templates,
            patches=self.patches,
            fixes=self.fixes,
            ports=self.ports,
            origins=self.origins,
        )
