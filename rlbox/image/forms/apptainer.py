"""A target as an Apptainer definition, for sites without Docker.

Source: the definition file's grammar, sections and `{{ … }}` arguments: apptainer pkg/build/types/parser/deffile.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlbox.amounts import decimal_and_gib_size_text
from rlbox.engine.container import OWN_NETWORK, ContainerDefaults
from rlbox.fixes.conditions import list_stack_versions
from rlbox.fixes.fix import Fix
from rlbox.fixes.patches import has_patches_to_apply, resolve_patches_with_skipped
from rlbox.fixes.render import RenderedFixes, select_and_render_fixes
from rlbox.image.dockerfile import PARTS_STAGE, list_stage_layer_paths
from rlbox.image.labels import build_image_labels
from rlbox.image.layers import (
    group_layers_into_stages,
    lock_dir_in_context,
    map_git_http_to_context_paths,
    plan_python_layers,
)
from rlbox.image.machine import build_container_defaults, format_rlbox_limits_env_value
from rlbox.image.templates import render_template
from rlbox.target.artifact import TORCH_WHEEL_INDEX_URL
from rlbox.target.lock import Lock
from rlbox.target.target import Target

TEMPLATE = "apptainer.def.j2"
SYSTEM_PATH = "/opt/venv/bin:/opt/rlbox/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def render_apptainer_definition(
    target: Target,
    lock: Lock | None,
    fixes: Sequence[Fix],
    patch_texts: Mapping[str, str],
    template_dirs: Sequence[Path],
    *,
    image_reference: str = "",
) -> str:
    """Return the text of a definition file.

    Parameters
    ----------
    patch_texts
        The target's own, file name to text.
    image_reference
        What the container is made from: a name in a registry, or an archive of `rlbox save` (a path that ends in
        `.tar`). Empty: the locked files alone, by the steps of the Dockerfile; the lock must be current.
    """
    versions = list_stack_versions(target, lock)
    baked = select_and_render_fixes(fixes, target, versions)
    patching = resolve_patches_with_skipped(baked.fixes, target, versions, patch_texts)
    container = build_container_defaults(target, baked)
    values: dict[str, Any] = {
        "target": target,
        "container": container,
        "image": image_reference,
        "archive": image_reference.endswith(".tar"),
        "left": list(_left(container)),
        "env": list(_environment(target, baked).items()),
        "path": list(_paths(baked).items()),
        "labels": sorted(build_image_labels(target, lock, baked, patching).items()),
    }
    if not image_reference and lock is not None:
        values |= _steps(target, lock, baked, patched=has_patches_to_apply(patching))
    return render_template(template_dirs, TEMPLATE, values)


def _steps(target: Target, lock: Lock, baked: RenderedFixes, *, patched: bool) -> dict[str, Any]:
    stages = group_layers_into_stages(plan_python_layers(target, lock))
    programs = any(file.mode == "0755" for file in baked.files)
    carried = ["scripts", "wheels", "fixes", *(["programs"] if programs else []), "files", "lock", "other"]
    carried += sorted({path.partition("/")[0] for path in map_git_http_to_context_paths(lock).values()})
    carried += ["patches"] if patched else []
    return {
        "carried": carried if target.base.bootstrap else [*carried, "debs"],
        "stages": stages,
        "torch_wheels": TORCH_WHEEL_INDEX_URL,
        "parts": map_git_http_to_context_paths(lock),
        "below": f"parts/{PARTS_STAGE}",
        "patched": patched,
        "programs": programs,
        "links": sorted(baked.link_target_by_path.items()),
        "order": [
            *("runtime", "rlbox.venv"),
            *list_stage_layer_paths(target, stages),
            *(["rlbox.patches"] if patched else []),
        ],
        "lock": lock_dir_in_context(lock),
    }


def _environment(target: Target, baked: RenderedFixes) -> dict[str, str]:
    """Return the variables of the image, but for the search paths that are joined with what is there already."""
    limits = format_rlbox_limits_env_value(build_container_defaults(target, baked))
    plain = {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "RLBOX_LIMITS": limits, "PATH": SYSTEM_PATH}
    joined = _paths(baked)
    found = {name: text for name, text in baked.build_merged_env(plain).items() if name not in joined}
    return dict(sorted({**found, **target.env}.items()))


def _paths(baked: RenderedFixes) -> dict[str, str]:
    """Return what goes in front of every search path but PATH, which no base's may follow."""
    found: dict[str, str] = {}
    for block in baked.env_blocks:
        for name, folders in block.path.items():
            found[name] = ":".join([*folders, *([found[name]] if name in found else [])])
    return {name: found[name] for name in sorted(found) if name != "PATH"}


def _left(container: ContainerDefaults) -> Iterator[str]:
    """Yield the limits that no definition can set, each with the option that may."""
    yield f"{decimal_and_gib_size_text(container.shm_gib)} of shared memory: /dev/shm is the host's"
    if container.network == OWN_NETWORK:
        yield "a network of its own: what listens in it is reached as on the host"
    if container.user == "root":
        yield "root: --fakeroot, where the site allows it"
    if container.memory_gib:
        yield f"at most {decimal_and_gib_size_text(container.memory_gib)} of memory: --memory {container.memory_gib:g}G"
    if container.cpus:
        yield f"at most {container.cpus:g} cores: --cpus {container.cpus:g}"
    if container.pids:
        yield f"at most {container.pids} processes and threads: --pids-limit {container.pids}"
    for name, limit in sorted(container.ulimits.items()):
        yield f"the limit {name}={limit}: ulimit, before the container starts"
    for name in container.cap_add:
        yield f"the capability {name}: --add-caps {name}"
    for path in container.devices:
        yield f"the device {path}: the host's /dev is there, unless --contain is given; its owner and mode decide"
